"""Fitting coefficients to observations by least squares in logarithms, and how well observations tell them.

A first fit has all coefficients, in steps that take large errors first, and finds how far laws are off. The second
weighs observations by that, and leaves coefficients as they were that the observations do not tell. Errors of shapes
left out are those of fits that have not seen them.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.coefficient_space import with_coefficients
from kareus.calibrate.coefficients import NOT_IN_KERNELS, Expected, log_costs, log_costs_and_slopes
from kareus.calibrate.observations import ObservedProbe
from kareus.calibrate.probes import Probe
from kareus.errors import ArtifactError
from kareus.gpu_model.gpu import Gpu

FIRST_SCALES = (0.3, 0.1, 0.03)
"""Errors of a logarithm that weigh as much as one standard deviation of a coefficient, in the steps of the first fit.

Errors of tens of percent are mended before those of a few: a fit that weighs all of them at once may end where a kernel
takes another tile than on the GPU, and no small step leads back.
"""
LEAST_SCALE = 0.004
"""The least in the second fit: what the instruments scatter by."""
UNTOLD = 0.8
"""Share of its expected spread from which on a coefficient's remaining one means that nothing told it."""
EVALUATIONS = 100
"""Most evaluations of a step of a fit; in rehearsals most steps end after fewer than 30."""
FOLDS = 4
"""Parts of the programs, each left out once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A GPU fitted to observations."""

    gpu: Gpu
    spreads: dict[str, float]
    """Standard deviations that remain to the logarithms of the coefficients that were fitted."""
    untold: tuple[str, ...]
    """Coefficients that the observations do not tell, which stay as they were."""
    scale: float
    """Weight of an error of a logarithm."""

    def carried_over(self, kept: Sequence[str]) -> str:
        """Return the names of the coefficients that are as they were; `kept` were fitted, to a stand-in."""
        return ", ".join(sorted({*self.untold, *kept, *NOT_IN_KERNELS}))


@dataclass(frozen=True, slots=True)
class CalibrationErrors:
    """Predicted over measured less 1, an item for each observation; NaN for powers that were not measured."""

    time: Array
    power: Array


def calibrate(observations: Sequence[ObservedProbe], gpu: Gpu, expected: Mapping[str, Expected]) -> Calibrated:
    """Fit the coefficients of `expected` to observations, those of which they tell something.

    Args:
        observations: at least one.
        gpu: all other numbers, those of heat included.
        expected: coefficients to fit.

    Raises:
        ArtifactError: the observations are so few that they tell no coefficient.
    """
    first = gpu
    for scale in FIRST_SCALES:
        first = _fit(observations, first, expected, scale)
    errors = _logs(errors_of(observations, first))
    scale = float(np.clip(np.sqrt(np.mean(errors**2)), LEAST_SCALE, FIRST_SCALES[-1]))
    names = _told(observations, gpu, first, expected, scale)
    if not names:
        raise ArtifactError(
            f"too few measurements ({len(observations)}): they tell no coefficient of {gpu.name}; measure more."
        )
    informed = {name: expectation for name, expectation in expected.items() if name in names}
    second = _fit(observations, _mixed(gpu, first, names), informed, scale)
    return Calibrated(
        gpu=second,
        spreads=_spreads(observations, second, informed, scale),
        untold=tuple(name for name in expected if name not in informed),
        scale=scale,
    )


def left_out_errors(
    observations: Sequence[ObservedProbe], fitted: Calibrated, expected: Mapping[str, Expected]
) -> CalibrationErrors:
    """Return the error of each observation by a refit to those of other programs."""
    informed = {name: prior for name, prior in expected.items() if name not in fitted.untold}
    folds = np.array([zlib.crc32(o.probe.program.name.encode()) % FOLDS for o in observations])
    time, power = np.full((2, len(observations)), np.nan)
    for fold in np.unique(folds):
        outside = folds == fold
        if outside.all():
            continue
        rest = [observation for observation, out in zip(observations, outside, strict=True) if not out]
        gpu = _fit(rest, fitted.gpu, informed, fitted.scale)
        errors = errors_of([observation for observation, out in zip(observations, outside, strict=True) if out], gpu)
        time[outside], power[outside] = errors.time, errors.power
    return CalibrationErrors(time, power)


def errors_of(observations: Sequence[ObservedProbe], gpu: Gpu) -> CalibrationErrors:
    """Return the error of each observation."""
    logarithms = _each(observations, lambda probe, clocks_mhz: log_costs(gpu, {}, probe.program, clocks_mhz)[:, 0])
    time_s, power_w = _measured(observations, gpu)
    return CalibrationErrors(np.exp(logarithms[0]) / time_s - 1, np.exp(logarithms[1]) / power_w - 1)


def _fit(observations: Sequence[ObservedProbe], gpu: Gpu, expected: Mapping[str, Expected], scale: float) -> Gpu:
    """Return the GPU with fitted coefficients, starting from its own."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - only fitting needs it

    names, expectations = list(expected), list(expected.values())
    values, lower, upper = (
        np.log([getattr(expectation, of) for expectation in expectations]) for of in ("value", "lower", "upper")
    )
    spreads = np.array([expectation.spread for expectation in expectations])
    measured = np.log(np.concatenate(_measured(observations, gpu)))
    read = np.isfinite(measured)
    computed = dict[bytes, tuple[Array, Array]]()

    def residuals_and_slopes(x: Array) -> tuple[Array, Array]:
        if x.tobytes() not in computed:
            computed.clear()
            costs, slopes = _costs_and_slopes(observations, gpu, names, x)
            errors = (costs - measured)[read] / scale
            computed[x.tobytes()] = (
                np.concatenate([errors, (x - values) / spreads]),
                np.concatenate([slopes[read] / scale, np.diag(1 / spreads)]),
            )
        return computed[x.tobytes()]

    logarithms = np.log([getattr(gpu.coefficients, name) for name in names])
    start = np.clip(logarithms, lower + 1e-6, upper - 1e-6)
    solved = least_squares(
        lambda x: residuals_and_slopes(x)[0],
        start,
        lambda x: residuals_and_slopes(x)[1],
        bounds=(lower, upper),
        x_scale=spreads,
        loss="soft_l1",  # outliers pull like all others
        max_nfev=EVALUATIONS,
        ftol=1e-5,
    )
    return with_coefficients(gpu, dict(zip(names, np.exp(solved.x).tolist(), strict=True)))


def _costs_and_slopes(
    observations: Sequence[ObservedProbe], gpu: Gpu, names: Sequence[str], x: Array
) -> tuple[Array, Array]:
    """Logarithms of times, then of powers, by observation, and their slopes."""

    def costs(probe: Probe, clocks: Sequence[int]) -> Array:
        logs, slopes = log_costs_and_slopes(gpu, names, x, probe.program, clocks)
        return np.concatenate([logs[..., None], slopes], axis=2)

    both = np.concatenate(list(_each(observations, costs)))
    return both[:, 0], both[:, 1:]


def _each(observations: Sequence[ObservedProbe], costs: Callable[[Probe, Sequence[int]], Array]) -> Array:
    """Costs of each observation, shape (2, observations, ...); a probe is evaluated once at all its clocks."""
    places: dict[Probe, list[int]] = defaultdict(list)
    for place, observation in enumerate(observations):
        places[observation.probe].append(place)
    parts = {probe: costs(probe, [observations[n].frequency_mhz for n in numbers]) for probe, numbers in places.items()}
    shape = next(iter(parts.values())).shape
    values = np.empty((2, len(observations), *shape[2:]))
    for probe, numbers in places.items():
        values[:, numbers] = parts[probe]
    return values


def _measured(observations: Sequence[ObservedProbe], gpu: Gpu) -> tuple[Array, Array]:
    """Times, and powers at the reference temperature, NaN where none was measured."""
    powers = [observation.power_at_reference_w(gpu) for observation in observations]
    return (
        np.array([observation.time_s for observation in observations]),
        np.array([np.nan if power_w is None else max(power_w, 1e-3) for power_w in powers]),
    )


def _logs(errors: CalibrationErrors) -> Array:
    every = np.log1p(np.concatenate([errors.time, errors.power]))
    finite: Array = every[np.isfinite(every)]
    return finite


def _spreads(
    observations: Sequence[ObservedProbe], gpu: Gpu, expected: Mapping[str, Expected], scale: float
) -> dict[str, float]:
    """Standard deviations of the coefficients' logarithms given the observations, linearised at `gpu`."""
    names = list(expected)
    _, slopes = _costs_and_slopes(observations, gpu, names, np.log([getattr(gpu.coefficients, n) for n in names]))
    read = np.isfinite(np.concatenate(_measured(observations, gpu)))
    scaled = slopes[read] / scale
    precision = scaled.T @ scaled + np.diag([1 / expectation.spread**2 for expectation in expected.values()])
    return dict(zip(names, np.sqrt(np.diag(np.linalg.inv(precision))).tolist(), strict=True))


def _told(
    observations: Sequence[ObservedProbe], gpu: Gpu, first: Gpu, expected: Mapping[str, Expected], scale: float
) -> frozenset[str]:
    """Return the names of the coefficients that observations tell: at the first fit, or with all others as in `gpu`.

    A collective takes the fastest protocol. Where the first fit makes one too slow to be taken, nothing tells its
    coefficients there; but as they were in `gpu` it may be taken again, so that they show.
    """

    def told_at(point: Gpu) -> frozenset[str]:
        spreads = _spreads(observations, point, expected, scale)
        return frozenset(name for name, expectation in expected.items() if spreads[name] < UNTOLD * expectation.spread)

    names = told_at(first)
    while more := told_at(_mixed(gpu, first, names)) - names:
        names |= more
    return names


def _mixed(gpu: Gpu, first: Gpu, names: Collection[str]) -> Gpu:
    """Return `gpu` with the coefficients `names` of `first`."""
    return with_coefficients(gpu, {name: getattr(first.coefficients, name) for name in names})
