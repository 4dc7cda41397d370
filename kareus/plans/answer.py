"""The answer that a plan is: what it saves against the trainer's own execution, in one sentence."""

from dataclasses import dataclass

import polars as pl

from kareus.pareto import AS_FAST
from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE, max_throughput_plan
from kareus.plans.document import Plan
from kareus.plans.selectors import (
    LIMITED,
    OVER_TIME,
    Goal,
    Selector,
    absolute_limit,
    fastest_plan,
    measures_of,
)
from kareus.plans.units import common_scale, compared, less, scaled

PREDICTED = "predicted by the GPU model"
"""What answers are that nothing measured."""
BASELINE = "the trainer's own execution"
"""What the method `sequential` is, to people who do not know its name."""
AS_FAST_WORDS = f"least energy within {100 * AS_FAST:g} % of the least time"
"""What `fastest` means."""
LITTLE_SLOWER = 1.05
"""Of how much slower a plan is spoken where there is little to gain at full speed."""
FEW_SHARE, SAME_SHARE = 0.02, 0.001
"""Shares of time or energy below which a plan saves little, and nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan beside that of `sequential`, the plan of the least time where it has several; energies are of all GPUs."""

    selector: str
    method: str
    time_s: float
    energy_j: float
    baseline_time_s: float
    baseline_energy_j: float
    limit_w: float = 0.0
    """Power limit that the plan sets; 0 where it sets none."""

    @property
    def time_reduction_percent(self) -> float:
        """Time saved; negative where the plan is slower."""
        return 100 * (1 - self.time_s / self.baseline_time_s)

    @property
    def energy_reduction_percent(self) -> float:
        """Energy saved; negative where the plan uses more."""
        return 100 * (1 - self.energy_j / self.baseline_energy_j)

    @property
    def is_large(self) -> bool:
        """Whether the plan saves more than little."""
        return max(self.time_reduction_percent, self.energy_reduction_percent) >= 100 * FEW_SHARE

    @property
    def saved(self) -> str:
        """What the plan saves, in words."""
        time, energy = less(self.time_reduction_percent, "time"), less(self.energy_reduction_percent, "energy")
        return compared(time, energy, BASELINE)

    @property
    def savings(self) -> str:
        """What the plan saves and takes, in words."""
        printed, before = (
            f"{scaled(time_s, 's', digits=4)} and {scaled(energy_j, 'J', digits=4)}"
            for time_s, energy_j in (
                (self.time_s, self.energy_j),
                (self.baseline_time_s, self.baseline_energy_j),
            )
        )
        return f"{self.saved}: {printed} an iteration instead of {before}"

    def sentence(self, trainer: str = "") -> str:
        """Return the plan, what it saves and what it takes, in one sentence.

        Args:
            trainer: title of what runs it; empty to leave that out.
        """
        where = f", in {trainer}" if trainer else ""
        return f"{self.name}{meaning(self.selector, self.limit_w)}{where}: {self.savings}"

    @property
    def name(self) -> str:
        """The plan in words."""
        return f"plan {self.selector}{'' if self.method == OURS else f' of {self.method}'}"


def meaning(selector: str, limit_w: float = 0.0) -> str:
    """Return in brackets what a selector means whose name does not say it; empty for all others.

    The least time is that at the power limit which a plan sets, if it sets one.

    Example:
        >>> meaning("fastest", 651.0)
        ' (least energy within 0.3 % of the least time at a limit of 651 W)'
        >>> meaning("straggler=1.15x")
        " (within 1.15 times its method's least time)"
    """
    at_limit = f" at a limit of {limit_w:.4g} W" if limit_w else ""
    goal, _, limit = selector.partition("=")
    if goal == Goal.STRAGGLER:
        return f" (within {limit.removesuffix('x')} times its method's least time{at_limit})"
    return f" ({AS_FAST_WORDS}{at_limit})" if selector == Goal.FASTEST else ""


def answer_of(plan: Plan, iteration: pl.DataFrame) -> Answer:
    """Return the answer that `plan` is, beside the table `ITERATION` of its workload.

    Raises:
        ArtifactError: the table lacks the baseline.
    """
    baseline = max_throughput_plan(iteration, THROUGHPUT_BASELINE)
    return Answer(
        selector=plan.selector,
        method=plan.method,
        time_s=plan.prediction.time_s,
        energy_j=plan.prediction.energy_j,
        baseline_time_s=baseline["time_s"],
        baseline_energy_j=baseline["energy_j"],
        limit_w=plan.actuator.limit_w,
    )


def fastest_answer(plans: pl.DataFrame, method: str) -> Answer:
    """Return the answer that the plan `fastest` of a method is.

    Args:
        plans: a table of plans by method, such as `ITERATION`, or `FLEET` of one fleet.
        method: one of its methods.

    Raises:
        ArtifactError: the table lacks the baseline.
    """
    fastest = fastest_plan(plans.filter(pl.col("method") == method))
    baseline = max_throughput_plan(plans, THROUGHPUT_BASELINE)
    return Answer(
        selector=Goal.FASTEST,
        method=method,
        time_s=fastest["time_s"],
        energy_j=fastest["energy_j"],
        baseline_time_s=baseline["time_s"],
        baseline_energy_j=baseline["energy_j"],
    )


def little_to_gain(
    saved_time_share: float, saved_share: float, more_share: float, slower_saved_share: float
) -> str | None:
    """Return in words that full speed saves little of time and energy, and what a little more time saves, if it is so.

    Args:
        saved_time_share: of the time, by the fastest plan.
        saved_share: of the energy, by it.
        more_share: of time that a slower plan takes.
        slower_saved_share: of the energy, by that one.

    Example:
        >>> little_to_gain(0.0, 0.0002, 0.048, 0.047)
        'at full speed there is nothing to gain; 4.8 % slower saves 4.7 % of energy'
        >>> little_to_gain(0.08, 0.0002, 0.048, 0.047) is None  # 8 % less time are something
        True
    """
    if max(saved_time_share, saved_share) >= FEW_SHARE or slower_saved_share < saved_share + SAME_SHARE:
        return None
    shares = {"time": saved_time_share, "energy": saved_share}
    gained = " and ".join(f"{100 * share:.1f} % of {of}" for of, share in shares.items() if share >= SAME_SHARE)
    little = f"little to gain ({gained})" if gained else "nothing to gain"
    pace = "slower" if more_share > 0 else "faster"  # where the fastest plan takes less time than is compared with
    more = f"{100 * abs(more_share):.1f} % {pace} saves {100 * slower_saved_share:z.1f} % of energy"
    return f"at full speed there is {little}; {more}"


def no_limit(selector: Selector, plans: pl.DataFrame) -> str | None:
    """Return in words that the limit of a selector lies beyond the frontier; None where it limits something.

    Args:
        selector: the request.
        plans: rows of `ITERATION` of one method.
    """
    limit = absolute_limit(selector, plans)
    if limit is None or selector.goal is Goal.FASTEST or selector.goal in OVER_TIME:
        return None
    measure, unit = LIMITED[selector.goal]
    most = max(
        measures_of(row["time_s"], row["energy_j"])[measure] for row in plans.select("time_s", "energy_j").to_dicts()
    )
    if limit <= most:
        return None
    end, same = ("slowest", "min-energy") if measure == "time_s" else ("fastest", "straggler=1x")
    return (
        f"{selector.goal}: {_exact(limit, unit)} lies beyond the frontier, whose {end} plan has {_exact(most, unit)}; "
        f"any {selector.goal} from there on gives the plan of `{same}`"
    )


def beyond_reach(selector: Selector, plans: pl.DataFrame) -> str | None:
    """Return in words what of plans comes nearest to the limit of a selector that none keeps; None where one does.

    Args:
        selector: the request.
        plans: rows of `ITERATION` of one method.
    """
    limit = absolute_limit(selector, plans)
    if limit is None or selector.goal in OVER_TIME:
        return None
    measure, unit = LIMITED[selector.goal]
    least = min(
        measures_of(row["time_s"], row["energy_j"])[measure] for row in plans.select("time_s", "energy_j").to_dicts()
    )
    if least <= limit:
        return None
    nearest = {"time_s": "fastest plan takes", "energy_j": "least energy is", "power_w": "least power is"}[measure]
    return f"its {nearest} {scaled(least, unit, digits=4)}"


def _exact(value: float, unit: str) -> str:
    factor, scaled_unit = common_scale([value], unit)
    return f"{value / factor:.4g} {scaled_unit}"


def model_error_line(chips: str, error: str) -> str:
    """Return how far answers that nothing measured can be trusted: for which chips, and the model's error in words."""
    return f"[{PREDICTED}, for {chips}; error: {error}]"
