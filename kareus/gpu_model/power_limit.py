"""The power limit: time and energy of work that would exceed it at a steady clock."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.gpu_model.energy import idle_power_w
from kareus.gpu_model.gpu import Gpu

HALVINGS = 6
"""Number of halvings of the distance between two clocks, after which power is nearly linear between them."""
LEAST_CLOCK_MHZ = 210.0
"""Lowest SM clock of an A100 (`nvidia-smi -q -d SUPPORTED_CLOCKS`); a GPU never stops."""
LEAST_RESERVE_W = 1e-3
"""Power below the limit that a waiting GPU is taken to leave at least."""
SPEED_KEPT = 0.5
"""How a fluctuating clock loses against a steady one of the same power: 0 all in time, 1 all in energy. Assumed; the
data exclude both ends (docs/evidence/fidelity-2026-11.md)."""

CostRows = Array
"""Time in seconds, energy in joules and megacycles (clock in MHz times time), shape (3, n) for n requested clocks."""
Steady = Callable[[Array], CostRows]
"""Costs at steady clocks, shape (n,), with no power limit."""


def within_power_limit(gpu: Gpu, steady: Steady, requested_mhz: Array) -> CostRows:
    """Apply the power limit to what happens at steady clocks.

    At the limit the clock alternates between the requested one and a lower one. Power is convex in the clock, so a
    fluctuating one loses against the steady clock that would meet the limit: it is slower at the same power, or draws
    more at the same speed (paper, appendix A). Here it loses a part of each. Power stays within the limit itself
    wherever some clock holds it.

    Args:
        gpu: GPU whose limit applies.
        steady: called with the requested clocks and, where they are over the limit, lower ones.
        requested_mhz: shape (n,).
    """
    requested = steady(requested_mhz)
    return fluctuating(gpu, steady, requested_mhz, requested) if over_limit(gpu, requested).any() else requested


def fluctuating(gpu: Gpu, steady: Steady, requested_mhz: Array, requested: CostRows) -> CostRows:
    """Return costs within the limit, as `within_power_limit`, where some of the costs `requested` are over it."""
    over = over_limit(gpu, requested)
    # The lower of the two clocks: one step down, or the highest clock within the limit if that step is not enough.
    at_limit = _at_limit(gpu, steady, requested_mhz)
    lower = steady(np.maximum(requested_mhz - gpu.coefficients.throttle_step_mhz, _least_mhz(requested_mhz)))
    lower = np.where(over_limit(gpu, lower), at_limit, lower)
    # What the clock does not speed up, such as memory-bound operators alone, runs at the lower one.
    as_fast = (lower[0] - at_limit[0]) / np.where(lower[0] > requested[0], lower[0] - requested[0], 1.0)
    as_low_power = _share_at_power(gpu.throttling_power_w, requested, lower)
    # Share of the work done at the requested clock: between the one that is as fast as the steady clock at the limit
    # and the one that draws as little, but never so large that mean power exceeds the limit.
    within_limit = _share_at_power(gpu.power_limit_w, requested, lower)
    between = SPEED_KEPT * np.clip(as_fast, 0.0, within_limit) + (1 - SPEED_KEPT) * as_low_power
    share = np.where(over, between, 1.0)
    return share * requested + (1 - share) * lower


def over_limit(gpu: Gpu, cost: CostRows) -> NDArray[np.bool_]:
    """Mask of the costs at a steady clock whose power makes the clock fluctuate instead, shape (n,)."""
    over: NDArray[np.bool_] = cost[1] > gpu.throttling_power_w * cost[0]
    return over


def _at_limit(gpu: Gpu, steady: Steady, high_mhz: Array) -> CostRows:
    """Cost at the highest steady clocks whose power is within the limit, or else at the lowest clock."""
    low_mhz = _least_mhz(high_mhz)
    for _ in range(HALVINGS):
        middle_mhz = (high_mhz + low_mhz) / 2
        above = over_limit(gpu, steady(middle_mhz))
        high_mhz, low_mhz = np.where(above, middle_mhz, high_mhz), np.where(above, low_mhz, middle_mhz)
    high, low = steady(high_mhz), _paused(gpu, steady(low_mhz), low_mhz)
    share = _share_at_power(gpu.throttling_power_w, high, low)
    return share * high + (1 - share) * low


def _paused(gpu: Gpu, cost: CostRows, clock_mhz: Array) -> CostRows:
    """Return a cost at the lowest clock with as much waiting there as brings mean power to the limit.

    A workload whose GPU draws more than the limit waiting is refused (`kareus.workload.combinations`).
    """
    limit_w, idle_w = gpu.throttling_power_w, idle_power_w(gpu, clock_mhz)
    waiting_s = np.maximum(cost[1] - limit_w * cost[0], 0.0) / np.maximum(limit_w - idle_w, LEAST_RESERVE_W)
    paused: CostRows = cost + np.stack(np.broadcast_arrays(waiting_s, idle_w * waiting_s, clock_mhz * waiting_s))
    return paused


def _least_mhz(requested_mhz: Array) -> Array:
    return np.minimum(LEAST_CLOCK_MHZ, requested_mhz)


def _share_at_power(power_w: float, high: CostRows, low: CostRows) -> Array:
    """Share of the work that may be done at the higher of two costs, so that mean power is at most `power_w`."""
    excess_j = np.maximum(high[1] - power_w * high[0], 0.0)
    reserve_j = np.maximum(power_w * low[0] - low[1], 0.0)
    return np.where(excess_j > 0, reserve_j / np.where(excess_j > 0, excess_j + reserve_j, 1.0), 1.0)
