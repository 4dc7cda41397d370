"""Names of a workload's partitions, predicted without tracing: Snakemake needs its jobs before any of them runs.

Extraction finds the partitions in the operator graph and refuses to go on if they are not these.
"""

from typing import Protocol

from kareus.graph.recomputation import Recomputation
from kareus.graph.records import RECOMPUTING, CollectiveKind, Direction, instruction_directions
from kareus.model.config import Parallelism

_AR, _AG, _RS = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
_FORWARD, _BACKWARD = Direction.FORWARD, Direction.BACKWARD

Cycle = tuple[tuple[str, CollectiveKind], ...]
_CYCLES: dict[tuple[bool, bool], dict[Direction, Cycle]] = {
    (True, False): {
        _FORWARD: (("attention", _AR), ("mlp", _AR)),
        _BACKWARD: (("mlp", _AR), ("attention", _AR)),
    },
    (False, True): {
        _FORWARD: (("block", _AG),),
        _BACKWARD: (("mlp", _AG), ("attention", _RS)),
    },
    (True, True): {
        _FORWARD: (("qkv", _AG), ("attention", _AR), ("mlp", _AR)),
        _BACKWARD: (("mlp", _AR), ("projection", _AG), ("attention", _RS), ("qkv", _AR)),
    },
}
"""Segments of a block and the collectives that end them, by whether there is (tensor, context) parallelism. The input
gradients of a split backward have those of the whole one, weight gradients have none."""


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
    parallelism = workload.parallelism
    cycles = _CYCLES.get((parallelism.tp > 1, parallelism.cp > 1))
    if cycles is None or not parallelism.halves(workload.microbatch_size) or direction is Direction.WEIGHT_GRADIENT:
        return ()
    recomputes = direction in RECOMPUTING and workload.recomputation.repeats_blocks
    passes = (_FORWARD, direction) if recomputes else (direction,)
    blocks = min(layers, 2)
    if workload.recomputation is Recomputation.FULL:
        steps = [(d, *step) for d in passes for step in _cycle(cycles, d)] * blocks
    else:
        steps = [(d, *step) for d in passes for step in _cycle(cycles, d) * blocks]
    in_flight = [None, *(own for _, _, own in steps)]
    names = [
        f"{d}-{segment}-{collective}"
        for before, (d, segment, own) in zip(in_flight, steps, strict=False)
        for collective in (before, own)
        if collective is not None
    ]
    return tuple(dict.fromkeys(names))


def _cycle(cycles: dict[Direction, Cycle], direction: Direction) -> Cycle:
    return cycles[_BACKWARD if direction is Direction.INPUT_GRADIENT else direction]


def collective_group_size(partition: str, parallelism: Parallelism) -> int:
    """GPUs among which the collective of a partition runs: tensor parallelism all-reduces, context parallelism not."""
    return parallelism.tp if partition.endswith(f"-{_AR}") else parallelism.cp
