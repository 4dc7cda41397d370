"""Placing the collectives of an operator graph: their ranks fill nodes one after the other, and may fill several."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction

from kareus.gpu_model.network import Placement, placement_of
from kareus.graph.records import (
    CONTEXT_PARALLEL,
    EXPERT_PARALLEL,
    EXPERT_TENSOR_PARALLEL,
    TENSOR_PARALLEL,
    BlockGraph,
    Collective,
    CollectiveKind,
    PlacedCollective,
    Segment,
    TokenExchange,
)
from kareus.model.parallelism import Parallelism


@dataclass(frozen=True, slots=True)
class ExchangedCopies:
    """Copies of a token of which one serves all experts of a node (DeepEP)."""

    per_token: int
    share_of_groups: Fraction
    """Groups of experts that a token's are chosen from, over all."""

    def share(self, nodes: int) -> float:
        """Return the copies that reach one of so many nodes each, over all copies, drawn at random.

        Of n nodes k draws leave n (1 - 1/n)^k without any; a router that chooses among groups reaches fewer.
        """
        reached = nodes * (1 - (1 - 1 / nodes) ** self.per_token)
        return min(reached, max(nodes * float(self.share_of_groups), 1.0)) / self.per_token


Places = dict[str, Placement]
"""By process group."""


def placed(
    graph: BlockGraph, parallelism: Parallelism, linked_gpus: int, copies: ExchangedCopies | None = None
) -> BlockGraph:
    """Return the graph with collectives that say on how many nodes their ranks lie, where that is more than one.

    Args:
        graph: of a block.
        parallelism: whose ranks fill nodes.
        linked_gpus: consecutive ranks that NVLink connects: a node here.
        copies: of tokens that travel between nodes; None: one for each expert.
    """
    ranks = {
        TENSOR_PARALLEL: [parallelism.rank(0, tp=tp) for tp in range(parallelism.tp)],
        CONTEXT_PARALLEL: [parallelism.rank(0, cp=cp) for cp in range(parallelism.cp)],
        EXPERT_PARALLEL: parallelism.expert_ranks(0),
        EXPERT_TENSOR_PARALLEL: list(range(parallelism.etp)),
    }
    places = {group: placement_of(group_ranks, linked_gpus) for group, group_ranks in ranks.items()}
    if all(place.nodes == 1 for place in places.values()):
        return graph
    parts = {f.name: tuple(_placed(s, places, copies) for s in getattr(graph, f.name)) for f in fields(BlockGraph)}
    return BlockGraph(**parts)


def _placed(segment: Segment, places: Places, copies: ExchangedCopies | None) -> Segment:
    collective = segment.collective
    if collective is None or places[collective.group].nodes == 1:
        return segment
    return replace(segment, collective=_on_nodes(collective, places[collective.group], copies))


def _on_nodes(collective: Collective, placement: Placement, copies: ExchangedCopies | None) -> PlacedCollective:
    """Several messages of a launch share the network, so that they count as one."""
    on_nodes = PlacedCollective(
        kind=collective.kind,
        group=collective.group,
        group_size=collective.group_size,
        message_bytes=collective.message_bytes,
        fused=collective.fused,
        nodes=placement.nodes,
        per_node=placement.per_node,
    )
    if collective.kind is not CollectiveKind.ALL_TO_ALL or copies is None:
        return on_nodes
    values = {f.name: getattr(on_nodes, f.name) for f in fields(PlacedCollective)}
    return TokenExchange(**values, between_share=copies.share(placement.nodes))
