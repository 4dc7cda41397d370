"""Detection of partitions: a program is cut at its collectives, and two staggered nanobatches are overlapped."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kareus.errors import KareusError
from kareus.graph.interleave import MIDDLES, numbered, partition_of, segment_name, stages_with_all_pairs, staggered
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    INPUT_GRADIENT_SUFFIX,
    TENSOR_PARALLEL,
    WEIGHT_GRADIENT_SUFFIX,
    BlockGraph,
    CollectiveKind,
    Direction,
    Partition,
    Scope,
    Segment,
    SequenceCollective,
    instruction_directions,
)
from kareus.partition.events import INNER_BLOCK, Trace
from kareus.partition.operators import CollectiveRun, Run, collective_of, count_reads, operator_of, program_of

_STEADY = 3
"""Blocks after which one more adds what every inner block adds."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A segment before it is measured."""

    runs: tuple[Run, ...]
    exchange: CollectiveRun | None


def _segments_of(trace: Trace, scope: Scope, direction: Direction, reads: Counter[int]) -> tuple[Segment, ...]:
    """Segments of one direction of one scope, in program order; `reads` are those of the whole trace.

    Those of a block are the ones that end in the inner block of the trace: what follows its last collective is the
    start of the next block's first segment.
    """
    root = "blocks" if scope is Scope.BLOCK else str(scope)
    events = [e for e in trace.events if e.direction is direction and e.path.split(".")[0] == root]
    program = program_of(events)
    cuts = _inner(program, direction) if scope is Scope.BLOCK else _cut(program)
    segments = [_segment(cut, scope, direction, reads, trace.lasting) for cut in cuts]
    names = numbered([segment.name for segment in segments])
    return tuple(replace(segment, name=name) for segment, name in zip(segments, names, strict=True))


def graph_of(traced: Trace) -> BlockGraph:
    """Return the operator graph of a trace."""
    reads = count_reads(traced.events)

    def segments(scope: Scope, direction: Direction) -> tuple[Segment, ...]:
        return _segments_of(traced, scope, direction, reads)

    return BlockGraph(
        forward=segments(Scope.BLOCK, Direction.FORWARD),
        backward=segments(Scope.BLOCK, Direction.BACKWARD),
        embedding_forward=segments(Scope.EMBEDDING, Direction.FORWARD),
        embedding_backward=segments(Scope.EMBEDDING, Direction.BACKWARD),
        head_forward=segments(Scope.HEAD, Direction.FORWARD),
        head_backward=segments(Scope.HEAD, Direction.BACKWARD),
    )


def detect_partitions(
    graph: BlockGraph, *, recomputation: Recomputation, split_backward: bool = False
) -> dict[Partition, int]:
    """Find the kinds of partition by walking staggered nanobatches through blocks in the steady state.

    Args:
        graph: of a nanobatch.
        recomputation: what a backward recomputes.
        split_backward: whether input and weight gradients are separate passes.

    Returns:
        How often each kind occurs in one pass of its direction over one inner block of the kind that has it; 0 if only
        recomputation makes it, or dense blocks beside those with experts.

    Raises:
        KareusError: two kinds of partition would have the same name.
    """
    partitions: dict[str, Partition] = {}
    counts: Counter[str] = Counter()
    dense_blocks = (0, 1) if graph.dense_forward else (0,)
    for direction in instruction_directions(split_backward=split_backward):
        walk = functools.partial(_walk, graph, direction, recomputation)
        for dense in dense_blocks:
            more, fewer = (walk(layers, layers * dense) for layers in (_STEADY + 1, _STEADY))
            others = [partition for stage in stages_with_all_pairs(graph)[1:] for partition in walk(*stage)]
            for partition in (*more, *others):
                partitions[partition.name] = _together(partitions.get(partition.name, partition), partition)
            per_block = Counter(p.name for p in more) - Counter(p.name for p in fewer)
            counts.update({name: n for name, n in per_block.items() if partitions[name].direction is direction})
    return {partition: counts[name] for name, partition in partitions.items()}


def _together(former: Partition, partition: Partition) -> Partition:
    """Return what stands for two partitions of one name: the one that sends more bytes, or else more messages.

    Beside attention, say, runs the gather for the other nanobatch's attention, by sequence, or for its MLP, at once;
    where attention is latent, the former is of latent vectors. They take the same schedule and about the same time.

    Raises:
        KareusError: they differ in more.
    """
    if _at_once(former) != _at_once(partition):
        raise KareusError(f"{former.name}: two different partitions have this name; the graph is ambiguous.")
    return max(former, partition, key=_sent)


def _sent(partition: Partition) -> tuple[int, bool]:
    return partition.collective.message_bytes, isinstance(partition.collective, SequenceCollective)


def _at_once(partition: Partition) -> Partition:
    """Return a partition whose collective sends nothing, all at once."""
    collective = partition.collective
    plain = collective.at_once if isinstance(collective, SequenceCollective) else collective
    return replace(partition, collective=replace(plain, message_bytes=0))


def _walk(
    graph: BlockGraph, direction: Direction, recomputation: Recomputation, layers: int, dense: int
) -> list[Partition]:
    pairs = staggered(graph, layers, direction, recomputation=recomputation, dense=dense)
    return [partition_of(pair.segment, pair.collective) for pair in pairs if pair.segment and pair.collective]


def _cut(program: Iterable[Run | CollectiveRun]) -> list[_Cut]:
    cuts, runs = [], list[Run]()
    for item in program:
        if isinstance(item, Run):
            runs.append(item)
        else:
            cuts.append(_Cut(tuple(runs), item))
            runs = []
    return [*cuts, _Cut(tuple(runs), None)] if runs else cuts


def _inner(program: Sequence[Run | CollectiveRun], direction: Direction) -> list[_Cut]:
    """The cuts that end in the inner block; without collectives, what ends in it."""
    cuts = [cut for cut in _cut(program) if cut.exchange and _is_inner(cut.exchange)]
    if any(cut.exchange and _gathers_tokens(cut.exchange) for cut in cuts):
        cuts = [part for cut in cuts for part in _halves(cut, direction)]
    return cuts or [_Cut(tuple(item for item in program if isinstance(item, Run) and _is_inner(item)), None)]


def _gathers_tokens(exchange: CollectiveRun) -> bool:
    collective = collective_of(exchange)
    return collective.group == TENSOR_PARALLEL and collective.kind is CollectiveKind.ALL_GATHER


def _halves(cut: _Cut, direction: Direction) -> list[_Cut]:
    """Cut a sublayer in two where two nanobatches shall take turns and no collective ends it."""
    middles = [place for place, run in enumerate(cut.runs) if run.name.removesuffix(INPUT_GRADIENT_SUFFIX) in MIDDLES]
    if not middles:
        return [cut]
    place = middles[0] if direction is Direction.FORWARD else middles[-1] + 1
    first, second = cut.runs[:place], cut.runs[place:]
    return [_Cut(first, None), replace(cut, runs=second)] if first and second else [cut]


def _is_inner(item: Run | CollectiveRun) -> bool:
    return item.events[-1].path.startswith(INNER_BLOCK)


def _segment(cut: _Cut, scope: Scope, direction: Direction, reads: Counter[int], lasting: frozenset[int]) -> Segment:
    operators = [operator_of(run, reads, lasting) for run in cut.runs]
    names = numbered([o.name for o in operators])
    return Segment(
        name=segment_name(operators, scope),
        direction=direction,
        scope=scope,
        operators=tuple(replace(o, name=name) for o, name in zip(operators, names, strict=True)),
        collective=collective_of(cut.exchange) if cut.exchange else None,
        independent_tail=_independent_tail(cut),
    )


def _independent_tail(cut: _Cut) -> int:
    """How many of the last runs are weight gradients, which nothing that the collective sends comes from."""
    if cut.exchange is None:
        return 0
    sent = {region.buffer for event in cut.exchange.events for region in event.reads}
    tail = itertools.takewhile(
        lambda run: (
            run.name.endswith(WEIGHT_GRADIENT_SUFFIX)
            and not any(region.buffer in sent for event in run.events for region in event.writes)
        ),
        reversed(cut.runs),
    )
    return len(list(tail))
