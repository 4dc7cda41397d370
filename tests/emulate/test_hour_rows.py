"""Rows of the table `hours`, from plans whose energies can be worked out by hand."""

import dataclasses

import polars as pl
import pytest
from helpers.fleets import fleet, microbatch

from kareus.emulate.fleet import scale_of
from kareus.emulate.frontiers import MethodFrontier, method_frontiers
from kareus.emulate.rows import fleet_rows, hour_rows
from kareus.emulate.tables import HOURS
from kareus.pipeline.solver.frontier import PlannedIteration
from kareus.plans.series import HourlySeries, Unit

PRICES = HourlySeries(Unit.PRICE, (0.1, 0.5))


def with_hours(*overrides, iterations):
    """4 pipelines of 16 GPUs, which wait at 60 W each: 3.84 kW."""
    one = fleet(*overrides)
    emulation = dataclasses.replace(one.emulation, series="prices.csv", iterations=iterations)
    return dataclasses.replace(one, emulation=emulation)


def plan(time_s, energy_j):
    return PlannedIteration(time_s=time_s, energy_j=energy_j, deadline_s=time_s, lower_bound_j=energy_j, points=())


@pytest.fixture(scope="module")
def problem():
    return method_frontiers(fleet(), microbatch())[0].problem


def test_every_hour_has_its_iterations_energy_and_charge(problem):
    """Iterations of 10 s and 4 x 160 kJ draw 64 kW: 64 kWh in the first hour, half of that in the second."""
    one = with_hours(iterations=540)
    rows = hour_rows(one, [MethodFrontier("kareus", problem, (plan(10.0, 160e3),))], PRICES)
    assert [row["policy"] for row in rows] == ["hourly"] * 3 + ["steady"] * 3
    for own in (rows[:3], rows[3:]):
        assert [(row["hour"], row["plan"]) for row in own] == [(0, 0), (1, 0), (1, None)]
        assert [row["share"] for row in own] == pytest.approx([1, 0.5, 0.5])
        assert [row["iterations"] for row in own] == pytest.approx([360, 180, 0])
        assert [row["energy_j"] for row in own] == pytest.approx([64 * 3.6e6, 32 * 3.6e6, 1.92 * 3.6e6])
        assert [row["value"] for row in own] == [0.1, 0.5, 0.5]
        assert [row["charge"] for row in own] == pytest.approx([6.4, 16.0, 0.96])


def test_hours_cost_what_the_rows_of_the_fleet_do(problem):
    one = with_hours("emulation.gradient_reduction=exposed", iterations=400)
    frontiers = [MethodFrontier("kareus", problem, (plan(8.0, 200e3), plan(9.0, 160e3)))]
    assert scale_of(one).exposed_s > 0
    plans = fleet_rows(one, frontiers)
    for row in hour_rows(one, frontiers, PRICES):
        if row["plan"] is not None:
            assert row["energy_j"] == pytest.approx(row["iterations"] * plans[row["plan"]]["energy_j"])
            assert row["share"] * 3600 == pytest.approx(row["iterations"] * plans[row["plan"]]["time_s"])


@pytest.mark.parametrize(("most", "too_slow"), [(600, {"slow"}), (721, {"slow", "fast"})])
def test_a_method_that_is_too_slow_says_the_most_that_it_can_do(problem, most, too_slow):
    slow, fast = (
        MethodFrontier("slow", problem, (plan(20.0, 1e5),)),
        MethodFrontier("fast", problem, (plan(10.0, 2e5),)),
    )
    for frontiers in ([slow, fast], [fast, slow]):
        rows = HOURS.frame(hour_rows(with_hours(iterations=most), frontiers, PRICES))
        none = rows.filter(pl.col("policy") == "none")
        assert set(none["method"]) == too_slow
        assert dict(none.select("method", "iterations").iter_rows()) == {
            method: {"slow": 360, "fast": 720}[method] for method in too_slow
        }
        assert set(rows["method"]) == {"slow", "fast"}
        assert none["charge"].is_null().all()
