"""Operators of traced kernels: what each computes, and how many bytes a fused implementation of it moves.

Counted are the bytes that an operator reads from and writes to what outlives it; temporaries between its kernels
count for nothing. The copies that bring gathered keys and values into order cannot be fused with attention, and are
counted by themselves. A weight gradient reads and writes the fp32 buffer that it is added to (4 + 4 bytes a weight),
as with Megatron-LM's gradient accumulation fusion. An embedding touches one row a token. Only matrix products and
attention have their arithmetic counted; the others are bound by memory.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from kareus.graph.records import (
    BIAS_GRADIENT_SUFFIX,
    INPUT_GRADIENT_SUFFIX,
    TENSOR_PARALLEL,
    WEIGHT_GRADIENT_SUFFIX,
    AnyCollective,
    Collective,
    CollectiveKind,
    Direction,
    Operator,
    OperatorKind,
    SequenceCollective,
)
from kareus.partition.events import Region, TracedEvent

_MATMULS = {"mm", "addmm"}
_BATCHED_MATMUL = "bmm"
"""Kernel of a product of attention that is not fused, one of rows and columns for each head of each sequence."""
_SUM = "sum"
_INDEX_ADD = "index_add_"
"""Kernel that begins the gradient of a bias, after those of a matrix product."""
_CONVERSION = "_to_copy"
"""Converts the operands of a weight gradient to fp32, on CPUs, where models are traced; CUDA needs none."""
_ATTENTIONS = {
    "_scaled_dot_product_flash_attention_for_cpu": (2, 0),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (5, 1),
}
"""Matrix products of each attention kernel, of which backward computes one anew (FlashAttention-2, section 3.1), and
the place of the queries among its inputs; keys follow."""
_MASKING = {"new_full", "triu", "arange", "sub", "mul", "_to_copy", "add"}
"""What makes the mask that attention is given on CPUs, with ALiBi if there is any; kernels for CUDA make a causal one
of their own."""
_COLLECTIVES = {
    "allreduce_": CollectiveKind.ALL_REDUCE,
    "_allgather_base_": CollectiveKind.ALL_GATHER,
    "_reduce_scatter_base_": CollectiveKind.REDUCE_SCATTER,
}
_BY_SEQUENCE = 3
"""Dimensions of a GPU's tokens where each sequence is moved by itself: [batch, tokens, hidden]."""
_TELLING = ("loss", "embedding", "norm", "post_norm", "rope", "heads", "activation", "qk_norm", "residual", "attention")
"""What a group of memory-bound operators is named after: the first of these that is in it. Others join no group."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive kernels of one operator, or of a group of operators."""

    name: str
    kind: OperatorKind
    events: tuple[TracedEvent, ...]
    kernels: int


@dataclass(frozen=True, slots=True)
class CollectiveRun:
    """Consecutive collectives of one kind over one process group."""

    events: tuple[TracedEvent, ...]


def with_masks_made(events: Iterable[TracedEvent]) -> tuple[TracedEvent, ...]:
    """Leave out what makes the masks of attention, so that they are read as if they had been there before."""
    return tuple(e for e in events if e.kernel not in _MASKING or e.path.rpartition(".")[2] != OperatorKind.ATTENTION)


def program_of(events: Iterable[TracedEvent]) -> list[Run | CollectiveRun]:
    """Group kernels by operator, short memory-bound operators with their like, and collectives with theirs."""
    program: list[Run | CollectiveRun] = []
    for (_, collective), consecutive in itertools.groupby(events, key=lambda e: (e.path, e.axis and e.kernel)):
        for item in [CollectiveRun(tuple(consecutive))] if collective else _runs(tuple(consecutive)):
            joined = _joined(program[-1], item) if program else None
            program[-1:] = [joined] if joined else [*program[-1:], item]
    return program


def operator_of(run: Run, trace_reads: Counter[int], lasting: frozenset[int]) -> Operator:
    """Measure `run`.

    Args:
        run: what to measure.
        trace_reads: how often each buffer is read in the whole trace, as `count_reads` gives it.
        lasting: buffers that outlive the trace.
    """
    entering = _entering(run.events)
    inside = count_reads(run.events)
    leaving = {
        (region.buffer, region.offset, region.size_bytes): region
        for event in run.events
        for region in event.writes
        if region.buffer in lasting or trace_reads[region.buffer] > inside[region.buffer]
    }
    shape, flops = _shape_and_flops(run, leaving.values())
    copies = _copies(run)
    return Operator(
        name=run.name,
        kind=run.kind,
        shape=shape,
        flops=flops,
        bytes_read=sum(region.size_bytes for region in (*entering, *_read_again(run.events))),
        bytes_written=sum(region.size_bytes for region in leaving.values()),
        kernels=run.kernels,
        copies=len(copies),
        copied_bytes=sum(region.size_bytes for event in copies for region in (*event.reads, *event.writes)),
    )


def collective_of(exchange: CollectiveRun) -> AnyCollective:
    """Return one collective in the place of consecutive ones."""
    first = exchange.events[0]
    collective = Collective(
        kind=_COLLECTIVES[first.kernel],
        group=first.axis,
        group_size=first.axis_size,
        message_bytes=sum(max(e.reads[0].size_bytes, e.writes[0].size_bytes) for e in exchange.events),
        fused=len(exchange.events),
    )
    sequences = _sequences(first)
    if sequences == 1:
        return collective
    return SequenceCollective(**{f.name: getattr(collective, f.name) for f in fields(collective)}, sequences=sequences)


def _sequences(event: TracedEvent) -> int:
    """Sequences whose tokens a collective moves each by itself; 1 where it has all in one message."""
    if event.axis != TENSOR_PARALLEL or _COLLECTIVES[event.kernel] is CollectiveKind.ALL_REDUCE:
        return 1
    shard = min(event.reads[0], event.writes[0], key=lambda region: region.size_bytes)
    return shard.shape[0] if len(shard.shape) == _BY_SEQUENCE else 1


def count_reads(events: Iterable[TracedEvent]) -> Counter[int]:
    """How often each buffer is read."""
    return Counter(region.buffer for event in events for region in event.reads)


def _runs(events: tuple[TracedEvent, ...]) -> list[Run]:
    """Split the consecutive kernels of one module; the backward of a matrix product is two operators."""
    name = events[0].path.rpartition(".")[2]
    products = [i for i, e in enumerate(events) if e.kernel in _MATMULS]
    if products and events[0].direction is Direction.BACKWARD:
        return _gradients(name, events, products)
    batched = [i for i, e in enumerate(events) if e.kernel == _BATCHED_MATMUL]
    if batched:
        return _batched(name, events, batched)
    attentions = sum(e.kernel in _ATTENTIONS for e in events)
    if attentions:
        forward = events[0].direction is Direction.FORWARD
        kind = OperatorKind.ATTENTION if forward else OperatorKind.ATTENTION_BACKWARD
        return [Run(name, kind, events, attentions)]
    return [Run(name, OperatorKind.GEMM if products else OperatorKind.MEMORY, events, 1)]


def _gradients(name: str, events: tuple[TracedEvent, ...], products: list[int]) -> list[Run]:
    """Gradients of a linear operator: of the input first, then of the weights, then of the bias."""
    _, second = products
    last = next((i for i in range(second, len(events)) if events[i].kernel == _SUM), len(events))
    while events[second - 1].kernel == _CONVERSION:
        second -= 1
    runs = [
        Run(f"{name}{INPUT_GRADIENT_SUFFIX}", OperatorKind.GEMM, events[:second], 1),
        Run(f"{name}{WEIGHT_GRADIENT_SUFFIX}", OperatorKind.GEMM, events[second:last], 1),
    ]
    bias = [Run(f"{name}{BIAS_GRADIENT_SUFFIX}", OperatorKind.MEMORY, events[last:], 1)] if last < len(events) else []
    return runs + bias


def _batched(name: str, events: tuple[TracedEvent, ...], products: list[int]) -> list[Run]:
    """Batched products, in backward one for each input; what puts the operands in order is a part of each."""
    if events[0].direction is Direction.FORWARD:
        return [Run(name, OperatorKind.GEMM, events, 1)]
    first, _ = products
    return [
        Run(f"{name}{INPUT_GRADIENT_SUFFIX}", OperatorKind.GEMM, part, 1)
        for part in (events[: first + 1], events[first + 1 :])
    ]


def _joined(before: Run | CollectiveRun, after: Run | CollectiveRun) -> Run | CollectiveRun | None:
    """The two as one group, or None if they do not belong together."""
    if isinstance(before, CollectiveRun) and isinstance(after, CollectiveRun):
        alike = (before.events[0].kernel, before.events[0].axis) == (after.events[0].kernel, after.events[0].axis)
        return CollectiveRun(before.events + after.events) if alike else None
    if isinstance(before, CollectiveRun) or isinstance(after, CollectiveRun):
        return None
    if {before.kind, after.kind} != {OperatorKind.MEMORY} or not {before.name, after.name} <= set(_TELLING):
        return None
    name = min(before.name, after.name, key=_TELLING.index)
    return replace(before, name=name, events=before.events + after.events, kernels=before.kernels + after.kernels)


def _read_again(events: Sequence[TracedEvent]) -> list[Region]:
    """Regions that a fused implementation reads twice: the gradient of an embedding with learned positions.

    It is added to rows of tokens, by id, and to rows of positions, summed over the sequences: two orders, two kernels.
    """
    if not any(event.kernel == _INDEX_ADD for event in events):
        return []
    return [region for event in events if event.kernel == _SUM for region in event.reads]


def _entering(events: Sequence[TracedEvent]) -> list[Region]:
    """Regions that are read and were not written before by `events`, each once.

    Of a buffer that `events` make, nothing enters; of one that they change in place, all that is read before.
    """
    made: set[int] = set()
    touched: set[int] = set()
    changed: set[tuple[int, int, int]] = set()
    entering: dict[tuple[int, int, int], Region] = {}
    for event in events:
        for region in event.reads:
            place = (region.buffer, region.offset, region.size_bytes)
            if region.buffer not in made and place not in changed:
                entering[place] = region
        touched.update(region.buffer for region in event.reads)
        for region in event.writes:
            changed.add((region.buffer, region.offset, region.size_bytes))
            if region.buffer not in touched:  # nothing of it was there before
                made.add(region.buffer)
        touched.update(region.buffer for region in event.writes)
    return list(entering.values())


def _copies(run: Run) -> list[TracedEvent]:
    if run.kind not in (OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD):
        return []
    return [event for event in run.events if event.kernel not in _ATTENTIONS.keys() | _MASKING]


def _shape_and_flops(run: Run, leaving: Iterable[Region]) -> tuple[tuple[int, ...], int]:
    if run.kind is OperatorKind.GEMM:
        product = next(e for e in run.events if e.kernel in (*_MATMULS, _BATCHED_MATMUL))
        (*batch, m, k), (*_, n) = (region.shape for region in product.reads[-2:])
        m *= math.prod(batch)
        return (m, n, k), 2 * m * n * k
    if run.kind is OperatorKind.MEMORY:
        return max((region.shape for region in leaving), default=(), key=math.prod), 0
    return _attention([e for e in run.events if e.kernel in _ATTENTIONS])


def _attention(kernels: Sequence[TracedEvent]) -> tuple[tuple[int, ...], int]:
    """Shape and FLOPs of attention, whose queries may come in chunks, each the last tokens of the keys it sees.

    Of q queries and k keys, q k - q^2 / 2 pairs are not masked; a pair costs 2 d FLOPs a matrix product and head.
    """
    flops, query_length, key_length = 0, 0, 0
    for event in kernels:
        products, place = _ATTENTIONS[event.kernel]
        (batch, heads, queries, dimension), (_, shared_heads, keys, _) = (
            region.shape for region in event.reads[place : place + 2]
        )
        flops += products * batch * heads * dimension * (2 * queries * keys - queries**2)
        query_length, key_length = query_length + queries, max(key_length, keys)
    return (batch, heads, shared_heads, query_length, key_length, dimension), flops
