"""Placing the collectives of an operator graph: their ranks fill nodes one after the other, and may fill several."""

from dataclasses import replace

from kareus.gpu_model.network import Placement, placement_of
from kareus.graph.records import TENSOR_PARALLEL, BlockGraph, Collective, PlacedCollective, Segment
from kareus.model.config import Parallelism


def placed(graph: BlockGraph, parallelism: Parallelism, gpus_per_node: int) -> BlockGraph:
    """Return the graph with collectives that say on how many nodes their ranks lie, where that is more than one."""
    tensor = [parallelism.rank(0, tp=tp) for tp in range(parallelism.tp)]
    context = [parallelism.rank(0, cp=cp) for cp in range(parallelism.cp)]
    of_tensor, of_context = (placement_of(ranks, gpus_per_node) for ranks in (tensor, context))
    if of_tensor.nodes == of_context.nodes == 1:
        return graph

    def segments(own: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(_placed(s, of_tensor, of_context) for s in own)

    return BlockGraph(
        forward=segments(graph.forward),
        backward=segments(graph.backward),
        embedding_forward=segments(graph.embedding_forward),
        embedding_backward=segments(graph.embedding_backward),
        head_forward=segments(graph.head_forward),
        head_backward=segments(graph.head_backward),
    )


def _placed(segment: Segment, of_tensor: Placement, of_context: Placement) -> Segment:
    collective = segment.collective
    if collective is None:
        return segment
    placement = of_tensor if collective.group == TENSOR_PARALLEL else of_context
    if placement.nodes == 1:
        return segment
    return replace(segment, collective=_on_nodes(collective, placement))


def _on_nodes(collective: Collective, placement: Placement) -> PlacedCollective:
    """Several messages of a launch share the network, so that they count as one."""
    return PlacedCollective(
        kind=collective.kind,
        group=collective.group,
        group_size=collective.group_size,
        message_bytes=collective.message_bytes,
        fused=collective.fused,
        nodes=placement.nodes,
        per_node=placement.per_node,
    )
