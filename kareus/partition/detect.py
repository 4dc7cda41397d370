"""Detection of partitions: a program is cut at its collectives, and two staggered nanobatches are overlapped."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kareus.errors import KareusError
from kareus.graph.interleave import block_segments, interleave, partition_of
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    CORE_ATTENTION,
    INPUT_GRADIENT_SUFFIX,
    TENSOR_PARALLEL,
    WEIGHT_GRADIENT_SUFFIX,
    BlockGraph,
    CollectiveKind,
    Direction,
    Operator,
    Partition,
    Scope,
    Segment,
    SequenceCollective,
    instruction_directions,
)
from kareus.partition.events import INNER_BLOCK, Trace
from kareus.partition.operators import (
    CollectiveRun,
    Run,
    collective_of,
    count_reads,
    operator_of,
    program_of,
)

_STEADY = 3
"""Blocks after which one more adds what every inner block adds."""
_NAMED_AFTER = {
    "attention": "attention",
    "scores": "attention",
    "gate_up": "mlp",
    "up": "mlp",
    "down": "down",
    "projection": "projection",
    "qkv": "qkv",
    "lm_head": "head",
    "embedding": "embedding",
    "loss": "loss",
    "norm": "norm",
    "post_norm": "norm",
}
"""What a segment is called: after the first of these operators that is in it."""
_MIDDLES = (*CORE_ATTENTION, "activation")
"""Operators at which a sublayer is cut in two with sequence parallelism: before them in forward, after in backward."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A segment before it is measured."""

    runs: tuple[Run, ...]
    exchange: CollectiveRun | None


def segments_of(trace: Trace, scope: Scope, direction: Direction) -> tuple[Segment, ...]:
    """Segments of one direction of one scope, in program order.

    Those of a block are the ones that end in the inner block of the trace: what follows its last collective is the
    start of the next block's first segment.
    """
    root = "blocks" if scope is Scope.BLOCK else str(scope)
    events = [e for e in trace.events if e.direction is direction and e.path.split(".")[0] == root]
    program = program_of(events)
    cuts = _inner(program, direction) if scope is Scope.BLOCK else _cut(program)
    reads = count_reads(trace.events)
    segments = [_segment(cut, scope, direction, reads, trace.lasting) for cut in cuts]
    names = _unique([segment.name for segment in segments])
    return tuple(replace(segment, name=name) for segment, name in zip(segments, names, strict=True))


def graph_of(traced: Trace) -> BlockGraph:
    """Return the operator graph of a trace."""
    return BlockGraph(
        forward=segments_of(traced, Scope.BLOCK, Direction.FORWARD),
        backward=segments_of(traced, Scope.BLOCK, Direction.BACKWARD),
        embedding_forward=segments_of(traced, Scope.EMBEDDING, Direction.FORWARD),
        embedding_backward=segments_of(traced, Scope.EMBEDDING, Direction.BACKWARD),
        head_forward=segments_of(traced, Scope.HEAD, Direction.FORWARD),
        head_backward=segments_of(traced, Scope.HEAD, Direction.BACKWARD),
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
        How often each kind occurs in one pass of its direction over one inner block; 0 if only recomputation makes it.

    Raises:
        KareusError: two kinds of partition would have the same name.
    """
    found: dict[str, Partition] = {}
    counts: Counter[str] = Counter()
    for direction in instruction_directions(split_backward=split_backward):
        more, fewer = (
            _walk(graph, layers, direction, recomputation=recomputation) for layers in (_STEADY + 1, _STEADY)
        )
        for partition in more:
            found[partition.name] = _together(found.get(partition.name, partition), partition)
        per_block = Counter(p.name for p in more) - Counter(p.name for p in fewer)
        counts.update({name: n for name, n in per_block.items() if found[name].direction is direction})
    return {partition: counts[name] for name, partition in found.items()}


def _together(known: Partition, partition: Partition) -> Partition:
    """Return what stands for two partitions of one name: where tokens go by sequence in one of them, that one.

    Beside attention, say, runs the gather for the other nanobatch's attention, by sequence, or for its MLP, at once.
    They take the same schedule and about the same time; more messages take no less.

    Raises:
        KareusError: they differ in more.
    """
    if _at_once(known) != _at_once(partition):
        raise KareusError(f"{known.name}: two different partitions have this name; the graph is ambiguous.")
    return partition if isinstance(partition.collective, SequenceCollective) else known


def _at_once(partition: Partition) -> Partition:
    collective = partition.collective
    return (
        replace(partition, collective=collective.at_once) if isinstance(collective, SequenceCollective) else partition
    )


def _walk(graph: BlockGraph, layers: int, direction: Direction, *, recomputation: Recomputation) -> list[Partition]:
    pairs = interleave(block_segments(graph, layers, direction, recomputation=recomputation))
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
    middles = [place for place, run in enumerate(cut.runs) if run.name.removesuffix(INPUT_GRADIENT_SUFFIX) in _MIDDLES]
    if not middles:
        return [cut]
    place = middles[0] if direction is Direction.FORWARD else middles[-1] + 1
    first, second = cut.runs[:place], cut.runs[place:]
    return [_Cut(first, None), replace(cut, runs=second)] if first and second else [cut]


def _is_inner(item: Run | CollectiveRun) -> bool:
    return item.events[-1].path.startswith(INNER_BLOCK)


def _segment(cut: _Cut, scope: Scope, direction: Direction, reads: Counter[int], lasting: frozenset[int]) -> Segment:
    operators = [operator_of(run, reads, lasting) for run in cut.runs]
    names = _unique([o.name for o in operators])
    return Segment(
        name=_name(operators, scope),
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


def _name(operators: Iterable[Operator], scope: Scope) -> str:
    """Name a segment; one without operators, as before the embedding's gradient is gathered, after its scope."""
    held = {o.name.removesuffix(INPUT_GRADIENT_SUFFIX) for o in operators}
    if held & {"attention", "scores"} and held & {"gate_up", "up"}:
        return "block"
    return next((name for operator, name in _NAMED_AFTER.items() if operator in held), str(scope))


def _unique(names: Sequence[str]) -> list[str]:
    """Number a name that occurs before: `norm`, then `norm.2`."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return numbered
