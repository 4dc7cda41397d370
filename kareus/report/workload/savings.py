"""Savings of methods and chosen plans, with standard errors from measurement noise."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from kareus.artifacts.records import to_plain
from kareus.pipeline.compare import THROUGHPUT_BASELINE, MethodComparison, compare_methods
from kareus.pipeline.methods import point_method
from kareus.pipeline.spread import SavingsErrors, Spread, deviation, savings_errors
from kareus.plans.document import Plan

ERRORS_NOTE = "\u00b1: noise of measuring alone (one standard error); the errors of a GPU model come on top"


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Savings of one method."""

    compared: MethodComparison
    errors: SavingsErrors

    @property
    def row(self) -> dict[str, Any]:
        """Row of the table `SAVINGS`; no error is given of a figure that there is not."""
        costs: dict[str, Any] = to_plain(self.compared)
        errors: dict[str, Any] = to_plain(self.errors)
        kept = {n: None if costs[f"{n}_percent"] is None else error for n, error in errors.items()}
        return costs | {f"{name}_error_percent": error for name, error in kept.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanErrors:
    """Standard errors, in points of percent, of what a plan saves against the fastest of `sequential`."""

    time_reduction: float | None = None
    energy_reduction: float | None = None


def compared_savings(iteration: pl.DataFrame, spread: Spread) -> list[Savings]:
    """Compare every method of an `ITERATION` table, in its order."""
    errors = savings_errors(spread, iteration)
    return [Savings(compared=row, errors=errors[row.method]) for row in compare_methods(iteration)]


def plan_errors(plan: Plan, microbatch: pl.DataFrame, spread: Spread) -> PlanErrors:
    """Return the errors of a plan; all None if points have no standard errors or are not in `microbatch`."""
    if spread.is_noise_free:
        return PlanErrors()
    candidates = microbatch.filter(pl.col("method") == point_method(plan.method))
    points = {_key(row["stage"], row): row["point"] for row in candidates.iter_rows(named=True)}
    keys = [
        _key(stage.stage, to_plain(i) | {"choices": i.partitions}) for stage in plan.stages for i in stage.instructions
    ]
    if any(key not in points for key in keys):
        return PlanErrors()
    times_s, energies_j = spread.plans(plan.method, [[points[key] for key in keys]])
    base_s, base_j = spread.fastest(THROUGHPUT_BASELINE)
    return PlanErrors(time_reduction=deviation(times_s[0] / base_s), energy_reduction=deviation(energies_j[0] / base_j))


def _key(stage: int, row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values that identify a point of one method among those of its stage."""
    choices = tuple(sorted(tuple(sorted(to_plain(choice).items())) for choice in row["choices"]))
    return stage, row["chunk"], row["direction"], row["execution"], row["frequency_mhz"], choices
