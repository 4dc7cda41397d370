"""Names of a workload's partitions, predicted without tracing: Snakemake needs its jobs before any of them runs.

Extraction finds the partitions in the operator graph and refuses to go on if they are not these.
"""

from functools import cache
from typing import Protocol

from kareus.graph.interleave import block_segments, interleave, partition_of
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    CONTEXT_PARALLEL,
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
from kareus.model.config import Parallelism

_FORWARD, _BACKWARD = Direction.FORWARD, Direction.BACKWARD


def _named(kind: CollectiveKind, group: str, fused: int = 1) -> Collective:
    return Collective(kind=kind, group=group, group_size=1, message_bytes=0, fused=fused)


_REDUCE = _named(CollectiveKind.ALL_REDUCE, TENSOR_PARALLEL)
_GATHER_KEYS = _named(CollectiveKind.ALL_GATHER, CONTEXT_PARALLEL, 2)
_SCATTER_KEYS = _named(CollectiveKind.REDUCE_SCATTER, CONTEXT_PARALLEL, 2)
_GATHER = _named(CollectiveKind.ALL_GATHER, TENSOR_PARALLEL)
_GATHER_TWO = _named(CollectiveKind.ALL_GATHER, TENSOR_PARALLEL, 2)
_SCATTER = _named(CollectiveKind.REDUCE_SCATTER, TENSOR_PARALLEL)

Cycle = tuple[tuple[str, Collective | None], ...]
_NONE: tuple[Cycle, Cycle] = ((), ())
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


class Extracted(Protocol):
    """What decides a workload's partitions: a `Workload`, or the slice of it that extraction reads."""

    @property
    def parallelism(self) -> Parallelism:
        """Degrees of parallelism."""

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
    several = 2
    directions = instruction_directions(split_backward=workload.split_backward)
    names = [name for direction in directions for name in instruction_partitions(workload, direction, several)]
    return tuple(dict.fromkeys(names))


def instruction_partitions(workload: Extracted, direction: Direction, layers: int) -> tuple[str, ...]:
    """Names of the partitions of an overlapped instruction of a stage with `layers` blocks; none if it has none.

    The first segment of a block runs beside the last collective of the block before it, which a single block lacks.
    """
    degrees = workload.parallelism
    if not degrees.halves(workload.microbatch_size) or direction is Direction.WEIGHT_GRADIENT:
        return ()
    graph = _graph(degrees.tp > 1, degrees.token_shards > 1, degrees.cp > 1)
    segments = block_segments(graph, min(layers, 2), direction, recomputation=_repeated(workload.recomputation))
    pairs = interleave(segments)
    names = [partition_of(pair.segment, pair.collective).name for pair in pairs if pair.segment and pair.collective]
    return tuple(dict.fromkeys(names))


def collective_group_size(partition: str, parallelism: Parallelism) -> int:
    """Return the number of GPUs among which the collective of a partition runs."""
    kept_apart = partition.endswith(tuple(f"-{collective.label}" for collective in (_GATHER_KEYS, _SCATTER_KEYS)))
    return parallelism.cp if kept_apart else parallelism.tp


def _repeated(recomputation: Recomputation) -> Recomputation:
    """Return what of `recomputation` changes segments or their order; attention alone runs again within its own."""
    return recomputation if recomputation.repeats_blocks else Recomputation.NONE


@cache
def _graph(tensor: bool, sequence: bool, context: bool) -> BlockGraph:  # noqa: FBT001 - the key of `_CYCLES`
    """Return a graph of which only names, order and collectives mean something."""
    forward, backward = _CYCLES.get((tensor, sequence, context), _NONE)
    return BlockGraph(
        forward=_segments(forward, _FORWARD),
        backward=_segments(backward, _BACKWARD),
        embedding_forward=(),
        embedding_backward=(),
        head_forward=(),
        head_backward=(),
    )


def _segments(cycle: Cycle, direction: Direction) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            name=name,
            direction=direction,
            scope=Scope.BLOCK,
            operators=(_SOME,),
            collective=collective,
            independent_tail=0,
        )
        for name, collective in cycle
    )


_SOME = Operator(
    name=OperatorKind.MEMORY, kind=OperatorKind.MEMORY, shape=(), flops=0, bytes_read=0, bytes_written=0, kernels=0
)
"""An operator: a segment without any is none."""
