"""Staggering two nanobatches: the one definition of which segments and collectives run concurrently.

Nanobatches A and B take turns, segment by segment: A.1 B.1 A.2 B.2 ... Each segment runs beside the
collective that the other nanobatch has just reached, and a collective in flight passes from block to
block. A backward that recomputes (of a split one, the input-gradient pass) is one such sequence, too: with
recomputation of the stage all its blocks forward again, from the stage's input, and then backward; with full
recomputation each block forward again and then backward. So a recomputed segment, too, runs beside what the
other nanobatch has just reached. The memory estimate assumes the same. Only the
first segment of an instruction and its last collective have no partner.

With sequence parallelism a norm stands between a reduce-scatter and an all-gather, too short to hide either, and
what is between an all-gather and a reduce-scatter is cut in two. A is one segment ahead there: A.1 A.2 B.1 A.3 B.2 ...
In the steady state norms run alone, the first part of a sublayer beside the other nanobatch's reduce-scatter, and the
second part beside its all-gather. A's first all-gather has no partner.

Experts end a block with the sum of a token's copies, and their backward begins with its gradient: no collective ends
what follows the last exchange of tokens. It is a part of the next block's first segment, so that dispatch and combine
of one nanobatch run beside the other's attention and experts. With sequence parallelism experts are cut in two, too.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kareus.graph.recomputation import Recomputation, block_backward, recomputed_blocks
from kareus.graph.records import (
    CORE_ATTENTION,
    INPUT_GRADIENT_SUFFIX,
    RECOMPUTING,
    TENSOR_PARALLEL,
    BlockGraph,
    Collective,
    CollectiveKind,
    Direction,
    Operator,
    Partition,
    PartlyRecomputedGraph,
    Scope,
    Segment,
)
from kareus.graph.split_backward import pass_segments

_NAMED_AFTER = {
    "attention": "attention",
    "scores": "attention",
    "experts_gate_up": "experts",
    "experts_down": "experts-down",
    "gate_up": "mlp",
    "up": "mlp",
    "down": "down",
    "projection": "projection",
    "qkv": "qkv",
    "latent": "qkv",
    "shared_gate_up": "shared",
    "shared_down": "shared-down",
    "router": "router",
    "lm_head": "head",
    "embedding": "embedding",
    "loss": "loss",
    "merge": "merge",
    "norm": "norm",
    "post_norm": "norm",
    "sort": "sort",
    "unsort": "unsort",
}
"""What a segment is called: after the first of these operators that is in it."""
NUMBER = r"\.\d+$"
"""Ends the name of an operator or of a segment that another has, too."""
ROUTER = "router"
"""Begins the names of a router's products."""
EXPERTS_ACTIVATION = "experts_activation"
"""Operator between the two products of experts."""
MIDDLES = (*CORE_ATTENTION, "activation", "shared_activation", EXPERTS_ACTIVATION)
"""Operators at which a sublayer is cut in two with sequence parallelism: before them in forward, after in backward."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A segment of one nanobatch and the collective that the other nanobatch has in flight meanwhile."""

    nanobatch: int
    """0 or 1: that of the segment; of a collective that runs alone, its own."""
    segment: Segment | None
    """None where a collective runs alone, as the last one of an instruction."""
    ended: Segment | None
    """The segment that the collective ends; None at the start of an instruction, and where the other nanobatch's last
    segment ended without a collective."""

    @property
    def collective(self) -> Collective | None:
        """The collective; None where the segment runs alone."""
        return self.ended.collective if self.ended else None


def block_segments(
    graph: BlockGraph, layers: int, direction: Direction, *, recomputation: Recomputation, dense: int = 0
) -> list[Segment]:
    """Return the segments of one nanobatch through `layers` blocks of a stage, in the order of execution."""
    passes = block_passes(graph, layers, direction, recomputation=recomputation, dense=dense)
    return [segment for one_pass in passes for segment in one_pass]


def block_passes(
    graph: BlockGraph, layers: int, direction: Direction, *, recomputation: Recomputation, dense: int = 0
) -> list[tuple[Segment, ...]]:
    """Return the same by pass through one block: a block that is recomputed on its own is passed once.

    Of a mixture of experts, `dense` of the blocks have none; they are taken as the first, wherever among the blocks of
    the stage they are.
    """
    forwards, passes = _passes(graph, layers - dense, direction, recomputation)
    if dense:
        plain = replace(graph, forward=graph.dense_forward, backward=graph.dense_backward)
        first_forwards, first = _passes(plain, dense, direction, recomputation)
        forwards = first_forwards + forwards
        passes = first + passes if direction is Direction.FORWARD else passes + first
    return forwards + passes


def _passes(
    graph: BlockGraph, layers: int, direction: Direction, recomputation: Recomputation
) -> tuple[list[tuple[Segment, ...]], list[tuple[Segment, ...]]]:
    """Return the forwards that a pass through equal blocks begins with, and what follows."""
    backward = pass_segments(graph.forward, block_backward(graph, recomputation), direction)
    if direction not in RECOMPUTING or recomputation is Recomputation.NONE:
        return [], [backward] * layers
    if recomputation is Recomputation.STAGE:
        return [graph.forward] * layers, [backward] * layers
    again = (*graph.forward, *backward) if recomputation is Recomputation.FULL else backward
    keeping = pass_segments(graph.forward, graph.backward, direction)
    chosen = recomputed_blocks(layers)
    if isinstance(graph, PartlyRecomputedGraph):
        chosen = recomputed_blocks(layers, graph.every, graph.first)
    return [], [again if recomputes else keeping for recomputes in reversed(chosen)]


def staggered(
    graph: BlockGraph, layers: int, direction: Direction, *, recomputation: Recomputation, dense: int = 0
) -> list[Pair]:
    """Return the pairs of two staggered nanobatches through `layers` blocks, of which `dense` have no experts.

    Each block is a cycle: attention and experts in turn, where there are experts.
    """
    passes = block_passes(graph, layers, direction, recomputation=recomputation, dense=dense)
    cycles = {one_pass: _cycle(one_pass) for one_pass in dict.fromkeys(passes)}
    return interleave([segment for one_pass in passes for segment in cycles[one_pass]])


def stages_with_all_pairs(graph: BlockGraph) -> tuple[tuple[int, int], ...]:
    """Return blocks, and how many of them are dense, of stages that together have every kind of pair of a model."""
    return ((2, 0), (4, 2), (2, 2)) if graph.dense_forward else ((2, 0),)


def interleave(segments: Sequence[Segment]) -> list[Pair]:
    """Return the pairs of two staggered nanobatches that both run `segments`.

    A segment without operators is a collective right after another: it runs alone, and nothing beside the other
    nanobatch's.
    """
    pairs = []
    in_flight: list[Segment | None] = [None, None]
    for nanobatch, segment in _turns(segments):
        other = 1 - nanobatch
        if in_flight[nanobatch] is not None:  # its results are needed now
            pairs.append(Pair(nanobatch, None, in_flight[nanobatch]))
        if segment.operators:
            pairs.append(Pair(nanobatch, segment, in_flight[other]))
            in_flight[other] = None
        in_flight[nanobatch] = segment if segment.collective is not None else None
    return pairs + [Pair(nanobatch, None, ended) for nanobatch, ended in enumerate(in_flight) if ended is not None]


def partition_of(segment: Segment, collective: Collective) -> Partition:
    """Return the partition of `segment` and `collective`."""
    return Partition(
        name=f"{segment.direction}-{segment.name}-{collective.label}",
        direction=segment.direction,
        operators=segment.operators,
        collective=collective,
    )


def segment_name(operators: Iterable[Operator], scope: Scope) -> str:
    """Return the name of a segment; of one without operators, as before a gradient is gathered, that of its scope."""
    computed = {_plain(operator) for operator in operators}
    if computed & {"attention", "scores"} and computed & {"gate_up", "up"}:
        return "block"
    return next((name for operator, name in _NAMED_AFTER.items() if operator in computed), str(scope))


def numbered(names: Iterable[str]) -> list[str]:
    """Number a name that occurs before: `norm`, then `norm.2`."""
    numbers: list[str] = []
    for name in names:
        plain = re.sub(NUMBER, "", name)
        free = itertools.chain([name], (f"{plain}.{n}" for n in itertools.count(2)))
        numbers.append(next(other for other in free if other not in numbers))
    return numbers


def is_half(before: Segment, after: Segment) -> bool:
    """Return whether two segments are one that is cut, so that two nanobatches take turns."""
    forward = before.direction is Direction.FORWARD
    middle = after.operators[:1] if forward else before.operators[-1:]
    return any(_plain(operator) in MIDDLES for operator in middle)


def _plain(operator: Operator) -> str:
    """Return the name of what an operator is, or is the input gradient of."""
    return re.sub(NUMBER, "", operator.name).removesuffix(INPUT_GRADIENT_SUFFIX)


def _cycle(block: Sequence[Segment]) -> list[Segment]:
    """Return the segments of a pass through a block as two nanobatches take turns with them.

    What no collective ends is joined to what follows, of the next block at the end; halves of a segment are not.
    """
    if not any(_is_routed(segment) for segment in block):
        return [_of_dense(segment) for segment in block]
    if any(_gathers_tokens(segment) for segment in block):
        block = [part for segment in block for part in _halved(segment)]
    joined: list[Segment] = []
    waiting: list[Segment] = []
    for segment, following in zip(block, [*block[1:], block[0]], strict=True):
        waiting.append(segment)
        if segment.collective is not None or is_half(segment, following):
            joined.append(_joined(waiting))
            waiting = []
    if waiting:
        joined[:1] = [_joined(waiting + joined[:1])]
    names = numbered(f"{segment.direction}-{segment_name(segment.operators, segment.scope)}" for segment in joined)
    return [
        replace(segment, name=name.removeprefix(f"{segment.direction}-"))
        for segment, name in zip(joined, names, strict=True)
    ]


def _is_routed(segment: Segment) -> bool:
    return any(operator.name.partition(".")[0] == ROUTER for operator in segment.operators)


def _of_dense(segment: Segment) -> Segment:
    """Return a segment with a name that no segment of a block with experts has."""
    return replace(segment, name=f"dense-{segment.name}") if segment.scope is Scope.DENSE_BLOCK else segment


def _halved(segment: Segment) -> list[Segment]:
    """Cut a segment of experts in two at their activation."""
    places = [n for n, o in enumerate(segment.operators) if o.name == EXPERTS_ACTIVATION]
    if not places:
        return [segment]
    place = places[0] + (segment.direction is not Direction.FORWARD)
    first, second = segment.operators[:place], segment.operators[place:]
    return [replace(segment, operators=first, collective=None, independent_tail=0), replace(segment, operators=second)]


def _joined(segments: Sequence[Segment]) -> Segment:
    """Return consecutive segments as one, which is a backward's if one of them is."""
    operators = [operator for segment in segments for operator in segment.operators]
    names = numbered(operator.name for operator in operators)
    directions = [segment.direction for segment in segments if segment.direction is not Direction.FORWARD]
    return replace(
        segments[-1],
        direction=directions[0] if directions else Direction.FORWARD,
        operators=tuple(replace(o, name=name) for o, name in zip(operators, names, strict=True)),
    )


def _turns(segments: Sequence[Segment]) -> Iterator[tuple[int, Segment]]:
    """Yield a nanobatch and its next segment, in the order of execution."""
    ahead = 1 if any(_gathers_tokens(segment) for segment in segments) else 0
    for place in range(len(segments) + ahead):
        if place < len(segments):
            yield 0, segments[place]
        if place >= ahead:
            yield 1, segments[place - ahead]


def _gathers_tokens(segment: Segment) -> bool:
    collective = segment.collective
    if collective is None or collective.group != TENSOR_PARALLEL:
        return False
    return collective.kind is CollectiveKind.ALL_GATHER
