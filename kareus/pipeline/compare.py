"""The metrics by which methods are compared (paper, section 6.1, "Metrics"), on rows of the table `ITERATION`."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from kareus.errors import ArtifactError
from kareus.pareto import ROUNDING

THROUGHPUT_BASELINE = "sequential"
FRONTIER_BASELINE = "sequential+perseus"
OURS = "kareus"
"""What ablations are compared with."""
COSTS = ("time_s", "energy_j", "static_energy_j", "dynamic_energy_j")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodComparison:
    """A method compared: its plan of the least time with that of `sequential`, its frontier with the baseline's."""

    method: str
    time_s: float
    """Of its plan of the least time, as the energies."""
    energy_j: float
    """Of all GPUs, as the next two."""
    static_energy_j: float
    dynamic_energy_j: float
    time_reduction_percent: float | None
    """None for the baseline itself, as the next three."""
    energy_reduction_percent: float | None
    iso_time_energy_reduction_percent: float | None
    """Energy saved within the least time of the baseline; None also where no plan is that fast."""
    iso_energy_time_reduction_percent: float | None
    """Time saved within the least energy of the baseline; None also where no plan is that frugal."""
    time_increase_percent: float | None
    """Of its plan of the least time over that of `kareus`; None for `kareus` itself or without it, as the next."""
    energy_increase_percent: float | None


def compare_methods(iteration: pl.DataFrame) -> list[MethodComparison]:
    """Compare every method of an `ITERATION` table, in its order.

    Raises:
        ArtifactError: the table lacks one of the baselines.
    """
    return [_compared(iteration, method) for method in iteration["method"].unique(maintain_order=True)]


def with_reductions(plans: pl.DataFrame, iteration: pl.DataFrame) -> pl.DataFrame:
    """Append to `plans` what each saves against `sequential`, in percent."""
    baseline = max_throughput_plan(iteration, THROUGHPUT_BASELINE)
    return plans.with_columns(
        time_reduction_percent=_reduction_percent(pl.col("time_s"), baseline["time_s"]),
        energy_reduction_percent=_reduction_percent(pl.col("energy_j"), baseline["energy_j"]),
    )


def _compared(iteration: pl.DataFrame, method: str) -> MethodComparison:
    plans, baseline = _plans(iteration, method), _plans(iteration, FRONTIER_BASELINE)
    fastest, throughput = max_throughput_plan(iteration, method), max_throughput_plan(iteration, THROUGHPUT_BASELINE)
    ours = max_throughput_plan(iteration, OURS) if method != OURS and OURS in iteration["method"] else None
    is_first, is_frontier = method == THROUGHPUT_BASELINE, method == FRONTIER_BASELINE
    return MethodComparison(
        method=method,
        **{name: fastest[name] for name in COSTS},
        time_reduction_percent=None if is_first else _reduction_percent(fastest["time_s"], throughput["time_s"]),
        energy_reduction_percent=None if is_first else _reduction_percent(fastest["energy_j"], throughput["energy_j"]),
        iso_time_energy_reduction_percent=None
        if is_frontier
        else _iso_reduction(plans, baseline, "time_s", "energy_j"),
        iso_energy_time_reduction_percent=None
        if is_frontier
        else _iso_reduction(plans, baseline, "energy_j", "time_s"),
        time_increase_percent=None if ours is None else -_reduction_percent(fastest["time_s"], ours["time_s"]),
        energy_increase_percent=None if ours is None else -_reduction_percent(fastest["energy_j"], ours["energy_j"]),
    )


def _iso_reduction(plans: pl.DataFrame, baseline: pl.DataFrame, budget: str, cost: str) -> float | None:
    """Cost saved at the baseline's least budget, in percent; None where no plan keeps to it."""
    least = baseline.sort(budget, cost).row(0, named=True)
    within = plans.filter(pl.col(budget) <= least[budget] * (1 + ROUNDING))
    if within.is_empty():
        return None
    return float(_reduction_percent(within.sort(cost).row(0, named=True)[cost], least[cost]))


def max_throughput_plan(iteration: pl.DataFrame, method: str) -> dict[str, Any]:
    """Row of an `ITERATION` table: the plan of the least time of `method`, whatever its energy, as the paper compares.

    Raises:
        ArtifactError: it has none.
    """
    return _plans(iteration, method).sort("time_s", "energy_j").row(0, named=True)


def _plans(iteration: pl.DataFrame, method: str) -> pl.DataFrame:
    plans = iteration.filter(pl.col("method") == method)
    if plans.is_empty():
        raise ArtifactError(f"the iteration frontiers have no plan of '{method}' to compare with; rerun 'pipeline'.")
    return plans


def _reduction_percent(value: Any, baseline: float) -> Any:
    """Of a number or of a column."""
    return 100 * (1 - value / baseline)
