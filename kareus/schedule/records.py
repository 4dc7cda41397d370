"""Records of execution schedules: a candidate, the search space of a partition, and its choice in an instruction."""

from dataclasses import dataclass

from kareus.artifacts.records import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSchedule:
    """One candidate: how a partition may run."""

    frequency_mhz: int
    """SM clock."""
    sm_count: int
    """SMs given to the collective."""
    launch: str
    """Name of the operator beside which the collective is launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """All candidates of one partition, column by column; the number of a candidate is its position."""

    partition: str
    """Name of the partition."""
    frequency_mhz: tuple[int, ...]
    """SM clock of each candidate, as in `ExecutionSchedule`; so are the next two."""
    sm_count: tuple[int, ...]
    launch: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.launch)

    def __getitem__(self, candidate: int) -> ExecutionSchedule:
        """Return the candidate of a number."""
        return ExecutionSchedule(
            frequency_mhz=self.frequency_mhz[candidate],
            sm_count=self.sm_count[candidate],
            launch=self.launch[candidate],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one kind of partition runs within an instruction, whose clock all its partitions share.

    All occurrences of the partition in the instruction run alike (paper, section 4.4).
    """

    partition: str
    sm_count: Count
    """SMs given to the collective."""
    launch: str
    """Name of the operator beside which the collective is launched."""
