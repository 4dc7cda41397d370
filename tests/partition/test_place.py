"""Collectives of an operator graph whose ranks lie on several nodes."""

from dataclasses import replace

import pytest
from helpers.builders import a100, block_graph

from kareus.gpu_model.model import run_program
from kareus.graph.records import BlockGraph, Collective, PlacedCollective, Program, Step
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.place import placed

GRAPH = block_graph(8192)


def layout(tp: int, cp: int = 1) -> Parallelism:
    return Parallelism(dp=1, pp=1, tp=tp, cp=cp, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False)


def collectives(graph: BlockGraph) -> list[Collective]:
    segments = (*graph.forward, *graph.backward, *graph.embedding_forward, *graph.head_backward)
    return [own.collective for own in segments if own.collective is not None]


@pytest.mark.parametrize(("tp", "cp"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_a_group_that_fits_a_node_stays_as_it_is(tp: int, cp: int) -> None:
    assert placed(GRAPH, layout(tp, cp), 8) == GRAPH


@pytest.mark.parametrize(("tp", "nodes", "per_node"), [(16, 2, 8), (32, 4, 8)])
def test_a_tensor_parallel_group_may_fill_nodes(tp: int, nodes: int, per_node: int) -> None:
    found = collectives(placed(GRAPH, layout(tp), 8))
    assert len(found) == len(collectives(GRAPH))
    for own in found:
        assert isinstance(own, PlacedCollective)
        assert (own.nodes, own.per_node) == (nodes, per_node)


def test_context_parallelism_may_lie_on_nodes_whose_tensor_groups_are_in_one() -> None:
    """Ranks of a tensor-parallel group are neighbours; those of a context-parallel one lie a group apart."""
    first, *others = GRAPH.forward
    assert first.collective is not None
    keys = replace(first.collective, group="cp", group_size=2)
    found = placed(replace(GRAPH, forward=(replace(first, collective=keys), *others)), layout(8, 2), 8)
    own = found.forward[0].collective
    assert isinstance(own, PlacedCollective)
    assert (own.nodes, own.per_node) == (2, 1)
    assert collectives(found)[1:] == collectives(GRAPH)[1:]


def test_the_message_is_that_of_one_node() -> None:
    (found, *_), (before, *_) = collectives(placed(GRAPH, layout(16), 8)), collectives(GRAPH)
    assert (found.message_bytes, found.group_size, found.kind) == (
        before.message_bytes,
        before.group_size,
        before.kind,
    )


def test_collectives_over_nodes_take_longer() -> None:
    def time_s(collective: Collective) -> float:
        program = Program(name="one", steps=(Step(collective=collective, sm_count=24),), blocks=None)
        return float(run_program(a100(), program, 1410.0).time_s)

    (own, *_), (over_nodes, *_) = collectives(GRAPH), collectives(placed(GRAPH, layout(16), 8))
    assert time_s(over_nodes) > 1.5 * time_s(own)
