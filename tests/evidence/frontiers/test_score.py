"""Errors on numbers made up by hand, with predictions that are made up too."""

from types import SimpleNamespace

import pytest
from helpers.references import ODD, SMALL, frontier_row, one_f_one_b_clocks, reduction_row

from kareus.evidence.frontiers import score
from kareus.evidence.frontiers.predict import PlannedCost
from kareus.evidence.frontiers.score import score_frontiers, score_reductions

GPUS = 8
SUBJECT = SimpleNamespace(workload=SimpleNamespace(parallelism=SimpleNamespace(gpus_per_stage=GPUS)))
SUBJECTS = {SMALL: SUBJECT, ODD: SUBJECT}
CLOCKS = one_f_one_b_clocks(SMALL, 1410)


class Curve:
    """Reaches times from `fastest_s` on, always with the same energy of one GPU of each stage."""

    def __init__(self, fastest_s, energy_j):
        self.fastest_s, self._energy_j = fastest_s, energy_j

    def energy_j(self, time_s):
        return None if time_s < self.fastest_s else GPUS * self._energy_j


@pytest.fixture
def predict(monkeypatch):
    """Sets what is predicted: (seconds, joules) of rows by point, and curves by method."""

    def set_to(costs, curves):
        monkeypatch.setattr(
            score, "planned_costs", lambda rows, _: [PlannedCost(*costs[row.point], balance=1.0) for row in rows]
        )
        monkeypatch.setattr(
            score, "PlannedMethods", lambda _, with_transfers: SimpleNamespace(curve=curves.__getitem__)
        )

    return set_to


def planner_of(by_row):
    """Predicts what methods save, by table and metric; everything by method."""
    return lambda _: lambda row: by_row[row.table, row.metric]


def listed(point, time_s, energy_j, **changes):
    return frontier_row(point=point, time_s=time_s, energy_j=energy_j, clocks=CLOCKS, **changes)


def test_the_mape_is_the_mean_size_of_the_errors_of_the_rows(predict):
    rows = [listed(0, 10.0, 200.0), listed(1, 20.0, 100.0)]
    predict({0: (11.0, 190.0), 1: (16.0, 103.0)}, {"sequential+perseus": Curve(1.0, 100.0)})
    found = score_frontiers(rows, SUBJECTS)
    assert found.time_mape_pct == pytest.approx((10 + 20) / 2)
    assert found.energy_mape_pct == pytest.approx((5 + 3) / 2)
    assert [(e.given_time_s, e.predicted_time_s, e.given_energy_j, e.predicted_energy_j) for e in found.rows] == [
        (10.0, 11.0, 200.0, 190.0),
        (20.0, 16.0, 100.0, 103.0),
    ]
    assert all(e.workload == SMALL.label and e.scored for e in found.rows)


def test_a_dominated_row_is_shown_and_not_scored(predict):
    rows = [listed(0, 10.0, 100.0), listed(1, 11.0, 101.0), listed(2, 11.0, 101.0, method="nanobatching+perseus")]
    curves = {"sequential+perseus": Curve(1.0, 100.0), "nanobatching+perseus": Curve(1.0, 101.0)}
    predict({0: (10.1, 100.0), 1: (99.0, 999.0), 2: (11.0, 101.0)}, curves)
    found = score_frontiers(rows, SUBJECTS)
    assert [e.scored for e in found.rows] == [True, False, True]
    assert found.time_mape_pct == pytest.approx(1 / 2)
    assert found.energy_mape_pct == 0


def test_rows_without_clocks_are_scored_along_their_curve_only(predict):
    rows = [frontier_row(method="kareus", time_s=time_s, energy_j=100.0 / time_s) for time_s in (1.0, 2.0, 4.0)]
    predict({}, {"kareus": Curve(1.5, 45.0)})
    found = score_frontiers(rows, SUBJECTS)
    assert found.rows == ()
    assert (found.time_mape_pct, found.energy_mape_pct, found.least_time_mape_pct) == (None, None, None)
    assert found.energy_at_equal_time_mape_pct is None
    assert found.kareus_energy_mape_pct == pytest.approx((10 + 80) / 2)  # 45 J against 50 J and 25 J; 1 s is too fast
    (curve,) = found.curves
    assert (curve.method, curve.least_time_pct, curve.energy_there_pct) == ("kareus", None, None)


def test_curves_are_compared_at_least_time_and_at_equal_times(predict):
    rows = [listed(0, 10.0, 200.0), listed(1, 12.0, 160.0), listed(2, 20.0, 100.0)]
    predict(dict.fromkeys(range(3), (10.0, 200.0)), {"sequential+perseus": Curve(11.0, 120.0)})
    found = score_frontiers(rows, SUBJECTS)
    (curve,) = found.curves
    assert curve.least_time_pct == pytest.approx(10)
    assert curve.energy_there_pct == pytest.approx(-40)
    assert curve.energy_at_equal_time_mape_pct == pytest.approx((25 + 20) / 2)
    assert found.least_time_mape_pct == pytest.approx(10)
    assert found.energy_there_mape_pct == pytest.approx(40)
    assert found.energy_at_equal_time_mape_pct == pytest.approx(22.5)
    assert found.kareus_energy_mape_pct is None


def test_curves_count_alike_however_many_rows_they_have(predict):
    rows = [listed(0, 10.0, 100.0), listed(1, 11.0, 99.0), listed(2, 12.0, 98.0)]
    rows += [listed(3, 10.0, 100.0, scenario=ODD)]
    predict(dict.fromkeys(range(4), (1.0, 1.0)), {"sequential+perseus": Curve(12.0, 100.0)})
    found = score_frontiers(rows, SUBJECTS)
    assert [c.workload for c in found.curves] == [SMALL.label, ODD.label]
    assert found.least_time_mape_pct == pytest.approx(20)
    assert found.energy_at_equal_time_mape_pct == pytest.approx(100 * (100 / 98 - 1))  # the other reaches nothing


TIME, ENERGY = "time_reduction_pct", "energy_reduction_pct"


def test_the_mae_is_over_all_cells_in_points():
    rows = [
        reduction_row(TIME, {"sequential+perseus": 1.0, "kareus": 12.0}),
        reduction_row(ENERGY, {"kareus": -3.0}),
    ]
    planner = planner_of(
        {
            ("max_throughput", TIME): {"sequential+perseus": 0.0, "kareus": 14.0},
            ("max_throughput", ENERGY): {"kareus": 3.0},
        }
    )
    found = score_reductions(rows, SUBJECTS, planner)
    assert found.reduction_mae_points == pytest.approx((1 + 2 + 6) / 3)
    assert found.wrong_orders == ()
    assert [(e.metric, e.method, e.given_pct, e.predicted_pct, e.reached) for e in found.rows] == [
        (TIME, "sequential+perseus", 1.0, 0.0, True),
        (TIME, "kareus", 12.0, 14.0, True),
        (ENERGY, "kareus", -3.0, 3.0, True),
    ]


def test_each_workload_is_planned_once():
    planned = []

    def planner(own):
        planned.append(own)
        return lambda row: {"kareus": 1.0}

    tables = ("max_throughput", "emulation", "frontier", "emulation")
    score_reductions([reduction_row(TIME, {"kareus": 0.0}, table) for table in tables], SUBJECTS, planner)
    assert planned == [SUBJECT]


def test_a_cell_that_is_not_reached_counts_as_no_reduction():
    planner = planner_of({("max_throughput", TIME): {"nanobatching+perseus": None, "kareus": 10.0}})
    found = score_reductions([reduction_row(TIME, {"nanobatching+perseus": 4.0, "kareus": 10.0})], SUBJECTS, planner)
    unreached, reached = found.rows
    assert (unreached.predicted_pct, unreached.reached) == (0.0, False)
    assert reached.reached
    assert found.reduction_mae_points == pytest.approx(2)


def test_a_prediction_of_no_reduction_is_reached():
    planner = planner_of({("max_throughput", TIME): {"kareus": 0.0}})
    (only,) = score_reductions([reduction_row(TIME, {"kareus": 1.0})], SUBJECTS, planner).rows
    assert only.reached


@pytest.mark.parametrize(
    ("given", "predicted", "wrong"),
    [
        ((5.0, 12.0), (8.0, 7.0), True),
        ((5.0, 12.0), (8.0, 8.0), True),
        ((5.0, 12.0), (8.0, 8.1), False),
        ((5.0, 7.0), (8.0, 7.0), False),  # 2 points apart: no order can be told
        ((5.0, 7.1), (8.0, 7.0), True),
        ((5.0, 12.0), (None, -1.0), True),  # counts as 0
    ],
)
def test_an_order_is_wrong_if_clear_and_predicted_otherwise(given, predicted, wrong):
    methods = ("nanobatching+perseus", "kareus")
    planner = planner_of({("max_throughput", TIME): dict(zip(methods, predicted, strict=True))})
    row = reduction_row(TIME, dict(zip(methods, given, strict=True)))
    said = f"max_throughput, {SMALL.label}, {TIME}: kareus above nanobatching+perseus"
    assert score_reductions([row], SUBJECTS, planner).wrong_orders == ((said,) if wrong else ())


def test_methods_of_different_rows_have_no_order():
    rows = [reduction_row(TIME, {"kareus": 20.0}), reduction_row(ENERGY, {"nanobatching+perseus": 1.0})]
    planner = planner_of(
        {("max_throughput", TIME): {"kareus": 1.0}, ("max_throughput", ENERGY): {"nanobatching+perseus": 20.0}}
    )
    assert score_reductions(rows, SUBJECTS, planner).wrong_orders == ()


def test_ablations_of_separate_tables_are_ordered_together():
    tables = ("ablation_without_frequency", "ablation_without_kernel_schedule", "ablation_nanobatching")
    given, predicted = (1.0, 8.0, 7.0), (9.0, 3.0, 10.0)
    metric = "time_increase_pct"
    planner = planner_of({(t, metric): {"kareus": pct} for t, pct in zip(tables, predicted, strict=True)})
    rows = [reduction_row(metric, {"kareus": pct}, table) for table, pct in zip(tables, given, strict=True)]
    assert score_reductions(rows, SUBJECTS, planner).wrong_orders == (
        f"ablation, {SMALL.label}, {metric}: kareus-without-kernel-schedule above kareus-without-frequency",
    )
