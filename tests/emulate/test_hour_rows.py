"""Rows of the table `hours`, from plans whose energies can be worked out by hand."""

import dataclasses

import pytest
from helpers.fleets import fleet, microbatch

from kareus.emulate.fleet import scale_of
from kareus.emulate.frontiers import MethodFrontier, method_frontiers
from kareus.emulate.rows import fleet_rows, hour_rows
from kareus.errors import ConfigError
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


def test_a_method_that_is_too_slow_leaves_out_no_other(problem):
    slow, fast = (
        MethodFrontier("slow", problem, (plan(20.0, 1e5),)),
        MethodFrontier("fast", problem, (plan(10.0, 2e5),)),
    )
    one = with_hours(iterations=600)
    for frontiers in ([slow, fast], [fast, slow]):
        assert {row["method"] for row in hour_rows(one, frontiers, PRICES)} == {"fast"}


def test_too_many_iterations_are_refused_with_the_most_possible(problem):
    slow, fast = (
        MethodFrontier("slow", problem, (plan(20.0, 1e5),)),
        MethodFrontier("fast", problem, (plan(10.0, 2e5),)),
    )
    with pytest.raises(ConfigError, match=r"iterations=721: .* can do 1 to 720 in the 2 hours of the series"):
        hour_rows(with_hours(iterations=721), [slow, fast], PRICES)
