"""How one partition runs within an instruction, whose clock all its partitions share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """SMs and launch of one kind of partition; all its occurrences in an instruction run alike (paper, section 4.4)."""

    partition: str
    sm_count: int
    """SMs given to the collective."""
    launch: str
    """Name of the operator beside which the collective is launched."""
