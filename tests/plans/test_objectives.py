"""Costs and products of time and energy on a pipeline whose plans can all be listed."""

import dataclasses

import pytest
from helpers.chains import chain

from kareus.pipeline.solver.problem import PointSet, Problem, point_set
from kareus.plans.limits import least_cost, least_product
from kareus.plans.selectors import Prices

PER_JOULE = 3.6e6
"""Price of a kWh at which a joule costs 1."""
PER_GPU_SECOND = 3600.0
"""Price of a GPU hour at which a second of a GPU costs 1."""


def scaled(problem: Problem, factor: float) -> Problem:
    """The problem of a pipeline that takes `factor` times the energy."""
    sets = {id(points): points for points in problem.point_sets}
    scaled_sets = {
        key: PointSet(points.points, points.times_s, tuple(factor * energy_j for energy_j in points.energies_j))
        for key, points in sets.items()
    }
    return dataclasses.replace(
        problem,
        point_sets=tuple(scaled_sets[id(points)] for points in problem.point_sets),
        waiting_power_w=factor * problem.waiting_power_w,
    )


@pytest.mark.parametrize("factor", [1.0, 1e7])
@pytest.mark.parametrize(("per_second", "time_s"), [(0, 5), (19.5, 5), (20.5, 4), (69.5, 4), (70.5, 3), (1e4, 3)])
def test_a_second_is_bought_where_it_costs_less_than_its_energy(factor, per_second, time_s):
    """Of 5, 4 and 3 s the last second saves 40 J, the one before 140 J; two GPUs are paid for."""
    prices = Prices(PER_JOULE, factor * per_second * PER_GPU_SECOND)
    assert least_cost(scaled(chain(), factor), prices, 2).time_s == time_s


@pytest.mark.parametrize("between_s", [(3.0, 4.9), (3.5, 5.8), (3.0, 4.01)])
def test_the_least_product_is_found_between_its_neighbours(between_s):
    """3 s x 530 J, 4 s x 390 J and 5 s x 350 J: 1,590, 1,560 and 1,750 Js; the best may need a narrow search."""
    found = least_product(chain(), between_s)
    assert found is not None
    assert (found.time_s, found.energy_j) == (4, 390)


def test_the_least_product_of_many_is_not_the_least_energy():
    """Of 3 s to 6 s with 200 + 225 / (t - 2) joules the product has its least at 3.5 s: 1,225 Js."""
    points = [(n, 2 + n / 50, 200 + 225 / (1 + n / 50) - 100) for n in range(151)]
    forward, _ = chain().point_sets
    problem = dataclasses.replace(chain(), point_sets=(forward, point_set(points)), waiting_power_w=0.0)
    found = least_product(problem, (3.0, 6.0))
    assert found is not None
    assert found.time_s == pytest.approx(3.5, abs=0.1)
    assert found.time_s * found.energy_j == pytest.approx(1225, rel=1e-3)


def test_between_equal_deadlines_there_is_nothing_to_search():
    assert least_product(chain(), (4.0, 4.0)) is None
