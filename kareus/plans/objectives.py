"""Plans that minimise one number made of time and energy: a cost, or their product."""

import dataclasses
import math

from kareus.pipeline.solver.frontier import PlannedIteration, cheapest_within
from kareus.pipeline.solver.problem import Problem
from kareus.plans.selectors import Prices
from kareus.plans.units import JOULES_PER_KWH, SECONDS_PER_HOUR

MOST_DEADLINES = 16
"""Deadlines that the search for the least product tries; with neighbouring plans 1 % apart, far below their gaps."""
DEAREST_J_PER_S = 1e12
"""Joules that a second of GPU time may be worth. Beyond, no plan is worth waiting for, and HiGHS cannot tell."""


def least_cost(problem: Problem, prices: Prices, gpus: int) -> PlannedIteration:
    """The plan of the least cost of energy and GPU time.

    A cost is linear in both, so that paying for GPU time is the same as drawing more power while waiting: the linear
    program, so charged, says when the iteration should end, and the plan is made for that time.

    Args:
        problem: what to plan.
        prices: of energy and GPU time.
        gpus: GPUs that are paid for.
    """
    joules_per_s = gpus * prices.per_gpu_hour / SECONDS_PER_HOUR * JOULES_PER_KWH
    if joules_per_s > DEAREST_J_PER_S * prices.per_kwh:
        return cheapest_within(problem, problem.cost([0] * len(problem.point_sets))[0])
    joules_per_s /= prices.per_kwh
    priced = dataclasses.replace(problem, waiting_power_w=problem.waiting_power_w + joules_per_s)
    return cheapest_within(problem, cheapest_within(priced, math.inf).time_s)


def least_product(problem: Problem, between_s: tuple[float, float]) -> PlannedIteration | None:
    """The plan of the least energy-delay product that a bounded search finds; None where there is no room to search.

    Args:
        problem: what to plan.
        between_s: deadlines to search between: the neighbours of the best plan that is known.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - takes 0.3 s, and no other selector needs it

    tried: list[PlannedIteration] = []

    def product_js(deadline_s: float) -> float:
        tried.append(cheapest_within(problem, deadline_s))
        return tried[-1].time_s * tried[-1].energy_j

    if between_s[0] < between_s[1]:
        minimize_scalar(product_js, bounds=between_s, method="bounded", options={"maxiter": MOST_DEADLINES})
    return min(tried, key=lambda plan: plan.time_s * plan.energy_j, default=None)
