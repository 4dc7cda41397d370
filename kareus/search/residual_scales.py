"""The scales of residuals: those under which the measurements are likeliest, given what the prior knows.

Observations are the logarithms of times, then of powers. Their covariance is

    K(s) = K0 + N + diag(s_1^2 C_t + s_2^2 S_t, s_3^2 C_p + s_4^2 S_p)

with K0 what the coefficients and the drift cause, N the diagonal of the squares of their noise, C the residuals'
correlations by clock and S those by schedule. The
logarithm of the likelihood of deviations d from the prior mean is -d' K^-1 d / 2 - log det(K) / 2, but for a constant.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array, Indices
from kareus.search.noise import Noise

ALL = slice(None)
SCALES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Standard deviations among which likelihood chooses those of the residuals."""
USUAL_SCALE = 0.01
"""Scale that is the likeliest before there are data."""
SCALE_PENALTY = 0.1
"""Penalty on the squared logarithm of a scale over the usual one: with few data, likelihood alone overfits."""
SWEEPS = 3
"""Largest number of sweeps of the coordinate search for the largest likelihood."""

ResidualScales = tuple[float, ...]
"""Standard deviations of residuals: of time by clock and by schedule; then of power, likewise."""
UNMEASURED: ResidualScales = (2 * USUAL_SCALE,) * 4


@dataclass(frozen=True, slots=True)
class ResidualKernels:
    """Correlations of the residuals of some candidates (rows) with those of others (columns), of one objective."""

    by_clock: Array
    by_schedule: Array

    def covariance(self, scales: Sequence[float]) -> Array:
        """Return the covariance under the scales by clock and by schedule, shape (rows, columns)."""
        by_clock, by_schedule = np.square(scales)
        covariance: Array = by_clock * self.by_clock + by_schedule * self.by_schedule
        return covariance


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualTables:
    """Correlations of the residuals of all candidates, by their clocks and by their schedules."""

    clock: Indices
    """By candidate, the number of its clock."""
    schedule: Indices
    """By candidate, the number of its schedule."""
    by_clock: Array
    """Between clocks, of the residual that all schedules share, shape (clocks, clocks)."""
    alike: Array
    """Between schedules at one clock, of the residual of a schedule, shape (schedules, schedules)."""
    across: Array
    """Factor of it between clocks, shape (clocks, clocks)."""

    def at(self, rows: Indices, columns: Indices | slice = ALL) -> ResidualKernels:
        """Return the kernels of the candidates of these rows and columns."""

        def looked_up(table: Array, numbers: Indices) -> Array:
            return table.take(numbers[rows], axis=0).take(numbers[columns], axis=1)

        by_schedule = looked_up(self.alike, self.schedule) * looked_up(self.across, self.clock)
        return ResidualKernels(looked_up(self.by_clock, self.clock), by_schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What the likelihood of the scales depends on."""

    deviations: Array
    """Of the logarithms of all observed times, then powers, from the prior mean, shape (times + powers,)."""
    covariance: Array
    """K0 + N, square of that size."""
    kernels: tuple[ResidualKernels, ResidualKernels]
    """C and S of the observed times, shape (times, times); then of the powers, likewise."""
    noise: Noise
    """Relative standard deviations of one observed time and of one power."""


def likeliest_scales(observations: Observations) -> ResidualScales:
    """Maximise the marginal likelihood of the observations, one scale at a time."""
    best = [USUAL_SCALE] * 4
    for _ in range(SWEEPS):
        before = list(best)
        for objective, kernels in enumerate(observations.kernels):
            covariance, deviations = _given_the_other(observations, objective, best)
            clock, schedule = 2 * objective, 2 * objective + 1
            for varied, kernel, fixed, other in (
                (clock, kernels.by_clock, schedule, kernels.by_schedule),
                (schedule, kernels.by_schedule, clock, kernels.by_clock),
            ):
                conditional = covariance + best[fixed] ** 2 * other
                scores = _scores(conditional, kernel, deviations, observations.noise[objective])
                best[varied] = SCALES[int(scores.argmax())]
        if best == before:
            break
    return tuple(best)


def _given_the_other(observations: Observations, objective: int, scales: Sequence[float]) -> tuple[Array, Array]:
    """Covariance and deviations of the times (objective 0) given the powers, or of the powers (1) given the times.

    While one objective's scales vary, the other's block B of K stays: with its rows eliminated, what is left to
    factorise is the block A - U B^-1 U' with deviations a - U B^-1 b. Residuals of A itself are not in it.
    """
    times = len(observations.kernels[0].by_clock)
    places, other = (slice(times), slice(times, None))[:: 1 - 2 * objective]
    residuals = observations.kernels[1 - objective].covariance(scales[2 - 2 * objective :][:2])
    block = observations.covariance[other, other] + residuals
    coupling = observations.covariance[places, other]
    explained = coupling @ np.linalg.solve(block, np.column_stack((coupling.T, observations.deviations[other])))
    covariance: Array = observations.covariance[places, places] - explained[:, :-1]
    return covariance, observations.deviations[places] - explained[:, -1]


def _scores(covariance: Array, kernel: Array, deviations: Array, noise: float) -> Array:
    """Return the logarithm of the likelihood, and of the scale's own, under each of `SCALES` of `kernel`.

    Of the Cholesky factor L of a matrix bordered by d, the last row is L^-1 d, which needs no solving: its square is
    d' K^-1 d. The corner is larger than that, as no eigenvalue of K is below noise^2, so that L exists.
    """
    size = len(deviations)
    bordered = np.zeros((len(SCALES), size + 1, size + 1))
    bordered[:, :size, :size] = covariance + np.square(SCALES)[:, None, None] * kernel
    bordered[:, size, :size] = deviations
    bordered[:, size, size] = 1 + deviations @ deviations / noise**2
    factors = np.linalg.cholesky(bordered)
    white = factors[:, size, :size]
    logarithms = np.log(np.diagonal(factors, axis1=1, axis2=2)[:, :size]).sum(axis=1)
    unusual = np.log(np.array(SCALES) / USUAL_SCALE) ** 2
    scores: Array = -np.square(white).sum(axis=1) / 2 - logarithms - SCALE_PENALTY * unusual
    return scores
