"""Gradients are reduced while the backward that completes them still runs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.trainings import FOUR_LAYERS, tiny_workload
from helpers.worlds import spawn
from torch import nn

from kareus.launch.mesh import coordinate_of
from kareus.launch.process_groups import make_process_groups
from kareus.model.communicators.choice import Library
from kareus.model.parallelism import Sharding
from kareus.model.shards import shard_of
from kareus.model.weights import draw_weights
from kareus.profile.programs import StageShape
from kareus.runtime.stage_model import StageModel
from kareus.training.bucket_reduction import BucketReduction
from kareus.training.optimizer_sharding import OptimizerSharding, weight_gradients

IDS = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1))


class Watched:
    """A communicator whose works are kept."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.works: list[Any] = []

    def all_reduce(self, tensors: Any) -> Any:
        self.works.append(self.inner.all_reduce(tensors))
        return self.works[-1]


def make(rank: int, sharding: Sharding, cp: int = 1) -> tuple[StageModel, Any]:
    workload = tiny_workload(dp=2, cp=cp, model=FOUR_LAYERS)
    parallelism = dataclasses.replace(workload.parallelism, sharding=sharding)
    place = coordinate_of(rank, parallelism, dist.get_world_size())
    groups = make_process_groups(place, parallelism, Library.GLOO, scratch_bytes=0, tie_embeddings=True)
    shard = shard_of(workload.model, parallelism, workload.sequence_length)
    shape = StageShape(layers=4, first=True, last=True)
    stage = StageModel(workload.model, shard, groups.mesh, shape, torch.float32, recomputation=workload.recomputation)
    draw_weights(stage, workload.model, 0, 0)
    return stage, groups


def check_it_begins_early(rank: int) -> None:
    """The sum of the last block's gradients arrives while those of the first block do not exist yet."""
    stage, groups = make(rank, Sharding.NONE)
    watched = Watched(groups.data)
    reduction = BucketReduction(stage, OptimizerSharding(stage, None), dataclasses.replace(groups, data=watched))
    arrived: dict[str, torch.Tensor] = {}
    order: list[nn.Module] = []

    def ready(part: nn.Module) -> None:
        order.append(part)
        reduction.ready(part)
        if part is stage.blocks[-1]:
            watched.works[-1].wait()
            assert all(not gradient.any() for _, gradient in weight_gradients(stage.blocks[0]))
            arrived.update((name, gradient.clone()) for name, gradient in weight_gradients(stage.blocks[-1]))

    stage.gradients_ready = ready
    own = IDS + rank
    stage(own, own).backward()
    assert order == [stage.head, *reversed(stage.blocks)]
    reduction.finish()
    assert arrived
    for name, gradient in weight_gradients(stage.blocks[-1]):
        assert torch.equal(gradient, arrived[name])
        assert gradient.any()


def check_shards_are_parts_of_the_sum(rank: int) -> None:
    """The elements that a rank optimizes have the gradients that replicas without shards have, for every weight."""
    found = []
    for sharding in (Sharding.NONE, Sharding.OPTIMIZER):
        stage, groups = make(rank, sharding)
        flat = OptimizerSharding(stage, groups.optimizer_shards)
        reduction = BucketReduction(stage, flat, groups)
        stage.gradients_ready = reduction.ready
        stage(IDS + rank, IDS + rank).backward()
        reduction.finish()
        found.append((stage, flat))
    (whole, _), (_, cut) = found
    whole_gradients = dict(weight_gradients(whole))
    for shard in cut.shards:
        parts: list[torch.Tensor] = [torch.empty(0)] * 2
        dist.all_gather_object(parts, shard.gradient)
        assert torch.equal(torch.cat(parts), whole_gradients[shard.name].flatten())


def check_context_sums_begin_early(rank: int) -> None:
    """Shards are summed over context-parallel ranks while the backward runs, in the order in which they are reduced."""
    own = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(rank))
    whole, groups = make(rank, Sharding.NONE, cp=2)
    reduction = BucketReduction(whole, OptimizerSharding(whole, None), groups)
    whole(own, own).backward()
    reduction.finish()
    expected = dict(weight_gradients(whole))

    stage, groups = make(rank, Sharding.OPTIMIZER, cp=2)
    watched = Watched(groups.mesh.cp)
    sharding = OptimizerSharding(stage, groups.optimizer_shards)
    mesh = dataclasses.replace(groups.mesh, cp=watched)
    reduction = BucketReduction(stage, sharding, dataclasses.replace(groups, mesh=mesh))
    begun: list[int] = []

    def ready(part: nn.Module) -> None:
        reduction.ready(part)
        begun.append(len(watched.works))

    stage.gradients_ready = ready
    stage(own, own).backward()
    assert begun == [0, 1, 2, 3, 4], "each when the next bucket is complete, that of the head first"
    reduction.finish()
    assert len(watched.works) == len(sharding.buckets)
    for shard in sharding.shards:
        departure = (shard.gradient - expected[shard.name].flatten()[shard.start :][: shard.gradient.numel()]).abs()
        assert departure.numel() == 0 or departure.max() <= 1e-5 * expected[shard.name].abs().max()


def test_shards_are_summed_over_context_beside_the_backward(tmp_path: Path) -> None:
    spawn(4, check_context_sums_begin_early, tmp_path)


@pytest.mark.parametrize("check", [check_it_begins_early, check_shards_are_parts_of_the_sum])
def test_gradients_are_reduced_beside_the_backward(tmp_path: Path, check: Any) -> None:
    spawn(2, check, tmp_path)
