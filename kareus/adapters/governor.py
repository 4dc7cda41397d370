"""The decision which plan each pipeline of a job follows next, the same on every rank, from what all of them tell.

The plans are those of one iteration frontier. A price or the user's selector chooses the point, a power cap moves it to
a plan that draws less. Where a pipeline is slow, the others take the slowest plan that just meets it: this saves
energy and costs no time (the use case of Perseus). While clocks are not what they should be, all follow the safe plan.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from kareus.adapters.conditions import Conditions
from kareus.errors import ConfigError, EngineError
from kareus.plans.document import Plan
from kareus.plans.selectors import Goal, Prices, Selector, select

CONFIRMATIONS = 2
"""Iterations in a row that a pipeline must be slow in before others slow down; in one that is fast they speed up."""
LEAST_SLOWDOWN = 1.03
"""Slowdown from which on a pipeline counts as a straggler: below, it is noise, and saves hardly anything."""
SAME_SLOWDOWN = 0.02
"""Change of the slowdown of a straggler below which the others keep their plans."""
CLEAN_ITERATIONS = 20
"""Iterations without a violation after which the safe plan is left again."""
AT_TARGET = 1e-9
"""Share by which sums of floats may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What a rank tells all others between two iterations."""

    pipeline: int
    """Number of its pipeline (its data-parallel index)."""
    iteration: int = -1
    """Last iteration whose time it knows; -1 for none."""
    slowdown: float = 0.0
    """From its first to its last instruction, over the planned time; told by ranks of the first stage, else 0."""
    violation: str = ""
    """What is wrong with its clock, in words; empty if nothing is."""
    conditions: Conditions | None = None
    """What the job is told from outside; of the first rank."""
    prices: Prices | None = None
    """Of energy and GPU time at present; of the first rank."""
    plans: str = ""
    """Hash of the plans that it chooses from, which must be the same on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The plans of all pipelines, and why."""

    plans: tuple[int, ...]
    """By pipeline, the number of its plan on the frontier, by rising time."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCosts:
    """What the plans of a frontier cost, by rising time."""

    times_s: tuple[float, ...]
    passes_s: tuple[float, ...]
    """Of forwards and backwards, without the update of the weights, before which pipelines wait for each other."""
    energies_j: tuple[float, ...]
    """Of all GPUs."""
    gpus: int

    @property
    def frame(self) -> pl.DataFrame:
        """Rows as selectors read them."""
        return pl.DataFrame({"time_s": self.times_s, "energy_j": self.energies_j})


def costs_of(plans: Sequence[Plan], gpus: int) -> PlanCosts:
    """Return what plans cost a job of so many GPUs, which may have more or fewer replicas than was planned."""
    share = gpus / plans[0].gpus
    return PlanCosts(
        times_s=tuple(plan.prediction.time_s for plan in plans),
        passes_s=tuple(plan.prediction.time_s - plan.update_s for plan in plans),
        energies_j=tuple(share * plan.prediction.energy_j for plan in plans),
        gpus=gpus,
    )


@dataclass(slots=True)
class _Pipeline:
    """What is known of one pipeline."""

    iteration: int = -1
    slowdowns: deque[float] = field(default_factory=lambda: deque(maxlen=CONFIRMATIONS))

    @property
    def slowdown(self) -> float:
        """The least of the last ones: slow only if all are."""
        return min(self.slowdowns, default=1.0)


class Governor:
    """Decides between iterations. Its state follows from the reports alone, so that all ranks have the same."""

    def __init__(self, costs: PlanCosts, pipelines: int, selector: Selector, safe: Selector) -> None:
        """Decide among plans.

        Args:
            costs: of the plans of a frontier.
            pipelines: of the job (data-parallel degree).
            selector: the point that is followed where nothing else applies.
            safe: the point that is followed after a violation.

        Raises:
            ConfigError: no plan is within the limit of a selector.
        """
        self._costs = costs
        self._frame = costs.frame
        self._usual = select(selector, self._frame, costs.gpus)
        self._safe = select(safe, self._frame, costs.gpus)
        self._pipelines = [_Pipeline() for _ in range(pipelines)]
        self._slowdown = 1.0
        """Of the straggler that plans are chosen for."""
        self._clean = CLEAN_ITERATIONS
        self._violation = ""
        self._base: tuple[tuple[Conditions, Prices | None], int, str] | None = None
        """What the point was last chosen for, and the choice."""

    def decide(self, reports: Sequence[RankReport]) -> Decision:
        """Return the plans of the next iteration.

        Args:
            reports: of all ranks, by rank.

        Raises:
            EngineError: ranks have different plans to choose from.
        """
        if len({report.plans for report in reports}) > 1:
            raise EngineError(
                "plans: ranks read different ones from the folder of plans; give all ranks the same files."
            )
        self._take_note(reports)
        if self._clean < CLEAN_ITERATIONS:
            return Decision(plans=(self._safe,) * len(self._pipelines), reason=self._violation)
        conditions = reports[0].conditions or Conditions()
        base, reason = self._base_of(conditions, reports[0].prices)
        return self._met(base, reason, conditions)

    def _take_note(self, reports: Sequence[RankReport]) -> None:
        # By pipeline and iteration, the longest that a rank saw.
        latest: dict[int, dict[int, float]] = defaultdict(dict)
        for report in reports:
            seen = latest[report.pipeline]
            if report.slowdown > 0:
                seen[report.iteration] = max(seen.get(report.iteration, 0.0), report.slowdown)
        for number, pipeline in enumerate(self._pipelines):
            for iteration, slowdown in sorted(latest[number].items()):
                if iteration > pipeline.iteration:
                    pipeline.iteration = iteration
                    pipeline.slowdowns.append(slowdown)
        violations = [f"rank {rank}: {report.violation}" for rank, report in enumerate(reports) if report.violation]
        if violations:
            more = f" and {len(violations) - 1} more ranks" * (len(violations) > 1)
            self._clean, self._violation = 0, f"{violations[0]}{more}"
        else:
            self._clean += 1

    def _base_of(self, conditions: Conditions, prices: Prices | None) -> tuple[int, str]:
        """Return the plan of pipelines that no straggler holds up, and why it is that one."""
        asked = conditions, prices
        if self._base is None or self._base[0] != asked:
            self._base = (asked, *self._point(conditions.power_cap_w, prices))
        return self._base[1:]

    def _point(self, cap_w: float | None, prices: Prices | None) -> tuple[int, str]:
        base, reason = self._usual, "as selected"
        if prices is not None and (prices.per_kwh > 0 or prices.per_gpu_hour > 0):
            base = select(Selector(Goal.COST, prices=prices), self._frame, self._costs.gpus)
            reason = f"least cost at {prices.per_kwh:g} a kWh and {prices.per_gpu_hour:g} a GPU and hour"
        if cap_w is None:
            return base, reason
        try:
            within = select(Selector(Goal.POWER, limit=cap_w), self._frame, self._costs.gpus)
        except ConfigError:
            slowest = len(self._costs.times_s) - 1
            least_w = self._costs.energies_j[slowest] / self._costs.times_s[slowest]
            return slowest, f"power cap of {cap_w:g} W, which no plan keeps: this takes {least_w:.6g} W"
        return (within, f"power cap of {cap_w:g} W") if within > base else (base, reason)

    def _met(self, base: int, reason: str, conditions: Conditions) -> Decision:
        """Return the plans with which pipelines just meet the slowest of them."""
        slowdowns, outside = self._relative(), 1.0
        if (straggler := conditions.straggler) is not None:
            if straggler.pipeline is None:
                outside = straggler.slowdown
            elif straggler.pipeline < len(slowdowns):
                slowdowns[straggler.pipeline] = max(slowdowns[straggler.pipeline], straggler.slowdown)
        most = max(*slowdowns, outside)
        if most < LEAST_SLOWDOWN:
            self._slowdown = 1.0
        elif abs(most - self._slowdown) > SAME_SLOWDOWN:
            self._slowdown = most
        if self._slowdown == 1.0:
            return Decision(plans=(base,) * len(slowdowns), reason=reason)
        target_s = self._slowdown * self._costs.passes_s[base]
        chosen_plans = tuple(
            base if slowdown > self._slowdown - SAME_SLOWDOWN else self._slowest_within(target_s / slowdown, base)
            for slowdown in slowdowns
        )
        who = "a pipeline outside" if outside >= most else f"pipeline {slowdowns.index(max(slowdowns))}"
        return Decision(plans=chosen_plans, reason=f"{who} takes {self._slowdown:.3f} times as long")

    def _relative(self) -> list[float]:
        """Return by how much each pipeline is slower than the fastest; what slows all down is no straggler.

        In whole percents, so that noise does not change plans.
        """
        least = min(pipeline.slowdown for pipeline in self._pipelines)
        return [round(pipeline.slowdown / least, 2) for pipeline in self._pipelines]

    def _slowest_within(self, time_s: float, base: int) -> int:
        """Return the slowest plan whose forwards and backwards are within a time, and that is not before the base."""
        within = [n for n, own_s in enumerate(self._costs.passes_s) if own_s <= time_s * (1 + AT_TARGET)]
        return max(*within, base) if within else base
