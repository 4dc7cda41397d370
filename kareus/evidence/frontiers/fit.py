"""Fitting the coefficients of a GPU to planned frontiers, and finding out how much of the fit carries over.

Least squares with a weak prior on every coefficient, in logarithms. Fits without one workload give held-out errors,
fits to resampled curves bootstrap intervals. `joint_fit` adds measured reductions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.coefficient_space import space_of, with_coefficients
from kareus.evidence.frontiers.predict import PlannedCost, planned_costs, undominated
from kareus.evidence.frontiers.reference import FrontierRow, Scenario, by_curve
from kareus.evidence.frontiers.subject import Subjects, on_gpu
from kareus.gpu_model.coefficients import COEFFICIENTS
from kareus.gpu_model.declarations import FitData, FitPrior
from kareus.gpu_model.gpu import Gpu


def _identified_by(data: FitData) -> dict[str, FitPrior]:
    return {
        name: coefficient.fit
        for name, coefficient in COEFFICIENTS.items()
        if coefficient.fit and coefficient.fit.data is data
    }


TO_FRONTIERS: Mapping[str, FitPrior] = _identified_by(FitData.FRONTIERS)
"""Coefficients that planned frontiers identify."""
TO_TABLES: Mapping[str, FitPrior] = _identified_by(FitData.REDUCTIONS)
"""Coefficients that planned frontiers of baselines do not identify; fitted to tables of measured reductions."""

ERROR_SCALE = 0.01
"""Relative error of a planned time or energy that weighs as much as one standard deviation of a prior."""
BALANCE = 0.975
"""Expected `PlannedCost.balance` of a planned row.

Planned clocks slow every stage into its slack, which would be a balance of 1; they are then rounded up by half a step
of 30 MHz on average, 1 %, and what curves fitted through the profiled points smooth away leaves about as much again.
"""
BALANCE_SCALE = 0.01
"""As `ERROR_SCALE`, of balances."""
FIRST_EVALUATIONS = 20
"""Most steps of a fit that starts from the numbers of the GPU's file."""
REFIT_EVALUATIONS = 5
"""Steps of a fit that starts from another one."""
HELD_OUT_EVALUATIONS = 10
"""Steps of a fit without one workload: leaving out a fifth of the rows moves it further than resampling does."""
SAMPLES = 20
"""Of the bootstrap."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients fitted to planned frontiers."""

    gpu: Gpu
    logarithms: Array
    """Of the coefficients in `TO_FRONTIERS`, in its order."""


def fit_frontiers(
    rows: Sequence[FrontierRow],
    subjects: Subjects,
    gpu: Gpu,
    start: Array | None = None,
    evaluations: int = FIRST_EVALUATIONS,
) -> Fit:
    """Fit `TO_FRONTIERS` to the rows that no other of their curve dominates.

    Args:
        rows: planned rows with listed clocks.
        subjects: their workloads.
        gpu: all other numbers.
        start: logarithms to start from, such as those of an earlier fit; by default those of `gpu`.
        evaluations: most steps of the optimiser.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - only fitting needs it

    kept = [row for row, counts in zip(rows, undominated(rows), strict=True) if counts]
    space = space_of(TO_FRONTIERS)

    def residuals(x: Array) -> Array:
        errors = _row_residuals(kept, planned_costs(kept, on_gpu(subjects, with_coefficients(gpu, space.values(x)))))
        return np.concatenate([errors, space.distances(x)])

    first = space.clipped(space.logarithms(gpu.coefficients) if start is None else start, 1e-9)
    bounds = space.lower, space.upper
    solved = least_squares(residuals, first, bounds=bounds, loss="soft_l1", max_nfev=evaluations)
    return Fit(with_coefficients(gpu, space.values(solved.x)), solved.x)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors on a workload whose rows were left out of the fit."""

    scenario: Scenario
    gpu: Gpu
    """Fitted to the others."""
    time_errors: Array
    """Relative, by row."""
    energy_errors: Array

    @property
    def time_mape_pct(self) -> float:
        """Mean absolute percentage error of time."""
        return 100 * float(np.abs(self.time_errors).mean())

    @property
    def energy_mape_pct(self) -> float:
        """Mean absolute percentage error of energy."""
        return 100 * float(np.abs(self.energy_errors).mean())


def held_out(rows: Sequence[FrontierRow], subjects: Subjects, fit: Fit) -> list[HeldOut]:
    """Fit to all workloads but one, for each of them, and predict that one."""
    errors = []
    for scenario in dict.fromkeys(row.scenario for row in rows):
        others = [row for row in rows if row.scenario != scenario]
        gpu = fit_frontiers(others, subjects, fit.gpu, fit.logarithms, HELD_OUT_EVALUATIONS).gpu
        scenario_rows = [row for row in rows if row.scenario == scenario]
        errors.append(HeldOut(scenario, gpu, *_relative_errors(scenario_rows, subjects, gpu)))
    return errors


def errors_pct(rows: Sequence[FrontierRow], subjects: Subjects, gpu: Gpu) -> tuple[float, float]:
    """Mean absolute percentage errors of time and energy over the rows that are not dominated."""
    time, energy = _relative_errors(rows, subjects, gpu)
    return 100 * float(np.abs(time).mean()), 100 * float(np.abs(energy).mean())


def bootstrap(rows: Sequence[FrontierRow], subjects: Subjects, fit: Fit, seed: int = 0) -> list[Gpu]:
    """Refit to resampled curves; whole curves are drawn, because the rows of one curve err together."""
    random = np.random.default_rng(seed)
    groups = list(by_curve(rows).values())
    gpus = []
    for _ in range(SAMPLES):
        drawn = [row for n in random.integers(0, len(groups), len(groups)) for row in groups[n]]
        gpus.append(fit_frontiers(drawn, subjects, fit.gpu, fit.logarithms, REFIT_EVALUATIONS).gpu)
    return gpus


def _row_residuals(rows: Sequence[FrontierRow], costs: Sequence[PlannedCost]) -> Array:
    """Time, energy and balance of each row, shape (3 rows,)."""
    residuals = [
        (
            np.log(cost.time_s / row.time_s) / ERROR_SCALE,
            np.log(cost.energy_j / row.energy_j) / ERROR_SCALE,
            np.log(cost.balance / BALANCE) / BALANCE_SCALE,
        )
        for row, cost in zip(rows, costs, strict=True)
    ]
    return np.array(residuals, dtype=np.float64).ravel()


def _relative_errors(rows: Sequence[FrontierRow], subjects: Subjects, gpu: Gpu) -> tuple[Array, Array]:
    """Of time and energy, by row that is not dominated."""
    kept = [row for row, counts in zip(rows, undominated(rows), strict=True) if counts]
    costs = planned_costs(kept, on_gpu(subjects, gpu))
    time = np.array([c.time_s / row.time_s - 1 for c, row in zip(costs, kept, strict=True)])
    return time, np.array([c.energy_j / row.energy_j - 1 for c, row in zip(costs, kept, strict=True)])
