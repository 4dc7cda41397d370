"""Profiling in place: a running job is what is measured, at one clock after another, and nothing else of it changes.

Every rank appends what its instructions took to a shelf of its own below `swept/`, so that a killed job goes on where
it was. At the end of a round the ranks exchange what they measured; the first one estimates the microbatch frontiers,
writes them as the folder of a workload, from which `kareus plan --measured` plans, and decides whether they are known
well enough. When they are, the job goes on at the highest clock.

A visit in which a GPU was at another clock than the one that was set says nothing of it, and is made again; a clock
that is lost too often is left out. Where no clock is kept, the sweep ends and the job goes on at the driver's own.
"""

import logging
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from kareus.adapters.agreement import Agreement, together
from kareus.adapters.attribution import kind_powers_w
from kareus.adapters.choice import ChosenIteration
from kareus.adapters.estimates import frontier_error, measured_frontiers, measured_points
from kareus.adapters.layout import RankLayout, check_keys, check_workload_layout
from kareus.adapters.records import DRIVER, IterationRecord
from kareus.adapters.sweep import ClockSweep, SweptIteration
from kareus.adapters.tables import SWEPT
from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.ranges import within
from kareus.artifacts.records import content_hash
from kareus.artifacts.store import Shelf
from kareus.artifacts.tables import Row
from kareus.device.controller import check_clocks
from kareus.device.held_clock import ClockOutcome, outcome_of_readings
from kareus.device.protocol import Device
from kareus.errors import ConfigError, EngineError, refused_by_system
from kareus.gpu_model.waiting import waiting_power_w
from kareus.graph.instruction import InstructionKey, InstructionKind
from kareus.plans.locate import workload_path
from kareus.plans.measured import check_no_update
from kareus.plans.planned_folder import write_microbatch
from kareus.runtime.follower import PlannedStep, planned_steps
from kareus.training.recorder import identity
from kareus.workload.config import Workload

WARM_UP = 5
"""Iterations after each start that nothing is measured in: the job compiles, tunes and allocates."""
SETTLING = 2
"""Iterations after a round, in which the records of its last ones arrive."""
LEAST_VISITS = 2
"""Of every clock, below which noise cannot be told from the shape of a curve."""
MOST_LOSSES = 3
"""Visits of a clock that a rank's GPU did not keep, after which it is visited no more."""
SELECTOR = "profile"
"""Name of the choice in tables."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """What adapters take instead of a plan to profile the job in place. The default limits suit jobs of hours.

    Example:
        >>> from kareus.adapters.profiling import Profiling
        >>> profiling = Profiling(workload="workload.yaml", folder="profiled/mine", most_slowdown=0.02)
        >>> profiling.precision  # and then obey(schedule, profiling), as with the path of a plan
        0.01
    """

    workload: str | PathLike[str]
    """What the job trains, resolved, without the update: `workload.yaml`, or the folder of the workload."""
    folder: str | PathLike[str]
    """Where each rank keeps what it measured, to go on with it, and the first rank writes the frontiers."""
    most_slowdown: float = 0.05
    """Share of its time by which the sweep may slow the job down."""
    precision: float = 0.01
    """Largest relative standard error of times and energies on the frontiers with which the sweep ends."""
    most_visits: int = 5
    """Visits of each clock after which it ends in any case."""
    seed: int = 0
    """Of the orders in which clocks are visited."""

    def __post_init__(self) -> None:
        within(self, 1e-6, 1.0, "of times and energies", "precision")
        within(self, LEAST_VISITS, 10_000, "visits", "most_visits")

    def choice(
        self, layout: RankLayout, running: Sequence[InstructionKey], gpu: Device | None, agreement: Agreement
    ) -> "ProfileChoice":
        """Return what decides the clocks of a rank; every rank calls it.

        Args:
            layout: place of the rank.
            running: forwards and backwards of the rank in the order in which the trainer runs them.
            gpu: GPU of the rank; None on a CPU.
            agreement: of all ranks.

        Raises:
            EngineError: the job has another layout or order than the workload, or nothing measures its energy.
            ConfigError: the workload has an update, or says that it is measured on a simulated testbed.
            DeviceError: the GPU has not all clocks of the sweep.
            ArtifactError: the workload cannot be read.
        """
        path = workload_path(Path(self.workload))
        workload = load_slice(path, Workload)
        check_no_update(workload)
        check_workload_layout(workload, layout)
        check_keys([step.key for step in planned_steps(workload, None, layout.stage)], running)
        if gpu is None:
            raise EngineError("profile: this rank computes on a CPU, whose energy nothing measures; use a GPU.")
        measured = identity(gpu)
        if measured.kind != workload.testbed.kind:
            raise ConfigError(
                f"{path}: testbed.kind={workload.testbed.kind}: this job runs on a {gpu.name}; resolve the workload "
                "with testbed=cuda."
            )
        check_clocks(gpu, workload.gpu.search_frequencies.clocks_mhz)
        return ProfileChoice(
            self,
            workload=workload,
            layout=layout,
            running=running,
            # Without the GPU's UUID: a job that goes on may get others of the same kind.
            testbed=replace(measured, gpu=workload.gpu.name, detail=f"{gpu.name}, driver {gpu.driver}, in place"),
            agreement=agreement,
        )


class ProfileChoice:
    """Implements `ClockChoice` by a sweep of clocks."""

    def __init__(
        self,
        request: Profiling,
        *,
        workload: Workload,
        layout: RankLayout,
        running: Sequence[InstructionKey],
        testbed: TestbedIdentity,
        agreement: Agreement,
    ) -> None:
        """Profile one rank; nothing is read before the first iteration.

        Args:
            request: how to profile.
            workload: what the job trains, without the update.
            layout: place of the rank.
            running: forwards and backwards of the rank in the order in which the trainer runs them.
            testbed: the GPU.
            agreement: of all ranks.
        """
        self.workload_hash = content_hash(workload)
        """Of what the job trains."""
        self._request = request
        self._folder = folder = Path(request.folder)
        self._workload = workload
        self._layout = layout
        self._kinds = len({key.kind for key in running})
        """Kinds of instructions that this rank runs: the rows of a visit."""
        self._sweep = sweep = ClockSweep(
            clocks_mhz=workload.gpu.search_frequencies.clocks_mhz,
            most_slowdown=request.most_slowdown,
            seed=request.seed,
        )
        self._testbed = testbed
        self._agreement = agreement
        self._chosen = {
            clock: ChosenIteration(steps=tuple(PlannedStep(key, clock) for key in running), selector=SELECTOR)
            for clock in sweep.clocks_mhz
        }
        self._driven = ChosenIteration(steps=tuple(PlannedStep(key, None) for key in running), selector=DRIVER)
        """Iterations where no clock is kept."""
        provenance = Provenance(config_hash=self.workload_hash, testbed=testbed, seed=sweep.seed)
        self._shelf = Shelf(folder / "swept" / f"rank-{layout.rank:05d}", SWEPT, provenance)
        self._untold: list[Row] = []
        """Own rows that the other ranks do not know yet."""
        self._known: list[Row] = []
        """Rows of all ranks; kept by the first rank alone."""
        self._visits: Counter[int] = Counter()
        """Visits of each clock that this rank has rows of."""
        self._losses: Counter[int] = Counter()
        """Visits of each clock, since this start, in which this rank's GPU was at another."""
        self._kept_mhz = sweep.clocks_mhz
        """Clocks that are visited."""
        self._queue: deque[SweptIteration] = deque()
        self._asked: dict[int, SweptIteration] = {}
        """Iterations whose records have not arrived."""
        self._rounds = 0
        self._before_mhz: int | None = sweep.maximum_mhz
        """Clock of the iteration before the one whose record arrives next; None for the driver's own."""
        self._times_s: dict[bool, list[float]] = defaultdict(list)
        """Times of iterations, by whether they were measured."""
        self._is_done = False

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all."""
        return self._layout.rank == 0

    def iteration(self, number: int) -> ChosenIteration:
        """Return the clock of the next iteration; at the end of a round all ranks agree on how to go on."""
        if number == 0:
            together(self._agreement, self._open)
        if not self._queue and not self._is_done:
            self._begin_round()
        if not self._kept_mhz:
            return self._driven
        maximum = SweptIteration(frequency_mhz=self._sweep.maximum_mhz, is_measured=False)
        asked = self._queue.popleft() if self._queue else maximum
        if not self._is_done:
            self._asked[number] = asked
        return self._chosen[asked.frequency_mhz]

    def take_note(self, record: IterationRecord) -> None:
        """Keep what the instructions of a measured iteration took."""
        asked = self._asked.pop(record.iteration, None)
        if asked is None:
            return
        if record.selector == DRIVER:
            self._before_mhz = None
            return
        if record.iteration >= WARM_UP:
            self._times_s[asked.is_measured].append(record.time_s)
        if asked.is_measured:
            self._take_visit(record, asked.frequency_mhz)
        self._before_mhz = asked.frequency_mhz

    def _take_visit(self, record: IterationRecord, frequency_mhz: int) -> None:
        """Keep a visit of a clock, unless the GPU was at another."""
        outcome = outcome_of_readings(frequency_mhz, record.readings)
        if outcome is ClockOutcome.LOST:
            self._losses[frequency_mhz] += 1
            return
        rows = self._rows(record, frequency_mhz, is_power_limited=outcome is ClockOutcome.POWER_LIMITED)
        self._keep(rows)
        self._untold += rows
        self._visits[frequency_mhz] += bool(rows)

    def _keep(self, rows: Sequence[Row]) -> None:
        """Write rows down; where they cannot be, this start has them, and one after a kill measures them again."""
        try:
            with self._shelf as shelf:
                for row in rows:
                    shelf.append(row)
        except OSError as error:
            logger.warning("%s The job goes on; after a kill, its sweep begins anew.", refused_by_system(error))

    def _open(self) -> None:
        with self._shelf as shelf:
            rows = shelf.rows
        seen = Counter((row["frequency_mhz"], row["visit"]) for row in rows)
        whole = {visit for visit, kinds in seen.items() if kinds == self._kinds}  # a kill may leave a part of the last
        self._untold = [row for row in rows if (row["frequency_mhz"], row["visit"]) in whole]
        self._visits = Counter(clock for clock, _ in whole)
        between = SweptIteration(frequency_mhz=self._sweep.maximum_mhz, is_measured=False)
        self._queue = deque([between] * WARM_UP)
        if self.is_first:
            self._announce(sum(self._visits.values()))

    def _announce(self, resumed: int) -> None:
        sweep, clocks = self._sweep, self._sweep.clocks_mhz
        logger.info(
            "profile: %d clocks from %d to %d MHz, each visited %d to %d times, in rounds of %d iterations; the job "
            "runs at %d MHz between, and takes at most %.1f %% longer meanwhile%s",
            len(clocks),
            clocks[0],
            clocks[-1],
            LEAST_VISITS,
            self._request.most_visits,
            sweep.round_iterations + SETTLING,
            sweep.maximum_mhz,
            100 * sweep.slowdown_bound,
            f"; goes on after {resumed} visits that are in {self._folder}" if resumed else "",
        )

    def _begin_round(self) -> None:
        """Exchange what was measured, and end the sweep or begin the next round."""
        gathered = self._agreement.gather((Counter(self._visits), Counter(self._losses), self._untold))
        self._untold = []
        self._leave_out(clock for _, losses, _ in gathered for clock, lost in losses.items() if lost >= MOST_LOSSES)
        if not self._kept_mhz:
            self._end()
            return
        least = {clock: min(visits[clock] for visits, _, _ in gathered) for clock in self._kept_mhz}
        is_enough = False
        if self.is_first:
            self._known += [row for _, _, rows in gathered for row in rows]
            is_enough = self._is_enough(min(least.values()))
        if any(self._agreement.gather(is_enough)):
            self._end()
            return
        if self._rounds > 2 * self._request.most_visits:  # a round is a visit, unless ranks measure nothing
            logger.warning(
                "profile: after %d rounds %d MHz was measured %d times, and the sweep ends; was the energy of every "
                "rank's GPU measured, and were its clocks set?",
                self._rounds,
                min(least, key=least.__getitem__),
                min(least.values()),
            )
            self._end()
            return
        fewest = min(least.values())
        behind = [clock for clock, visits in least.items() if visits == fewest]
        between = SweptIteration(frequency_mhz=self._sweep.maximum_mhz, is_measured=False)
        self._queue = deque([*self._sweep.round(fewest, behind), *[between] * SETTLING])
        self._rounds += 1

    def _leave_out(self, clocks_mhz: Iterable[int]) -> None:
        """Visit these clocks no more, which ranks agree on."""
        lost = sorted(set(clocks_mhz) & set(self._kept_mhz))
        self._kept_mhz = tuple(clock for clock in self._kept_mhz if clock not in lost)
        if lost and self.is_first:
            logger.warning(
                "profile: %s MHz asked for and not kept in %d visits, and left out; see to the cooling, and to who "
                "else sets clocks of these GPUs.%s",
                ", ".join(map(str, lost)),
                MOST_LOSSES,
                "" if self._kept_mhz else " No clock is left: the sweep ends, at the driver's own clocks from here on.",
            )

    def _is_enough(self, visits: int) -> bool:
        """Write the frontiers as they are known by now, and return whether that is well enough."""
        if visits < LEAST_VISITS:
            return False
        points, gpu = measured_points(self._known), self._workload.gpu
        error = frontier_error(points, gpu)
        is_enough = error <= self._request.precision or visits >= self._request.most_visits
        frontiers = measured_frontiers(points, gpu)
        try:
            write_microbatch(WorkloadFolder(self._folder), self._workload, frontiers, self._testbed)
        except OSError as full:
            logger.warning("%s The job goes on; the frontiers were not written.", refused_by_system(full))
        logger.info(
            "profile: %d visits of each clock, frontiers known to %.2f %%, %s %% more time than at %d MHz%s",
            visits,
            100 * error,
            f"{100 * self._slowdown():z.1f}",
            self._sweep.maximum_mhz,
            f"; the sweep has ended, plan with kareus plan --measured {self._folder}" if is_enough else "",
        )
        return is_enough

    def _slowdown(self) -> float:
        """Return the share of its time that the sweep added since this start."""
        usual_s, measured_s = self._times_s[False], self._times_s[True]
        if not usual_s or not measured_s:
            return 0.0
        usual = statistics.median(usual_s)
        return sum(time_s - usual for time_s in measured_s) / (usual * (len(usual_s) + len(measured_s)))

    def _end(self) -> None:
        self._is_done = True
        self._asked.clear()
        self._known.clear()

    def _rows(self, record: IterationRecord, frequency_mhz: int, *, is_power_limited: bool) -> list[Row]:
        """Return the rows of one iteration; none if the power of one of its kinds of instructions is not known."""
        changes = frequency_mhz != self._before_mhz
        powers_w = kind_powers_w(
            record, waiting_power_w(self._workload.gpu, frequency_mhz), skipped=1 if changes else 0
        )
        if powers_w is None:
            return []
        # The clock changes amid the first instruction, which is left out where its kind has others.
        kept: dict[InstructionKind, list[float]] = defaultdict(list)
        for place, instruction in enumerate(record.instructions):
            if not (changes and place == 0 and self._layout.microbatches > 1):
                kept[instruction.key.kind].append(instruction.time_s)
        return [
            {
                "rank": self._layout.rank,
                **kind._asdict(),
                "frequency_mhz": frequency_mhz,
                "visit": self._visits[frequency_mhz],
                "microbatches": len(times_s),
                "time_s": statistics.fmean(times_s),
                "energy_j": statistics.fmean(times_s) * powers_w[kind],
                "is_power_limited": is_power_limited,
            }
            for kind, times_s in kept.items()
        ]
