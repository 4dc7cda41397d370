"""Prior of a search: the GPU model with coefficients out of textbooks, before anything was measured on the GPU.

The coefficients (`kareus.gpu_model.coefficients`) are the same for every GPU; only hardware numbers (SMs, peaks,
bandwidths, clocks, power limit, static power) are the GPU's own. None was fitted: a simulated testbed runs the
coefficients that `config/gpu/` gives, and a search that started from those would search for what it knows.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kareus.gpu_model.coefficients import COEFFICIENTS, SHARES, GpuCoefficients, coefficients_of_many
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import run_schedules
from kareus.graph.records import Partition
from kareus.search.features import Features

SPREADS: Mapping[str, float] = {
    name: coefficient.prior.spread for name, coefficient in COEFFICIENTS.items() if coefficient.prior.spread is not None
}
"""Standard deviations of the logarithms of the coefficients that measurements recalibrate."""
DRAWS_AT_ONCE = 25
"""Draws that are evaluated together: more share NumPy's overhead, fewer fit the cache."""
TINY = 1e-30
"""Value in place of a coefficient of 0, which has no logarithm."""


def textbook(gpu: Gpu) -> Gpu:
    """Return `gpu` with the prior medians in place of its own coefficients, and no estimate of their errors."""
    medians = {name: coefficient.prior.median for name, coefficient in COEFFICIENTS.items()}
    return replace(gpu, coefficients=GpuCoefficients(**medians), uncertainty=None)


def sample_prior(
    gpu: Gpu, partition: Partition, features: Features, draws: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return log time and log power of all candidates on GPUs drawn from the prior, shape (draws, 2 candidates).

    Args:
        gpu: GPU with the most likely coefficients; others are log-normal around them, shares at most 1.
        partition: partition whose candidates are evaluated.
        features: features of every candidate.
        draws: number of GPUs; the first has the most likely coefficients.
        generator: draws their coefficients.
    """
    # What depends on the clock alone is computed once for each clock: all candidates are points of a grid of axes that
    # broadcast, behind an axis of draws.
    axes, places = zip(*(np.unique(column, return_inverse=True) for column in features.matrix.T), strict=True)
    grid = np.ix_(*axes)
    likely = np.log([max(getattr(gpu.coefficients, name), TINY) for name in SPREADS])
    deviations = generator.standard_normal((draws, len(SPREADS))) * np.array(list(SPREADS.values()))
    deviations[0] = 0
    ensemble = np.empty((draws, 2 * len(features)))
    drawn = np.exp(likely + deviations)
    for start in range(0, draws, DRAWS_AT_ONCE):
        block = slice(start, start + DRAWS_AT_ONCE)
        columns = dict(zip(SPREADS, drawn[block].T.reshape(len(SPREADS), -1, 1, 1, 1), strict=True))
        sampled = {name: np.minimum(values, 1.0) if name in SHARES else values for name, values in columns.items()}
        many = replace(gpu, coefficients=coefficients_of_many(gpu.coefficients, sampled))
        behaviour = run_schedules(many, partition, *grid)
        costs = [cost[:, *places] for cost in (behaviour.time_s, behaviour.power_w)]
        ensemble[block] = np.log(np.concatenate(costs, axis=1))
    return ensemble
