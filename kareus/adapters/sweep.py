"""Sweeping clocks over the iterations of a running job: which one is measured at which clock, and what that costs.

A whole iteration runs at one clock, on all stages. Each instruction is then measured at this clock, and no clock
changes amid what is measured. Rounds visit every clock once, in another order each time, so that drifts of the job
do not look like effects of a clock.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kareus.arrays import generator
from kareus.artifacts.ranges import within
from kareus.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptIteration:
    """The clock of one iteration of a round, and whether it is measured there."""

    frequency_mhz: int
    is_measured: bool
    """Whether it is one that the round is for; the others run at the highest clock between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSweep:
    """The clocks to visit, and how much they may slow the job down."""

    clocks_mhz: tuple[int, ...]
    """Clocks to measure, ascending; the job runs at the last of them otherwise."""
    most_slowdown: float
    """Share of the job's time that may be added, such as 0.05."""
    seed: int
    """Of the orders of the clocks."""

    def __post_init__(self) -> None:
        within(self, 0.001, 10.0, "of the job's time", "most_slowdown")
        if not self.clocks_mhz or list(self.clocks_mhz) != sorted(set(self.clocks_mhz)) or self.clocks_mhz[0] <= 0:
            raise ConfigError(f"clocks_mhz={list(self.clocks_mhz)}: must be one or more clocks in MHz, ascending.")

    @property
    def maximum_mhz(self) -> int:
        """The clock of iterations that are not measured."""
        return self.clocks_mhz[-1]

    @property
    def round_iterations(self) -> int:
        """Iterations of a round that visits all clocks."""
        return sum(1 + self._between(clock) for clock in self.clocks_mhz)

    @property
    def slowdown_bound(self) -> float:
        """Share of its time that a round adds at most: at a clock f an iteration takes at most maximum / f as long.

        Arithmetic slows down in proportion to the clock, everything else by less.
        """
        added = sum(self.maximum_mhz / clock - 1 for clock in self.clocks_mhz)
        return added / self.round_iterations

    def round(self, number: int, clocks_mhz: Iterable[int]) -> list[SweptIteration]:
        """Return the iterations of a round, in order.

        Before each clock come as many iterations at the highest one as keep the slow-down of both within its limit, so
        that it is kept at any time, not only over a round.

        Args:
            number: of the round, from 0; decides the order.
            clocks_mhz: those to visit: all, or what earlier rounds lack.
        """
        order = generator(self.seed, f"round {number} of a sweep").permutation(sorted(clocks_mhz)).tolist()
        between = SweptIteration(frequency_mhz=self.maximum_mhz, is_measured=False)
        iterations: list[SweptIteration] = []
        for clock in order:
            iterations += [between] * self._between(clock)
            iterations.append(SweptIteration(frequency_mhz=clock, is_measured=True))
        return iterations

    def _between(self, clock_mhz: int) -> int:
        """Iterations at the highest clock that make up for one at another."""
        return max(math.ceil((self.maximum_mhz / clock_mhz - 1) / self.most_slowdown - 1 - 1e-9), 0)
