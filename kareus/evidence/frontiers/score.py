"""Errors of predictions against reference data, as published."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from kareus.evidence.frontiers.predict import EXECUTIONS, PlannedMethods, planned_costs, undominated
from kareus.evidence.frontiers.reference import ABLATIONS, FrontierRow, ReductionRow, by_curve
from kareus.evidence.frontiers.staged import Planner
from kareus.evidence.frontiers.subject import Subject, Subjects


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierError:
    """One row of a frontier file."""

    workload: str
    method: str
    point: int
    given_time_s: float
    given_energy_j: float
    predicted_time_s: float
    predicted_energy_j: float
    scored: bool
    """False if another row of its curve dominates it."""

    @property
    def time_error_pct(self) -> float:
        """Predicted less given."""
        return _error_pct(self.predicted_time_s, self.given_time_s)

    @property
    def energy_error_pct(self) -> float:
        """Predicted less given."""
        return _error_pct(self.predicted_energy_j, self.given_energy_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveError:
    """One method's frontier on one workload, planned by us, against the given one; percent, predicted less given."""

    workload: str
    method: str
    least_time_pct: float | None
    """None for `kareus`, whose given curve lists no schedule."""
    energy_there_pct: float | None
    energy_at_equal_time_mape_pct: float | None
    """Mean absolute error of energy at the given times that we can reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierScore:
    """Errors over a frontier file; MAPEs are unweighted means over the rows that count."""

    time_mape_pct: float | None
    energy_mape_pct: float | None
    least_time_mape_pct: float | None
    energy_there_mape_pct: float | None
    energy_at_equal_time_mape_pct: float | None
    kareus_energy_mape_pct: float | None
    """Energy of our frontier at the times of the rows of `kareus`; None without such rows."""
    rows: tuple[FrontierError, ...]
    curves: tuple[CurveError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionError:
    """One cell of a reduction file."""

    table: str
    workload: str
    metric: str
    method: str
    given_pct: float
    predicted_pct: float
    reached: bool
    """False where our method has no such point, which counts as a reduction of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionScore:
    """Errors over a reduction file, in points."""

    reduction_mae_points: float
    wrong_orders: tuple[str, ...]
    """Pairs of methods of one row whose given values differ by more than 2 points and whose predictions disagree."""
    rows: tuple[ReductionError, ...]


DECISIVE_POINTS = 2.0
"""Differences between methods that measurements can tell apart."""


@dataclass(frozen=True, slots=True)
class Order:
    """Two methods, or two variants of an ablation, whose order is given clearly."""

    place: str
    high: ReductionError
    low: ReductionError

    @property
    def margin_points(self) -> float:
        """How far apart they are predicted; the order is wrong unless this is positive."""
        return self.high.predicted_pct - self.low.predicted_pct


def score_frontiers(rows: Sequence[FrontierRow], subjects: Subjects) -> FrontierScore:
    """Score planned rows at their clocks, and our own plans along their curves."""
    listed = [row for row in rows if row.method in EXECUTIONS and row.clocks]
    costs = planned_costs(listed, subjects)
    errors = [
        FrontierError(
            workload=row.scenario.label,
            method=row.method,
            point=row.point,
            given_time_s=row.time_s,
            given_energy_j=row.energy_j,
            predicted_time_s=cost.time_s,
            predicted_energy_j=cost.energy_j,
            scored=bool(counts),
        )
        for row, cost, counts in zip(listed, costs, undominated(listed), strict=True)
    ]
    scored = [e for e in errors if e.scored]
    curves = _curve_errors(rows, subjects)
    baselines = [c for c in curves if c.method in EXECUTIONS]
    return FrontierScore(
        time_mape_pct=_mean_size([e.time_error_pct for e in scored]),
        energy_mape_pct=_mean_size([e.energy_error_pct for e in scored]),
        least_time_mape_pct=_mean_size([c.least_time_pct for c in baselines]),
        energy_there_mape_pct=_mean_size([c.energy_there_pct for c in baselines]),
        energy_at_equal_time_mape_pct=_mean_size([c.energy_at_equal_time_mape_pct for c in baselines]),
        kareus_energy_mape_pct=_mean_size([c.energy_at_equal_time_mape_pct for c in curves if c.method == "kareus"]),
        rows=tuple(errors),
        curves=tuple(curves),
    )


def score_reductions(rows: Sequence[ReductionRow], subjects: Subjects, planner: Planner) -> ReductionScore:
    """Score what plans save; each workload is planned once."""
    planned = {}
    errors = []
    for row in rows:
        if row.scenario not in planned:
            planned[row.scenario] = planner(subjects[row.scenario])
        predicted = planned[row.scenario](row)
        errors += [
            ReductionError(
                table=row.table,
                workload=row.scenario.label,
                metric=row.metric,
                method=method,
                given_pct=given,
                predicted_pct=predicted[method] or 0.0,
                reached=predicted[method] is not None,
            )
            for method, given in row.given_percent.items()
        ]
    wrong = [o for o in given_orders(errors) if o.margin_points <= 0]
    return ReductionScore(
        reduction_mae_points=fmean(abs(e.predicted_pct - e.given_pct) for e in errors),
        wrong_orders=tuple(f"{o.place}: {o.high.method} above {o.low.method}" for o in wrong),
        rows=tuple(errors),
    )


def given_orders(errors: Sequence[ReductionError]) -> list[Order]:
    """All orders that the given values decide, right or wrong.

    The variants of an ablation stand in tables of their own; their order counts as that of methods does.
    """
    groups: dict[tuple[str, str, str], list[ReductionError]] = defaultdict(list)
    for error in errors:
        variant = ABLATIONS.get(error.table)
        error_variant = replace(error, method=variant) if variant else error
        groups["ablation" if variant else error.table, error.workload, error.metric].append(error_variant)
    return [
        Order(", ".join(place), high, low)
        for place, error_variant in groups.items()
        for high in error_variant
        for low in error_variant
        if high.given_pct - low.given_pct > DECISIVE_POINTS
    ]


def _curve_errors(rows: Sequence[FrontierRow], subjects: Subjects) -> list[CurveError]:
    groups = by_curve([row for row, counts in zip(rows, undominated(rows), strict=True) if counts])
    scenarios = dict.fromkeys(scenario for scenario, _ in groups)  # each has a curve of every method
    planned = {scenario: PlannedMethods(subjects[scenario], with_transfers=False) for scenario in scenarios}
    return [_curve_error(planned[key[0]], curve_rows, subjects[key[0]]) for key, curve_rows in groups.items()]


def _curve_error(planned: PlannedMethods, rows: Sequence[FrontierRow], subject: Subject) -> CurveError:
    first = min(rows, key=lambda row: row.time_s)
    curve, gpus = planned.curve(first.method), subject.workload.parallelism.gpus_per_stage
    energies = [(curve.energy_j(row.time_s), row.energy_j) for row in rows]
    listed = first.method in EXECUTIONS
    fastest_j = (curve.energy_j(curve.fastest_s) or 0.0) / gpus
    return CurveError(
        workload=first.scenario.label,
        method=first.method,
        least_time_pct=_error_pct(curve.fastest_s, first.time_s) if listed else None,
        energy_there_pct=_error_pct(fastest_j, first.energy_j) if listed else None,
        energy_at_equal_time_mape_pct=_mean_size(
            [_error_pct(j / gpus, given) for j, given in energies if j is not None]
        ),
    )


def _error_pct(predicted: float, given: float) -> float:
    return 100 * (predicted / given - 1)


def _mean_size(errors_pct: Sequence[float | None]) -> float | None:
    sizes = [abs(e) for e in errors_pct if e is not None]
    return fmean(sizes) if sizes else None
