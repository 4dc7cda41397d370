"""Idle burn: GPUs that wait compute for nothing, so that the grid sees less of their waiting.

The least energy that does so is a linear program over the power that is burnt in each moment, which HiGHS solves. Only
GPUs that wait burn, each at most up to its power limit; work is neither slowed nor moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu
from kareus.plans.document import Plan
from kareus.plans.grid_power import WINDOW_S, GridPower, PowerSeries, grid_power, power_series
from kareus.plans.selectors import Goal, Selector

MOMENTS_A_WINDOW = 20
"""Moments of the second that the grid's mean is over."""
MOST_MOMENTS = 600
"""Of an iteration. Means are limited where a moment ends, and may exceed the limit a little between two."""
TIGHTENED = 4
"""How often a limit is tightened by what the means exceed it between moments."""
LIMIT_ROUNDING = 1e-6
"""Share of a limit that rounding may exceed it by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleBurn:
    """What is burnt in an iteration, and what the grid then sees."""

    energy_j: float
    series: PowerSeries
    """Power of all GPUs with it."""

    @property
    def seen(self) -> GridPower:
        """What the grid sees."""
        return grid_power(self.series)


def excess(selector: Selector, seen: GridPower) -> float:
    """Return by which share what the grid sees is beyond the limit of a selector; 0 or less where it keeps it."""
    assert selector.limit is not None
    match selector.goal:
        case Goal.RAMP:
            return seen.ramp_w_per_s / selector.limit - 1
        case Goal.FLOOR:
            return 1 - seen.least_w / selector.limit
        case _:
            return seen.swing / selector.limit - 1


def least_burn(plan: Plan, gpu: Gpu, selector: Selector) -> IdleBurn | None:
    """Return the least idle burn with which a plan keeps a limit on power over time; None where none does.

    Args:
        plan: what runs.
        gpu: that runs it.
        selector: `ramp`, `floor` or `swing`.
    """
    series = power_series(plan, gpu)
    if excess(selector, grid_power(series)) <= LIMIT_ROUNDING:
        return IdleBurn(energy_j=0.0, series=series)
    moments = min(max(int(np.ceil(MOMENTS_A_WINDOW * series.period_s / WINDOW_S)), 2 * MOMENTS_A_WINDOW), MOST_MOMENTS)
    edges_s = np.linspace(0, series.period_s, moments + 1)
    headroom = _headroom(plan, gpu)
    most_w = np.diff(np.append(headroom.energy_until_j(edges_s[:-1]), headroom.energy_j)) / np.diff(edges_s)
    asked = selector
    for _ in range(TIGHTENED):
        burnt_w = _burnt_w(series, edges_s, most_w, asked)
        if burnt_w is None:
            return None
        with_burn = series + PowerSeries(edges_s, burnt_w)
        beyond = excess(selector, grid_power(with_burn))
        if beyond <= LIMIT_ROUNDING:
            return IdleBurn(energy_j=with_burn.energy_j - series.energy_j, series=with_burn)
        assert asked.limit is not None
        tighter = asked.limit * (
            1 + beyond + LIMIT_ROUNDING if asked.goal is Goal.FLOOR else 1 / (1 + beyond + LIMIT_ROUNDING)
        )
        asked = Selector(asked.goal, tighter)
    return None


def _headroom(plan: Plan, gpu: Gpu) -> PowerSeries:
    """Return by how much all GPUs that wait are below their power limit."""
    gpus, end_s = plan.gpus // len(plan.stages), plan.prediction.time_s
    total = PowerSeries(np.array([0.0, end_s]), np.zeros(1))
    for stage in plan.stages:
        for wait in stage.waits(end_s, gpu):
            edges_s = np.unique([0.0, wait.from_s, min(wait.to_s, end_s), end_s])
            middles_s = (edges_s[1:] + edges_s[:-1]) / 2
            waits = (middles_s > wait.from_s) & (middles_s < wait.to_s)
            total += PowerSeries(edges_s, waits * gpus * (gpu.power_limit_w - wait.power_w))
    return total


def _burnt_w(series: PowerSeries, edges_s: Array, most_w: Array, selector: Selector) -> Array | None:
    """Return the least power to burn between edges so that means that end at an edge keep a limit, or None."""
    from scipy.optimize import linprog  # noqa: PLC0415 - only this needs it

    assert selector.limit is not None
    ends_s, lengths_s = edges_s[1:], np.diff(edges_s)
    shares = _window_shares(edges_s, ends_s)  # [ends, moments]
    seen_w = series.seen_w(ends_s)
    moments = len(ends_s)
    rows = list(_limits(selector, series, edges_s, shares, seen_w))
    matrix, bounds = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    costs = np.concatenate([lengths_s, [0.0, 0.0]])
    ranges = [*((0.0, float(most)) for most in most_w), (0.0, None), (0.0, None)]
    solved = linprog(costs, A_ub=matrix, b_ub=bounds, bounds=ranges, method="highs")
    return None if solved.x is None or not solved.success else np.asarray(solved.x[:moments], dtype=np.float64)


def _window_shares(edges_s: Array, ends_s: Array) -> Array:
    """Return what share of the window that ends at each end lies in each moment of an iteration that repeats.

    Shape (ends, moments); a window may be longer than an iteration.
    """

    def until_s(at_s: Array) -> Array:
        laps = np.floor(at_s / edges_s[-1])[:, None]
        within_s = np.clip((at_s - laps[:, 0] * edges_s[-1])[:, None] - edges_s[:-1], 0.0, np.diff(edges_s))
        total_s: Array = laps * np.diff(edges_s) + within_s
        return total_s

    shares: Array = (until_s(ends_s) - until_s(ends_s - WINDOW_S)) / WINDOW_S
    return shares


def _limits(
    selector: Selector, series: PowerSeries, edges_s: Array, shares: Array, seen_w: Array
) -> Iterator[tuple[Array, Array]]:
    """Yield inequalities of the linear program: over the power of each moment, the least and the most mean."""
    assert selector.limit is not None
    none, each = np.zeros((len(seen_w), 1)), np.ones((len(seen_w), 1))
    if selector.goal is Goal.FLOOR:
        yield np.hstack([-shares, none, none]), seen_w - selector.limit
    elif selector.goal is Goal.RAMP:
        before = shares - _window_shares(edges_s, edges_s[1:] - WINDOW_S)
        change_w = seen_w - series.seen_w(edges_s[1:] - WINDOW_S)
        most_w = selector.limit * WINDOW_S
        yield np.hstack([before, none, none]), most_w - change_w
        yield np.hstack([-before, none, none]), most_w + change_w
    else:
        yield np.hstack([-shares, each, none]), seen_w  # the least mean is below all
        yield np.hstack([shares, none, -each]), -seen_w  # and the most above
        of_mean = selector.limit * np.diff(edges_s) / series.period_s
        yield np.concatenate([-of_mean, [-1.0, 1.0]])[None, :], np.array([selector.limit * series.mean_w])
