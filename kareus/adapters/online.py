"""Following plans that change between iterations, on all ranks at the same one and without a restart.

Adapters take a `PlanFolder` instead of a plan. Between two iterations every rank tells the others, in one small gather
among hosts, how long its pipeline took and whether its clock was what it asked for; the first rank adds what the files
of conditions and prices say. All decide alike from what they hear (`governor`), and the first one writes down when
plans changed, and why.
"""

import datetime
import json
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from kareus.adapters.agreement import Agreement
from kareus.adapters.choice import ChosenIteration
from kareus.adapters.conditions import PricedHours, WatchedConditions, read_priced_hours
from kareus.adapters.governor import Decision, Governor, RankReport, costs_of
from kareus.adapters.layout import RankLayout, check_layout, check_order, steps_of
from kareus.adapters.recorder import next_iteration
from kareus.adapters.records import DRIVER, IterationRecord
from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.ranges import within
from kareus.artifacts.records import content_hash
from kareus.device.actuators import parse_actuator
from kareus.device.held_clock import HOT, POWER_LIMIT
from kareus.device.protocol import Device
from kareus.errors import ConfigError, DeviceError, EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import UPDATING
from kareus.launch.mesh import coordinate_of
from kareus.model.parallelism import Parallelism
from kareus.plans.actuated import actuated_method, actuator_at
from kareus.plans.build import frontier_plans
from kareus.plans.document import Plan
from kareus.plans.frontiers import read_frontiers
from kareus.plans.selectors import MOST_PRICE, check_costs_suffice, parse_selector
from kareus.workload.slices import PlanSlice

CHANGES = "changes.jsonl"
"""Name of the log in the output folder of an adapter: a line of JSON for each change of plans."""
MOST_EPOCH_S = 1e11
"""Later than any job; milliseconds since the epoch are beyond it."""
LEAST_OF_ASKED = 0.97
"""Share of the clock asked for below which the median instruction counts as a violation: two steps of 15 MHz."""
LEAST_READ = 3
"""Instructions whose clock was read, for a violation: it may be read as it changes. All passes of a shorter iteration
are enough; its update may be over before anything is read."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFolder:
    """What adapters take instead of a plan to change plans while they run.

    Example:
        >>> from kareus.adapters.online import PlanFolder
        >>> plans = PlanFolder(folder="results/llama3.2-3b_pp2-tp8_mbs8_seq4096_a100", select="power=3kW")
        >>> plans.method, plans.safe  # and then obey(schedule, plans), as with the path of a plan
        ('sequential+perseus', 'min-energy')
    """

    folder: str | PathLike[str]
    """Of a planned workload, as the workflow or `kareus plan --output` writes it; its frontier has the plans."""
    method: str = "sequential+perseus"
    """Whose frontier; trainers of others execute instructions as this method does."""
    select: str = "fastest"
    """Selector of the point that is followed where nothing else applies."""
    safe: str = "min-energy"
    """Selector of the point that is followed after a violation: the one of least power, at which chips cool."""
    conditions: str | PathLike[str] | None = None
    """JSON file with a power cap or a straggler that the job cannot see; read by the first rank."""
    prices: str | PathLike[str] | None = None
    """CSV file of prices by the hour, or what ENTSO-E exports; read by the first rank, once."""
    price_per_gpu_hour: float = 0.0
    """Price of a GPU for an hour, in the currency of `prices`: what a slower plan costs."""
    prices_began_s: float | None = None
    """When hour 0 of the prices began, seconds since the epoch; None for when the job starts, or, if it starts amid the
    dates of the file, as these say."""
    every: int = 1
    """Iterations from one agreement to the next: a gather among many ranks takes longer than among few."""
    actuator: str = "clocks"
    """What the machine lets be set, as of `kareus plan`: without `clocks` it is set once, and plans of the nearest
    method at default clocks are followed. A power limit is the one that the folder was planned at."""

    def __post_init__(self) -> None:
        parse_actuator(self.actuator)
        within(self, 1, 10_000, "iterations", "every")
        within(self, 0.0, MOST_PRICE, "a GPU and hour", "price_per_gpu_hour")
        if self.prices is None and self.price_per_gpu_hour > 0:
            raise ConfigError(
                f"price_per_gpu_hour={self.price_per_gpu_hour:g}: changes nothing without prices; give prices, or "
                "select='cost=<price>perkWh+<price>perGPUh'."
            )
        if self.prices_began_s is not None:
            within(self, 0.0, MOST_EPOCH_S, "s since the epoch", "prices_began_s")

    def choice(
        self,
        layout: RankLayout,
        running: Sequence[InstructionKey],
        gpu: Device | None,
        agreement: Agreement,
        output: Path | None = None,
    ) -> "OnlineChoice":
        """Return what decides the clocks of a rank; every rank calls it.

        Args:
            layout: place of the rank.
            running: forwards and backwards of the rank in the order in which the trainer runs them.
            gpu: GPU of the rank; None on a CPU.
            agreement: of all ranks.
            output: folder of the log of changes; None to write none.

        Raises:
            EngineError: the plans are of another layout or order than the job.
            KareusError: the folder, a selector, the conditions or the prices cannot be used.
        """
        usual, safe = parse_selector(self.select), parse_selector(self.safe)
        check_costs_suffice(usual)
        check_costs_suffice(safe)
        folder = WorkloadFolder(Path(self.folder))
        workload = load_slice(folder.config("plan"), PlanSlice).workload
        actuator = actuator_at(parse_actuator(self.actuator), workload)
        method = actuated_method(actuator, self.method, read_frontiers(folder, workload).methods)
        plans = tuple(replace(plan, actuator=actuator) for plan in frontier_plans(folder, method))
        check_layout(plans[0], layout)
        check_order(plans[0], layout.stage, running)
        parallelism = _for_job(workload.parallelism, layout.gpus)
        is_first = layout.rank == 0
        return OnlineChoice(
            plans,
            layout=layout,
            pipeline=coordinate_of(layout.rank, parallelism, layout.gpus).replica,
            governor=Governor(costs_of(plans, layout.gpus), parallelism.dp, usual, safe),
            agreement=agreement,
            throttle_reasons=gpu.throttle_reasons if gpu is not None else tuple,
            conditions=(
                WatchedConditions(Path(self.conditions), parallelism.dp)
                if is_first and self.conditions is not None
                else None
            ),
            prices=(
                read_priced_hours(Path(self.prices), self.price_per_gpu_hour, self.prices_began_s)
                if is_first and self.prices is not None
                else None
            ),
            log=None if output is None or not is_first else output / CHANGES,
            first=0 if output is None or not is_first else next_iteration(output, layout.rank),
            every=self.every,
        )


class OnlineChoice:
    """Implements `ClockChoice` by plans that change between iterations."""

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        layout: RankLayout,
        pipeline: int,
        governor: Governor,
        agreement: Agreement,
        throttle_reasons: Callable[[], tuple[str, ...]],
        conditions: WatchedConditions | None = None,
        prices: PricedHours | None = None,
        log: Path | None = None,
        first: int = 0,
        every: int = 1,
    ) -> None:
        """Choose among plans.

        Args:
            plans: of an iteration frontier, by rising time.
            layout: place of the rank.
            pipeline: number of its pipeline.
            governor: decides; every rank has one of its own.
            agreement: of all ranks.
            throttle_reasons: gives what holds the GPU's clock down, as its driver says.
            conditions: what the job is told from outside; of the first rank.
            prices: of energy; of the first rank.
            log: where changes are written; of the first rank.
            first: number in the log of this start's first iteration, as in the tables.
            every: iterations from one agreement to the next.
        """
        self.workload_hash = plans[0].workload_hash
        """Of what the plans are made for."""
        self.plans = plans
        self._passes_s = [plan.prediction.time_s - plan.update_s for plan in plans]
        self._chosen = [ChosenIteration(steps=steps_of(plan, layout), selector=plan.selector) for plan in plans]
        self._is_of_first_stage = layout.stage == 0
        self._pipeline = pipeline
        self._governor = governor
        self._agreement = agreement
        self._throttle_reasons = throttle_reasons
        self._conditions = conditions
        self._prices = prices
        self._says_changes = layout.rank == 0
        self._log = log
        self._first = first
        self._every = every
        self._report = RankReport(pipeline=pipeline, plans=_hash_of(plans))
        self._clock_violation = ""
        """Of the last iteration that is known."""
        self._ran: dict[int, int] = {}
        """Plans of iterations whose records have not arrived."""
        self._decision: Decision | None = None

    def iteration(self, number: int) -> ChosenIteration:
        """Agree with all ranks on the plans of the next iteration, and return this one's."""
        decision = self._decision
        if decision is None or number % self._every == 0:
            decision = self._agree(number)
        plan = self._ran[number] = decision.plans[self._pipeline]
        return self._chosen[plan]

    def _agree(self, number: int) -> Decision:
        decision = self._governor.decide(self._agreement.gather(self._told()))
        self._report = replace(self._report, plans="")  # compared once
        if self._decision is None or decision.plans != self._decision.plans:
            self._say(number, decision)
        self._decision = decision
        return decision

    def take_note(self, record: IterationRecord) -> None:
        """Learn how long the pipeline took, and what the clock did."""
        plan = self._ran.pop(record.iteration)
        self._clock_violation = ""
        if record.selector == DRIVER:  # says nothing of the plan
            return
        instructions = record.instructions
        passes = [instruction for instruction in instructions if instruction.key.direction not in UPDATING]
        if self._is_of_first_stage:  # where a pipeline begins and ends
            time_s = max(instruction.start_s + instruction.time_s for instruction in passes) - min(
                instruction.start_s for instruction in passes
            )
            self._report = replace(self._report, iteration=record.iteration, slowdown=time_s / self._passes_s[plan])
        seen = [
            (instruction.observed_mhz, instruction.frequency_mhz)
            for instruction in instructions
            if instruction.observed_mhz is not None and instruction.frequency_mhz is not None
        ]
        enough = len(seen) >= min(LEAST_READ, len(passes))
        if seen and enough and statistics.median(observed / asked for observed, asked in seen) < LEAST_OF_ASKED:
            observed, asked = min(seen, key=lambda pair: pair[0] / pair[1])
            self._clock_violation = f"its clock is {observed} MHz where {asked} MHz were asked for"

    def _told(self) -> RankReport:
        reasons = self._reasons()
        hot = [reason for reason in reasons if reason in HOT]
        violation = f"its driver reports {hot[0]}" if hot else self._clock_violation
        return replace(
            self._report,
            violation="" if POWER_LIMIT in reasons and not hot else violation,
            conditions=self._conditions.now() if self._conditions is not None else None,
            prices=self._prices.now() if self._prices is not None else None,
        )

    def _reasons(self) -> tuple[str, ...]:
        try:
            return self._throttle_reasons()
        except DeviceError as error:  # some virtual GPUs know no reasons; a training does not end for that
            logger.warning("%s Heat and power brakes change no plan of this rank.", error)
            self._throttle_reasons = tuple
            return ()

    def _say(self, number: int, decision: Decision) -> None:
        """Log a change, and write it down; what is written survives the process."""
        if not self._says_changes:
            return
        number += self._first
        logger.info("iteration %d: %s: plans %s", number, decision.reason, ", ".join(str(p) for p in decision.plans))
        if self._log is None:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        plans = [
            {
                "pipeline": pipeline,
                "plan": plan,
                "selector": self.plans[plan].selector,
                "time_s": self.plans[plan].prediction.time_s,
                "energy_j": self.plans[plan].prediction.energy_j,
            }
            for pipeline, plan in enumerate(decision.plans)
        ]
        line = {"iteration": number, "at": now, "reason": decision.reason, "plans": plans}
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
        except OSError as error:
            logger.warning("%s: cannot be written (%s). The training goes on without this line.", self._log, error)


def _for_job(planned: Parallelism, gpus: int) -> Parallelism:
    """Return the parallelism of a job that has the planned pipelines, and as many of them as its GPUs make.

    Raises:
        EngineError: they make no whole number of them.
    """
    of_pipeline = planned.gpus // planned.dp
    if gpus % of_pipeline:
        raise EngineError(
            f"job of {gpus} GPUs: a planned pipeline has {of_pipeline}; plan a workload with the layout of this job."
        )
    return replace(planned, dp=gpus // of_pipeline)


def _hash_of(plans: Sequence[Plan]) -> str:
    """Return a hash of what ranks must agree on: the times of plans, and every clock."""
    return content_hash([(plan.prediction.time_s, [i.frequency_mhz for _, i in plan.keyed]) for plan in plans])
