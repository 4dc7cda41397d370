"""Measured iterations compared with the predictions of their plans."""

from dataclasses import dataclass

import polars as pl

from kareus.errors import ArtifactError
from kareus.plans.selectors import fastest_plan

FASTEST = "fastest"
"""Selector of the plans that are compared: the one plan that every method has."""
WARMUP_ITERATIONS = 3
"""Left out of the means: libraries connect, allocators grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """The plan `fastest` of one method, as it ran; energies are of all GPUs.

    Times and energies are of whole iterations if their plans are, else up to the last backward.
    """

    method: str
    iterations: int
    """Number of iterations that the means are over."""
    predicted_time_s: float
    time_s: float
    predicted_energy_j: float
    energy_j: float | None
    """None where nothing measures it; likewise `energy_percent`."""
    time_percent: float
    """Difference from the prediction; negative if below it."""
    energy_percent: float | None


def compare_runs(iterations: pl.DataFrame, iteration: pl.DataFrame) -> list[RunComparison]:
    """Compare runs with predictions, in the order in which methods ran.

    Args:
        iterations: a table `ITERATIONS`.
        iteration: the table `ITERATION` that the plans are from.

    Raises:
        ArtifactError: a method ran that was not planned.
    """
    ran = iterations.filter((pl.col("selector") == FASTEST) & (pl.col("iteration") >= WARMUP_ITERATIONS))
    return [
        _compared(method, ran.filter(pl.col("method") == method), iteration)
        for method in ran["method"].unique(maintain_order=True)
    ]


def _compared(method: str, ran: pl.DataFrame, iteration: pl.DataFrame) -> RunComparison:
    planned = iteration.filter(pl.col("method") == method)
    if planned.is_empty():
        raise ArtifactError(f"'{method}' ran and was not planned; rerun 'end-to-end'.")
    predicted = fastest_plan(planned)
    part = "" if ran["includes_update"].all() else "pipeline_"
    totals = ran.group_by("iteration").agg(
        time_s=pl.col(f"{part}time_s").max(),
        energy_j=(pl.col(f"{part}energy_j") * pl.col("gpus")).sum(),
    )
    time_s = _mean(totals["time_s"])
    energy_j = None if ran[f"{part}energy_j"].null_count() else _mean(totals["energy_j"])
    return RunComparison(
        method=method,
        iterations=len(totals),
        predicted_time_s=predicted["time_s"],
        time_s=time_s,
        predicted_energy_j=predicted["energy_j"],
        energy_j=energy_j,
        time_percent=100 * (time_s / predicted["time_s"] - 1),
        energy_percent=None if energy_j is None else 100 * (energy_j / predicted["energy_j"] - 1),
    )


def _mean(values: pl.Series) -> float:
    return sum(map(float, values.sort())) / len(values)
