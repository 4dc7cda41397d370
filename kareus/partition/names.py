"""Names of a workload's partitions, predicted without tracing: Snakemake needs its jobs before any of them runs.

Extraction finds the partitions in the operator graph and refuses to go on if they are not these.
"""

from typing import Protocol

from kareus.partition.graph import CollectiveKind, Direction
from kareus.workload.config import Parallelism

_AR, _AG, _RS = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
_FORWARD, _BACKWARD = Direction.FORWARD, Direction.BACKWARD

_CYCLES: dict[tuple[bool, bool], dict[Direction, tuple[tuple[str, CollectiveKind], ...]]] = {
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
"""Segments of a block and the collectives that end them, by whether there is (tensor, context) parallelism."""


class Extracted(Protocol):
    """What decides a workload's partitions: a `Workload`, or the slice of it that extraction reads."""

    @property
    def parallelism(self) -> Parallelism:
        """Degrees of parallelism."""

    @property
    def microbatch_size(self) -> int:
        """Sequences of a microbatch; an odd number cannot be halved into nanobatches."""

    @property
    def activation_checkpointing(self) -> bool:
        """Whether a backward recomputes its forward."""


def expected_partitions(workload: Extracted) -> tuple[str, ...]:
    """Names of all kinds of partition: each segment beside the collective before it and beside its own."""
    parallelism = workload.parallelism
    cycles = _CYCLES.get((parallelism.tp > 1, parallelism.cp > 1))
    if cycles is None or workload.microbatch_size % 2:
        return ()
    forward = [(_FORWARD, *step) for step in cycles[_FORWARD]]
    backward = [(_BACKWARD, *step) for step in cycles[_BACKWARD]]
    names: dict[str, None] = {}
    for cycle in (forward, backward):
        for (_, _, before), (direction, segment, own) in zip([cycle[-1], *cycle], cycle, strict=False):
            names.update({f"{direction}-{segment}-{collective}": None for collective in (before, own)})
    return tuple(names)
