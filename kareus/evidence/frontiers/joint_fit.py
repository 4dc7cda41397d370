"""Fitting all coefficients at once, to planned frontiers and to measured reductions.

What planned frontiers of baselines cannot tell (how tuned schedules differ from default ones, when the clock
fluctuates) shows in tables of measured reductions. The objective is what `validate` prints: the mean error of
reductions, those of frontiers with less weight, and what the orders of methods lack that the tables give clearly. So
reductions and orders alike are fitted; that they agree with the same tables afterwards proves nothing about others.
"""

from collections.abc import Sequence

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.coefficient_space import space_of, with_coefficients
from kareus.evidence.frontiers.fit import BALANCE, TO_FRONTIERS, TO_TABLES, Fit, fit_frontiers
from kareus.evidence.frontiers.predict import planned_costs
from kareus.evidence.frontiers.reference import FrontierRow, ReductionRow
from kareus.evidence.frontiers.score import FrontierScore, given_orders, score_frontiers, score_reductions
from kareus.evidence.frontiers.slp import Terms, minimise
from kareus.evidence.frontiers.staged import by_bounds
from kareus.evidence.frontiers.subject import Subjects, on_gpu
from kareus.gpu_model.gpu import Gpu

PRIORS = {**TO_FRONTIERS, **TO_TABLES}

FRONTIER_WEIGHT = 0.15
"""Of one per cent of each of the five mean errors of frontiers, relative to one point of mean error of reductions."""
BALANCE_WEIGHT = 0.05
"""Of one per cent of imbalance of the stages at planned clocks."""
ORDER_WEIGHT = 2.0
"""Of one point that a given order lacks."""
ORDER_POINTS = 0.4
"""By how much a given order should be predicted, so that it does not hang on what a campaign's search misses."""
PRIOR_WEIGHT = 0.005
"""Of one standard deviation: decides only what the data leave open."""
NOT_REACHED_PCT = 100.0
"""Error of a curve that reaches none of the given times."""
STEPS = 12


def fit_jointly(rows: Sequence[FrontierRow], tables: Sequence[ReductionRow], subjects: Subjects, gpu: Gpu) -> Fit:
    """Fit all coefficients, starting from those of `gpu` or from a fit to frontiers, whichever is better.

    Args:
        rows: planned rows with listed clocks.
        tables: measured reductions.
        subjects: workloads of both.
        gpu: all other numbers.
    """
    space = space_of(PRIORS)

    def terms(x: Array) -> Terms:
        measured = _terms(rows, tables, on_gpu(subjects, with_coefficients(gpu, space.values(x))))
        return Terms(np.concatenate([measured.errors, PRIOR_WEIGHT * space.distances(x)]), measured.margins)

    fitted = fit_frontiers(rows, subjects, gpu).gpu
    starts = [space.clipped(space.logarithms(guess.coefficients), 0.0) for guess in (gpu, fitted)]
    start = min(starts, key=lambda x: terms(x).objective)
    optimum = minimise(terms, start, space.lower, space.upper, STEPS)
    return Fit(with_coefficients(gpu, space.values(optimum)), optimum[: len(TO_FRONTIERS)])


def _terms(rows: Sequence[FrontierRow], tables: Sequence[ReductionRow], subjects: Subjects) -> Terms:
    reductions, frontiers = score_reductions(tables, subjects, by_bounds), score_frontiers(rows, subjects)
    kept = [row for row, error in zip(rows, frontiers.rows, strict=True) if error.scored]
    imbalances = [100 * np.log(cost.balance / BALANCE) for cost in planned_costs(kept, subjects)]
    weighed = [
        _mean([e.predicted_pct - e.given_pct for e in reductions.rows], 1.0),
        *(_mean(errors, FRONTIER_WEIGHT) for errors in _frontier_errors(frontiers)),
        _mean(imbalances, BALANCE_WEIGHT),
    ]
    margins = [o.margin_points - ORDER_POINTS for o in given_orders(reductions.rows)]
    return Terms(np.concatenate(weighed), ORDER_WEIGHT * np.array(margins))


def _frontier_errors(score: FrontierScore) -> list[list[float]]:
    scored = [e for e in score.rows if e.scored]
    curves = [(c.least_time_pct, c.energy_there_pct, c.energy_at_equal_time_mape_pct) for c in score.curves]
    reached = [[NOT_REACHED_PCT if cell is None else cell for cell in cells] for cells in zip(*curves, strict=True)]
    return [[e.time_error_pct for e in scored], [e.energy_error_pct for e in scored], *reached]


def _mean(errors: Sequence[float], weight: float) -> Array:
    """Terms whose sizes add up to the weighted mean size."""
    return weight * np.array(errors, dtype=np.float64) / len(errors)
