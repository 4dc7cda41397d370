"""Plans by the hour: which plans of a frontier to run when, so that a number of iterations is done by the end.

Time within an hour may be shared among plans, so that the least charge is a linear program over shares of hours. A
waiting fleet draws static power.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.errors import ConfigError
from kareus.plans.series import HourlySeries
from kareus.plans.units import JOULES_PER_KWH, SECONDS_PER_HOUR

NEGLIGIBLE = 1e-9
"""Share of an hour that is a rounding error of the linear program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyProblem:
    """Iterations to do, and the plans to do them with."""

    times_s: tuple[float, ...]
    """Iteration time of each plan."""
    energies_j: tuple[float, ...]
    """Energy of all GPUs over an iteration of each plan."""
    idle_power_w: float
    """Power of all GPUs while they wait."""
    iterations: int


@dataclass(frozen=True, slots=True)
class HourShare:
    """A share of an hour that is spent with one plan, or waiting (None)."""

    hour: int
    plan: int | None
    share: float


def reachable(work: HourlyProblem, series: HourlySeries) -> float:
    """Return the most iterations that can be done in the hours of the series."""
    return len(series.values) * SECONDS_PER_HOUR / min(work.times_s)


def hourly(work: HourlyProblem, series: HourlySeries) -> list[HourShare]:
    """Plans by the hour at the least charge, in the order of the hours.

    No more iterations than asked for, also where a negative price pays for more.

    Raises:
        ConfigError: not even the fastest plan does so many iterations.
    """
    from scipy import sparse  # noqa: PLC0415 - only where a series is given
    from scipy.optimize import linprog  # noqa: PLC0415 - likewise

    _check(work, series)
    hours, ways = len(series.values), len(work.times_s) + 1
    powers_w = [*(e / t for t, e in zip(work.times_s, work.energies_j, strict=True)), work.idle_power_w]
    # In units of the largest charge and the fastest pace: HiGHS compares with absolute tolerances.
    charges, pace = np.outer(series.values, powers_w).ravel(), np.array([*(1 / t for t in work.times_s), 0.0])
    most = np.abs(charges).max()
    solved = linprog(
        charges / most if most > 0 else charges,
        A_eq=sparse.vstack((np.tile(pace / pace.max(), hours), sparse.kron(sparse.eye(hours), np.ones(ways)))),
        b_eq=[work.iterations / (SECONDS_PER_HOUR * pace.max()), *np.ones(hours)],
        method="highs",
    )
    if not solved.success:
        raise ConfigError(f"no plan by the hour was found: {solved.message}")
    shares = solved.x.reshape(hours, ways)
    return [
        HourShare(hour, way if way < ways - 1 else None, float(shares[hour, way]))
        for hour in range(hours)
        for way in range(ways)
        if shares[hour, way] > NEGLIGIBLE
    ]


def steady(work: HourlyProblem, series: HourlySeries) -> list[HourShare]:
    """The one plan that, run from the start until the iterations are done, has the least charge.

    Raises:
        ConfigError: not even the fastest plan does so many iterations.
    """
    _check(work, series)
    in_time = [
        n for n, time_s in enumerate(work.times_s) if work.iterations <= len(series.values) * SECONDS_PER_HOUR / time_s
    ]
    return min((_from_start(work, series, plan) for plan in in_time), key=lambda slots: charge(work, series, slots))


def charge(work: HourlyProblem, series: HourlySeries, slots: Sequence[HourShare]) -> float:
    """Return the cost or the emissions of the energy of `slots`."""
    return sum(charge_of(work, series, slot) for slot in slots)


def charge_of(work: HourlyProblem, series: HourlySeries, slot: HourShare) -> float:
    """Return the cost or the emissions of the energy of one slot."""
    return energy_j(work, slot) / JOULES_PER_KWH * series.values[slot.hour]


def iterations(work: HourlyProblem, slot: HourShare) -> float:
    """Iterations done in a slot."""
    return 0.0 if slot.plan is None else slot.share * SECONDS_PER_HOUR / work.times_s[slot.plan]


def energy_j(work: HourlyProblem, slot: HourShare) -> float:
    """Joules of all GPUs in a slot."""
    if slot.plan is None:
        return slot.share * SECONDS_PER_HOUR * work.idle_power_w
    return iterations(work, slot) * work.energies_j[slot.plan]


def _from_start(work: HourlyProblem, series: HourlySeries, plan: int) -> list[HourShare]:
    needed = work.times_s[plan] * work.iterations / SECONDS_PER_HOUR
    slots = []
    for hour in range(len(series.values)):
        busy = min(max(needed - hour, 0.0), 1.0)
        slots += [HourShare(hour, plan, busy)] * (busy > 0) + [HourShare(hour, None, 1 - busy)] * (busy < 1)
    return slots


def _check(work: HourlyProblem, series: HourlySeries) -> None:
    most = reachable(work, series)
    if work.iterations > most:
        raise ConfigError(
            f"iterations={work.iterations}: {len(series.values)} hours allow 1 to {int(most)} with the fastest plan."
        )
