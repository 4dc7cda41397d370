"""The choice of one clock for all steps of a job: a short sweep over its own steps, then the clock that suits a goal.

Every rank runs the same steps at the same clock. What the sweep has measured is put together over the ranks: a step
takes as long as its slowest rank, and the energy of all of them. Steps whose clock was not kept count for none: such a
clock is measured again, and left out if that does not help.
"""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from kareus.adapters.agreement import Agreement
from kareus.adapters.choice import ChosenIteration
from kareus.adapters.records import DRIVER, IterationRecord
from kareus.artifacts.ranges import within
from kareus.device.held_clock import ClockOutcome, outcome_of_readings
from kareus.errors import ConfigError
from kareus.graph.instruction import NO_MICROBATCH, InstructionKey
from kareus.graph.records import Direction
from kareus.plans.selectors import LIMITED, Selector, check_costs_suffice, measures_of, parse_selector, select
from kareus.runtime.follower import PlannedStep

STEP = InstructionKey(0, 0, NO_MICROBATCH, Direction.UPDATE)
"""Key of a whole step, which no instructions are told apart in."""
WARM_UP = 5
"""Steps that nothing is measured in: the job compiles, tunes and allocates."""
SETTLING = 4
"""Steps after the sweep in which the records of its last ones arrive; as many again if some have not."""
REPEATS = 2
"""Sweeps after the first one, of clocks that were not kept."""
SWEPT_CLOCKS = 8
"""Clocks of a sweep, unless they are given."""
LOWEST_SHARE = 0.5
"""Lowest clock of a sweep, as a share of the highest, unless clocks are given."""
USUAL = 1.1
"""Times that of the shortest step at a clock: a longer one had more to do, such as an evaluation or a checkpoint."""
SWEEP = "sweep"
"""Name of the choice in tables while the sweep lasts; afterwards it is the goal."""

logger = logging.getLogger(__name__)

StepCosts = Mapping[int, tuple[float, float]]
"""Seconds and joules of a step at each clock in MHz."""
SweptCosts = Mapping[int, tuple[float, float] | None]
"""The same on one rank; None at a clock that it never kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSweep:
    """What is measured before a clock is chosen: every clock once, the highest first."""

    clocks_mhz: tuple[int, ...]
    """Clocks to measure, descending; the job runs at the first of them otherwise."""
    steps_per_clock: int
    """Steps measured at each clock, after one in which the clock changes."""
    begin: int = WARM_UP
    """Number of its first step."""

    def __post_init__(self) -> None:
        within(self, 1, 10_000, "steps", "steps_per_clock")
        if not self.clocks_mhz or list(self.clocks_mhz) != sorted(set(self.clocks_mhz), reverse=True):
            raise ConfigError(f"clocks_mhz={list(self.clocks_mhz)}: must be one or more clocks in MHz, each once.")

    @property
    def end(self) -> int:
        """Number of the first step after the sweep."""
        return self.begin + len(self.clocks_mhz) * (1 + self.steps_per_clock)

    @property
    def most_slowdown(self) -> float:
        """Share of its time that the sweep adds at most: a step at a clock f takes at most highest / f as long."""
        return statistics.mean(self.clocks_mhz[0] / mhz for mhz in self.clocks_mhz) - 1

    def again(self, clocks_mhz: Sequence[int], begin: int) -> "StepSweep":
        """Return the sweep of some of the clocks, and of the highest one, which the job runs at otherwise."""
        return replace(self, clocks_mhz=tuple(dict.fromkeys((self.clocks_mhz[0], *clocks_mhz))), begin=begin)

    def place_of(self, step: int) -> tuple[int, bool]:
        """Return the clock of a step, and whether the step is measured."""
        place, turn = divmod(step - self.begin, 1 + self.steps_per_clock)
        if not 0 <= place < len(self.clocks_mhz):
            return self.clocks_mhz[0], False
        return self.clocks_mhz[place], turn > 0


class StepChoice:
    """Implements `ClockChoice` by a sweep, and then by the clock that suits a goal."""

    def __init__(self, goal: str, sweep: StepSweep, agreement: Agreement) -> None:
        """Choose for a goal.

        Args:
            goal: a selector, such as `min-energy`, `deadline=0.5s` or `power=4kW`; of steps, and of all GPUs.
            sweep: what is measured.
            agreement: of all ranks.

        Raises:
            ConfigError: the goal is no selector.
        """
        self._goal, self._selector = goal, parse_selector(goal)
        check_costs_suffice(self._selector)
        self._sweep, self._agreement = sweep, agreement
        self._records: dict[int, list[IterationRecord]] = {mhz: [] for mhz in sweep.clocks_mhz}
        self.chosen_mhz: int | None = None
        """Clock of all further steps; None until it is chosen, and where it is the driver's."""
        self._noted = -1
        """Last step that is known."""
        self._repeats = 0
        self._has_ended = False
        """Whether all further steps run at `chosen_mhz`."""

    def iteration(self, number: int) -> ChosenIteration:
        """Return the clock of a step; after the sweep all ranks agree on one."""
        late = number - self._sweep.end - SETTLING
        if not self._has_ended and late >= 0 and late % SETTLING == 0:
            self._choose(number)
        mhz = self.chosen_mhz if self._has_ended else self._sweep.place_of(number)[0]
        selector = SWEEP if not self._has_ended else DRIVER if mhz is None else self._goal
        return ChosenIteration(steps=(PlannedStep(STEP, mhz),), selector=selector)

    def take_note(self, record: IterationRecord) -> None:
        """Keep what a step of the sweep took."""
        self._noted = record.iteration
        mhz, is_measured = self._sweep.place_of(record.iteration)
        if is_measured:
            self._records[mhz].append(record)

    def _choose(self, number: int) -> None:
        """Choose a clock once every rank knows what all steps of the sweep took, or sweep again over what was lost.

        Args:
            number: of the step that is next.
        """
        gathered: list[SweptCosts | None] = self._agreement.gather(
            _costs(self._records) if self._noted >= self._sweep.end - 1 else None
        )
        over_ranks = [costs for costs in gathered if costs is not None]
        if len(over_ranks) < len(gathered):
            return
        lost_mhz = [mhz for mhz in self._records if any(costs.get(mhz, ()) is None for costs in over_ranks)]
        if lost_mhz and self._repeats < REPEATS:
            self._repeats += 1
            self._sweep = self._sweep.again(lost_mhz, number)
            logger.info("%s: %s not kept; measured again in %d steps", self._goal, _named(lost_mhz), SETTLING)
            return
        self._end(over_ranks, lost_mhz)

    def _end(self, over_ranks: Sequence[SweptCosts], lost_mhz: Sequence[int]) -> None:
        """Choose a clock for all further steps."""
        self._has_ended = True
        job = {mhz: cost for mhz in self._records if (cost := _over_ranks(mhz, over_ranks)) is not None}
        if job:
            if lost_mhz:
                logger.warning("%s: %s not kept, and left out; see to the cooling.", self._goal, _named(lost_mhz))
            self.chosen_mhz = _best(self._selector, job, len(over_ranks))
            _report(self._goal, job, self.chosen_mhz, is_power_limited=self._is_power_limited(self.chosen_mhz))
        elif lost_mhz:
            logger.warning(
                "%s: no clock was kept (%s asked for); the driver's own from here on. See to the cooling, and to who "
                "else sets clocks of this GPU.",
                self._goal,
                _named(lost_mhz),
            )
        else:
            self.chosen_mhz = self._sweep.clocks_mhz[0]
            why = "energies could not be read, or clocks not be set, on all ranks"
            logger.warning("%s: %s; %d MHz from here on.", self._goal, why, self.chosen_mhz)

    def _is_power_limited(self, mhz: int) -> bool:
        """Whether the power limit kept this rank below a clock in one of its steps."""
        return any(_outcome(record, mhz) is ClockOutcome.POWER_LIMITED for record in self._records[mhz])


def swept_clocks(supported_mhz: Sequence[int]) -> tuple[int, ...]:
    """Return the clocks of a sweep, descending: evenly spaced ones from the highest that a GPU has to half of it."""
    highest = max(supported_mhz)
    wanted = [highest * (1 - (1 - LOWEST_SHARE) * n / (SWEPT_CLOCKS - 1)) for n in range(SWEPT_CLOCKS)]
    nearest = {min(supported_mhz, key=lambda mhz: abs(mhz - mhz_wanted)) for mhz_wanted in wanted}
    return tuple(sorted(nearest, reverse=True))


def _outcome(record: IterationRecord, mhz: int) -> ClockOutcome:
    return outcome_of_readings(mhz, record.readings)


def _named(clocks_mhz: Sequence[int]) -> str:
    return f"{', '.join(map(str, clocks_mhz))} MHz {'was' if len(clocks_mhz) == 1 else 'were'}"


def _over_ranks(mhz: int, over_ranks: Sequence[SweptCosts]) -> tuple[float, float] | None:
    """Return what a step of all ranks takes at a clock; None if one of them does not know it."""
    costs = [cost for of_rank in over_ranks if (cost := of_rank.get(mhz)) is not None]
    if len(costs) < len(over_ranks):
        return None
    return max(time_s for time_s, _ in costs), sum(energy_j for _, energy_j in costs)


def _costs(records: Mapping[int, Sequence[IterationRecord]]) -> SweptCosts:
    """Return the median cost of a step at each clock, of steps of the mean number of tokens; empty without energy.

    Steps with a checkpoint or an evaluation in them are left out: they take longer than `USUAL` at their clock. So are
    steps that the driver's own clock ran or whose clock was not kept, and a clock that has no other.
    """
    at_clocks = {mhz: [record for record in of_clock if record.selector != DRIVER] for mhz, of_clock in records.items()}
    every = [record for of_clock in at_clocks.values() for record in of_clock]
    tokens = [record.tokens for record in every if record.tokens]
    size = statistics.mean(tokens) if len(tokens) == len(every) else None
    costs: dict[int, tuple[float, float] | None] = {}
    for mhz, set_to in at_clocks.items():
        kept = [record for record in set_to if _outcome(record, mhz) is not ClockOutcome.LOST]
        if not kept:
            costs |= {mhz: None} if set_to else {}
            continue
        measured = [(r.time_s * _share(r, size), r.energy_j * _share(r, size)) for r in kept if r.energy_j is not None]
        if not measured:
            return {}
        longest_s = USUAL * min(time_s for time_s, _ in measured)
        times_s, energies_j = zip(*(cost for cost in measured if cost[0] <= longest_s), strict=True)
        costs[mhz] = statistics.median(times_s), statistics.median(energies_j)
    return costs


def _share(record: IterationRecord, size: float | None) -> float:
    """Return what turns the cost of a step into that of a step of `size` tokens."""
    return 1.0 if size is None or not record.tokens else size / record.tokens


def _best(selector: Selector, job: StepCosts, gpus: int) -> int:
    """Return the clock that a selector asks for, or the nearest to its limit if none is within it."""
    clocks = list(job)
    try:
        frame = pl.DataFrame([job[mhz] for mhz in clocks], schema=["time_s", "energy_j"], orient="row")
        return clocks[select(selector, frame, gpus)]
    except ConfigError as error:
        limited, _ = LIMITED[selector.goal]
        logger.warning("%s The clock that comes nearest is taken.", error)
        return min(clocks, key=lambda mhz: measures_of(*job[mhz])[limited])


def _report(goal: str, job: StepCosts, chosen_mhz: int, *, is_power_limited: bool) -> None:
    fastest_mhz = max(job)
    (time_s, energy_j), (least_s, most_j) = job[chosen_mhz], job[fastest_mhz]
    logger.info(
        "%s: %d MHz from here on: %.4g s and %.4g J a step, %s %% time and %s %% energy against %d MHz%s",
        goal,
        chosen_mhz,
        time_s,
        energy_j,
        f"{100 * (time_s / least_s - 1):+z.1f}",
        f"{100 * (energy_j / most_j - 1):+z.1f}",
        fastest_mhz,
        "; the power limit keeps the GPU below that clock" if is_power_limited else "",
    )
