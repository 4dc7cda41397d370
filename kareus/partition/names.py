"""Names of a workload's partitions, predicted without tracing: Snakemake needs its jobs before any of them runs.

Extraction finds the partitions in the operator graph and refuses to go on if they are not these.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Protocol

from kareus.graph.interleave import partition_of, stages_with_all_pairs, staggered
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    CONTEXT_PARALLEL,
    EXPERT_PARALLEL,
    EXPERT_TENSOR_PARALLEL,
    TENSOR_PARALLEL,
    BlockGraph,
    Collective,
    CollectiveKind,
    Direction,
    Operator,
    OperatorKind,
    Scope,
    Segment,
    instruction_directions,
)
from kareus.model.experts import Experts
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import Replicated
from kareus.partition.experts import MLP, Routed, with_experts

_FORWARD, _BACKWARD = Direction.FORWARD, Direction.BACKWARD


def _named(kind: CollectiveKind, group: str, fused: int = 1) -> Collective:
    return Collective(kind=kind, group=group, group_size=1, message_bytes=0, fused=fused)


_REDUCE = _named(CollectiveKind.ALL_REDUCE, TENSOR_PARALLEL)
_GATHER_KEYS = _named(CollectiveKind.ALL_GATHER, CONTEXT_PARALLEL, 2)
_SCATTER_KEYS = _named(CollectiveKind.REDUCE_SCATTER, CONTEXT_PARALLEL, 2)
_GATHER = _named(CollectiveKind.ALL_GATHER, TENSOR_PARALLEL)
_GATHER_TWO = _named(CollectiveKind.ALL_GATHER, TENSOR_PARALLEL, 2)
_SCATTER = _named(CollectiveKind.REDUCE_SCATTER, TENSOR_PARALLEL)
_EXCHANGE = _named(CollectiveKind.ALL_TO_ALL, EXPERT_PARALLEL)
_GATHER_COPIES = _named(CollectiveKind.ALL_GATHER, EXPERT_TENSOR_PARALLEL)
_SCATTER_COPIES = _named(CollectiveKind.REDUCE_SCATTER, EXPERT_TENSOR_PARALLEL)

Cycle = tuple[tuple[str, Collective | None], ...]
_NONE: tuple[Cycle, Cycle] = ((("block", None),), (("block", None),))
_MLP: Cycle = (("norm.2", _GATHER), ("mlp", None), ("down", _SCATTER))
_MLP_BACKWARD: Cycle = (("norm", _GATHER_TWO), ("down", None), ("mlp", _SCATTER))
"""Segments of the MLP with sequence parallelism."""
_CYCLES: dict[tuple[bool, bool, bool], tuple[Cycle, Cycle]] = {
    (True, False, False): (
        (("attention", _REDUCE), ("mlp", _REDUCE)),
        (("mlp", _REDUCE), ("attention", _REDUCE)),
    ),
    (False, False, True): (
        (("block", _GATHER_KEYS),),
        (("mlp", _GATHER_KEYS), ("attention", _SCATTER_KEYS)),
    ),
    (True, False, True): (
        (("qkv", _GATHER_KEYS), ("attention", _REDUCE), ("mlp", _REDUCE)),
        (("mlp", _REDUCE), ("projection", _GATHER_KEYS), ("attention", _SCATTER_KEYS), ("qkv", _REDUCE)),
    ),
    (True, True, False): (
        (("norm", _GATHER), ("qkv", None), ("attention", _SCATTER), *_MLP),
        (*_MLP_BACKWARD, ("norm.2", _GATHER_TWO), ("attention", None), ("qkv", _SCATTER)),
    ),
    (True, True, True): (
        (("norm", _GATHER), ("qkv", _GATHER_KEYS), ("attention", _SCATTER), *_MLP),
        (
            *_MLP_BACKWARD,
            *(("norm.2", _GATHER_TWO), ("projection", _GATHER_KEYS), ("attention", _SCATTER_KEYS), ("qkv", _SCATTER)),
        ),
    ),
}
"""Segments of a block forward and backward, and the collectives that end them, by whether there is (tensor, sequence,
context) parallelism. The input gradients of a split backward have those of the whole one, weight gradients have
none."""

OperatorCycle = tuple[tuple[tuple[str, ...], Collective | None], ...]
_ATTENDED, _LED = ("attention", "projection", "norm.2"), ("norm", "qkv")
_CUT_MLP: OperatorCycle = ((("norm.2",), _GATHER), (MLP[:1], None), (MLP[1:], _SCATTER))
_CUT_MLP_BACKWARD: OperatorCycle = ((("norm",), _GATHER_TWO), (MLP[:0:-1], None), (MLP[:1], _SCATTER))
_OPERATORS: dict[tuple[bool, bool], tuple[OperatorCycle, OperatorCycle]] = {
    (False, False): (
        (((*_LED, *_ATTENDED, *MLP), None),),
        (((*MLP[::-1], "norm", "projection", "attention", "qkv", "norm.2"), None),),
    ),
    (False, True): (
        (((*_ATTENDED, *MLP, *_LED), _GATHER_KEYS),),
        ((("qkv", "norm.2", *MLP[::-1], "norm", "projection"), _GATHER_KEYS), (("attention",), _SCATTER_KEYS)),
    ),
    (True, False): (
        ((("norm",), _GATHER), (("qkv",), None), (_ATTENDED[:2], _SCATTER), *_CUT_MLP),
        (
            *_CUT_MLP_BACKWARD,
            *((("norm.2",), _GATHER_TWO), (("projection", "attention"), None), (("qkv",), _SCATTER)),
        ),
    ),
    (True, True): (
        ((("norm",), _GATHER), (("qkv",), _GATHER_KEYS), (_ATTENDED[:2], _SCATTER), *_CUT_MLP),
        (
            *(*_CUT_MLP_BACKWARD, (("norm.2",), _GATHER_TWO), (("projection",), _GATHER_KEYS)),
            *((("attention",), _SCATTER_KEYS), (("qkv",), _SCATTER)),
        ),
    ),
}
"""Operators that name the segments of a block, by whether there is (sequence, context) parallelism: what experts are
put into. With them, tensor parallelism has sequence parallelism."""


class Extracted(Replicated, Protocol):
    """What decides a workload's partitions: a `Workload`, or the slice of it that extraction reads."""

    @property
    def microbatch_size(self) -> int:
        """Sequences of a microbatch; an odd number cannot be halved into nanobatches."""

    @property
    def recomputation(self) -> Recomputation:
        """What a backward recomputes."""

    @property
    def split_backward(self) -> bool:
        """Whether a backward is two instructions, of input and of weight gradients."""


def expected_partitions(workload: Extracted) -> tuple[str, ...]:
    """Names of all kinds of partition: each segment beside the collective before it and beside its own."""
    directions = instruction_directions(split_backward=workload.split_backward)
    graph = skeleton(workload.parallelism, workload.model.experts)
    names = [
        name
        for direction in directions
        for layers, dense in stages_with_all_pairs(graph)
        for name in instruction_partitions(workload, direction, layers, dense)
    ]
    return tuple(dict.fromkeys(names))


def instruction_partitions(workload: Extracted, direction: Direction, layers: int, dense: int = 0) -> tuple[str, ...]:
    """Names of the partitions of an overlapped instruction of a stage with `layers` blocks; none if it has none.

    The first segment of a block runs beside the last collective of the block before it, which a single block lacks.
    `dense` of the blocks have none of the model's experts.
    """
    degrees = workload.parallelism
    if not degrees.halves(workload.microbatch_size) or direction is Direction.WEIGHT_GRADIENT:
        return ()
    graph, dense = skeleton(degrees, workload.model.experts), min(dense, 2)
    routed = min(layers - dense, 2) if dense < layers else 0
    repeated = _repeated(workload.recomputation)
    pairs = staggered(graph, routed + dense, direction, recomputation=repeated, dense=dense)
    names = [partition_of(pair.segment, pair.collective).name for pair in pairs if pair.segment and pair.collective]
    return tuple(dict.fromkeys(names))


def collective_group_size(partition: str, parallelism: Parallelism) -> int:
    """Return the number of GPUs among which the collective of a partition runs."""
    groups = {
        parallelism.cp: (_GATHER_KEYS, _SCATTER_KEYS),
        parallelism.ep: (_EXCHANGE,),
        parallelism.etp: (_GATHER_COPIES, _SCATTER_COPIES),
    }
    for size, collectives in groups.items():
        if partition.endswith(tuple(f"-{collective.label}" for collective in collectives)):
            return size
    return parallelism.tp


def _repeated(recomputation: Recomputation) -> Recomputation:
    """Return what of `recomputation` changes segments or their order; attention alone runs again within its own."""
    return recomputation if recomputation.repeats_blocks else Recomputation.NONE


@cache
def skeleton(parallelism: Parallelism, experts: Experts | None) -> BlockGraph:
    """Return a graph of which only names, order and collectives mean something.

    Args:
        parallelism: a layout.
        experts: of the model, if it has any.
    """
    sequence, context = parallelism.token_shards > 1, parallelism.cp > 1
    cycles = _CYCLES.get((parallelism.tp > 1, sequence, context), _NONE)
    dense = _graph(*([((_SOME,), name, c) for name, c in cycle] for cycle in cycles))
    if experts is None:
        return dense
    segments = _OPERATORS[sequence, context]
    plain = _graph(*([(tuple(map(_some, names)), "", c) for names, c in cycle] for cycle in segments))
    degrees = parallelism.ep, parallelism.etp
    sizes = Routed(
        **dict.fromkeys(("tokens", "copies", "rows", "hidden", "inner", "width", "kernels"), 1),
        groups=experts.count // parallelism.ep,
        adds_biases=False,  # by operators that no segment is named after
        experts=experts,
        ep=degrees[0],
        etp=degrees[1],
    )
    return with_experts(plain, dense if experts.dense_layers else None, sizes)


NamedSegments = Iterable[tuple[tuple[Operator, ...], str, Collective | None]]
"""Operators, name and collective of each segment."""


def _graph(forward: NamedSegments, backward: NamedSegments) -> BlockGraph:
    return BlockGraph(
        forward=_segments(forward, _FORWARD),
        backward=_segments(backward, _BACKWARD),
        embedding_forward=(),
        embedding_backward=(),
        head_forward=(),
        head_backward=(),
    )


def _segments(segments: NamedSegments, direction: Direction) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            name=name,
            direction=direction,
            scope=Scope.BLOCK,
            operators=operators,
            collective=collective,
            independent_tail=0,
        )
        for operators, name, collective in segments
    )


def _some(name: str) -> Operator:
    return replace(_SOME, name=name)


_SOME = Operator(
    name=OperatorKind.MEMORY, kind=OperatorKind.MEMORY, shape=(), flops=0, bytes_read=0, bytes_written=0, kernels=0
)
"""An operator: a segment without any is none."""
