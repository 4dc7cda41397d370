"""Which ranks form which groups."""

import dataclasses
from collections import defaultdict

import pytest

from kareus.errors import EngineError
from kareus.launch import process_groups
from kareus.launch.mesh import coordinate_of, rank_of
from kareus.launch.process_groups import make_process_groups
from kareus.model.communicators.choice import Library
from kareus.model.parallelism import Parallelism, Sharding

SHAPE = Parallelism(dp=2, pp=2, tp=2, cp=3, layers_per_stage=(1, 1), sharding=Sharding.NONE, sequence_parallel=False)


def test_groups_of_an_axis_cut_the_world_in_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    monkeypatch.setattr(process_groups, "make_communicator", lambda _, axis, group, __: asked[axis].add(tuple(group)))
    monkeypatch.setattr(process_groups, "_group", lambda *_: None)
    for rank in range(SHAPE.gpus):
        coordinate = coordinate_of(rank, SHAPE, SHAPE.gpus)
        assert rank_of(coordinate, SHAPE) == rank
        make_process_groups(coordinate, SHAPE, Library.GLOO, scratch_bytes=0, tie_embeddings=False)
    for axis, size in (("tp", 2), ("cp", 3), ("dp", 2 * 3)):  # context-parallel ranks hold the same weights, too
        assert sorted(r for group in asked[axis] for r in group) == list(range(SHAPE.gpus))
        assert {len(group) for group in asked[axis]} == {size}
    assert (0, 1) in asked["tp"]
    assert (0, 2, 4) in asked["cp"]
    assert (0, 2, 4, 6, 8, 10) in asked["dp"]
    assert coordinate_of(12, SHAPE, SHAPE.gpus).stage == 1


def test_a_sharded_optimizer_replaces_whole_gradient_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    monkeypatch.setattr(process_groups, "make_communicator", lambda _, axis, group, __: asked[axis].add(tuple(group)))
    monkeypatch.setattr(process_groups, "_group", lambda group, _, name, *__: asked[name].add(tuple(group)))
    for dp in (1, 2):
        shape = dataclasses.replace(SHAPE, dp=dp, sharding=Sharding.OPTIMIZER)
        for rank in range(shape.gpus):
            coordinate = coordinate_of(rank, shape, shape.gpus)
            make_process_groups(coordinate, shape, Library.GLOO, scratch_bytes=0, tie_embeddings=False)
    one_replica = {(rank, rank + 2, rank + 4) for rank in (0, 1)}  # has nobody to share out with, sums over `cp` alone
    assert asked["dp"] == one_replica | {(6 + rank, 8 + rank, 10 + rank) for rank in (0, 1)}
    first_stage = {(rank, rank + 6) for rank in range(6)}
    assert asked["sharers"] == first_stage | {(one + 12, other + 12) for one, other in first_stage}


def test_experts_have_groups_of_neighbours_and_copies_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded over replicas, context and tensor parallelism: 12 GPUs of a stage hold four parts three times."""
    asked: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    monkeypatch.setattr(process_groups, "make_communicator", lambda _, axis, group, __: asked[axis].add(tuple(group)))
    monkeypatch.setattr(process_groups, "_group", lambda group, _, name, *__: asked[name].add(tuple(group)))
    shape = dataclasses.replace(SHAPE, ep=4)
    for rank in range(shape.gpus):
        coordinate = coordinate_of(rank, shape, shape.gpus)
        make_process_groups(coordinate, shape, Library.GLOO, scratch_bytes=0, tie_embeddings=False, has_experts=True)
    neighbours = {tuple(range(first, first + 4)) for first in range(0, 24, 4)}
    assert asked["ep"] == asked["counts"] == asked["ep-sums"] == neighbours
    assert asked["expert-dp"] == {tuple(range(first, first + 12, 4)) for first in (*range(4), *range(12, 16))}
    of_a_replica = {tuple(range(6 * replica, 6 * replica + 6)) for replica in range(4)}
    assert asked["balance"] == {
        (*one, *other) for one in of_a_replica for other in of_a_replica if other[0] - one[0] == 12
    }


def test_a_world_of_another_size_is_refused() -> None:
    with pytest.raises(EngineError, match=r"world size 8: the workload runs on 24 ranks"):
        coordinate_of(0, SHAPE, 8)
