"""Coefficients that are fitted, as logarithms with an expectation, a spread and bounds: what all fits share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.coefficients import GpuCoefficients
from kareus.gpu_model.declarations import FitPrior
from kareus.gpu_model.gpu import Gpu

AT_BOUND = 0.005
"""Distance to a bound, in logarithms, below which a coefficient counts as held by it."""


@dataclass(frozen=True, slots=True)
class CoefficientSpace:
    """Logarithms of some coefficients, each an item of the arrays."""

    names: tuple[str, ...]
    expected: Array
    lower: Array
    upper: Array
    spreads: Array
    """Distances from `expected` that weigh as much as one standard deviation."""

    def distances(self, logarithms: Array) -> Array:
        """Return how far coefficients are from what is expected, in standard deviations."""
        return (logarithms - self.expected) / self.spreads

    def clipped(self, logarithms: Array, margin: float) -> Array:
        """Return the nearest logarithms that are at least `margin` inside of the bounds."""
        return np.clip(logarithms, self.lower + margin, self.upper - margin)

    def values(self, logarithms: Array) -> dict[str, float]:
        """Return coefficients by name."""
        return dict(zip(self.names, np.exp(logarithms).tolist(), strict=True))

    def logarithms(self, coefficients: GpuCoefficients) -> Array:
        """Return the logarithms of a GPU's coefficients; one that is 0, whose law is absent, counts as its bound."""
        values = np.array([getattr(coefficients, name) for name in self.names])
        return np.log(np.where(values > 0, values, np.exp(self.lower)))


def space_of(priors: Mapping[str, FitPrior]) -> CoefficientSpace:
    """Return the logarithms that are fitted where these are the priors."""
    expected, lower, upper = (np.log([getattr(p, of) for p in priors.values()]) for of in ("value", "lower", "upper"))
    return CoefficientSpace(tuple(priors), expected, lower, upper, np.array([p.spread for p in priors.values()]))


def with_coefficients(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """Return the GPU with other coefficients."""
    numbers: dict[str, Any] = dict(values)
    return replace(gpu, coefficients=replace(gpu.coefficients, **numbers))


def softened(errors: Array) -> Array:
    """Return errors, in their scale, whose squares grow linearly beyond 1, so that outliers pull like all others."""
    soft: Array = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
    return soft


def bound_note(prior: FitPrior, value: float) -> str:
    """Return what a comment beside a fitted value says if a bound holds it, or nothing."""
    near = min(abs(np.log(value / prior.lower)), abs(np.log(value / prior.upper)))
    return ", at the bound of its range" if near < AT_BOUND else ""
