"""The paper's two comparisons of iteration frontiers (section 6.1, "Metrics"), on rows of the table `ITERATION`."""

from dataclasses import dataclass

import polars as pl

from kareus.errors import ArtifactError

THROUGHPUT_BASELINE = "sequential"
FRONTIER_BASELINE = "sequential+perseus"
TOLERANCE = 1e-9
"""Share by which a plan may exceed a budget: two methods with the same fastest points sum them in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxThroughput:
    """A method's fastest plan against `sequential`."""

    method: str
    time_reduction_percent: float
    energy_reduction_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierImprovement:
    """A method's frontier against that of `sequential+perseus`."""

    method: str
    iso_time_energy_reduction_percent: float | None
    """Within the least time of the baseline; None where no plan is that fast."""
    iso_energy_time_reduction_percent: float | None
    """Within the least energy of the baseline; None where no plan is that frugal."""


def max_throughput(iteration: pl.DataFrame) -> list[MaxThroughput]:
    """Compare the fastest plan of every other method with that of `sequential`, in the table's order.

    Raises:
        ArtifactError: the table has no plan of `sequential`.
    """
    baseline = _fastest(_plans(iteration, THROUGHPUT_BASELINE))
    records = []
    for method in _others(iteration, THROUGHPUT_BASELINE):
        time_s, energy_j = _fastest(_plans(iteration, method))
        record = MaxThroughput(
            method=method,
            time_reduction_percent=_reduction_percent(time_s, baseline[0]),
            energy_reduction_percent=_reduction_percent(energy_j, baseline[1]),
        )
        records.append(record)
    return records


def frontier_improvement(iteration: pl.DataFrame) -> list[FrontierImprovement]:
    """Compare the plans of every other method with the frontier of `sequential+perseus`, in the table's order.

    Raises:
        ArtifactError: the table has no plan of `sequential+perseus`.
    """
    baseline = _plans(iteration, FRONTIER_BASELINE)
    fastest, frugal = _fastest(baseline), min(baseline, key=lambda plan: plan[1])
    records = []
    for method in _others(iteration, FRONTIER_BASELINE):
        plans = _plans(iteration, method)
        in_time = [energy_j for time_s, energy_j in plans if time_s <= fastest[0] * (1 + TOLERANCE)]
        in_energy = [time_s for time_s, energy_j in plans if energy_j <= frugal[1] * (1 + TOLERANCE)]
        record = FrontierImprovement(
            method=method,
            iso_time_energy_reduction_percent=_reduction_percent(min(in_time), fastest[1]) if in_time else None,
            iso_energy_time_reduction_percent=_reduction_percent(min(in_energy), frugal[0]) if in_energy else None,
        )
        records.append(record)
    return records


def _plans(iteration: pl.DataFrame, method: str) -> list[tuple[float, float]]:
    """Seconds and joules of each plan of `method`."""
    plans = iteration.filter(pl.col("method") == method).select("time_s", "energy_j").rows()
    if not plans:
        raise ArtifactError(f"the iteration frontiers have no plan of '{method}' to compare with; rerun 'pipeline'.")
    return plans


def _others(iteration: pl.DataFrame, baseline: str) -> list[str]:
    return [m for m in iteration["method"].unique(maintain_order=True) if m != baseline]


def _fastest(plans: list[tuple[float, float]]) -> tuple[float, float]:
    return min(plans)


def _reduction_percent(value: float, baseline: float) -> float:
    return 100 * (1 - value / baseline)
