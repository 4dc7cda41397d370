"""Two numbers of a software for mixtures of experts, fitted to measured iterations, and each model left out.

`expert_imbalance` and `expert_kernels` are those of a grid with which the mean over models of the mean absolute error
is least; a model left out is predicted with those of the others.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.software_fit import IterationData, errors

IMBALANCES = (1.0, 1.1, 1.2, 1.3)
KERNELS = (0, 100, 200, 300)
NUMBERS = ("expert_imbalance", "expert_kernels")


def fit_experts(data: IterationData) -> tuple[dict[str, float], Array, Array]:
    """Return the numbers, and the logarithms of predicted over measured times with them and each model left out.

    Args:
        data: of mixtures of experts.
    """
    grid = [dict(zip(NUMBERS, values, strict=True)) for values in itertools.product(IMBALANCES, KERNELS)]
    logarithms = np.array([errors(data, numbers) for numbers in grid])
    models = [row.architecture for row in data.rows]
    best = _best(logarithms, models)
    outside = np.empty(len(models))
    for model in dict.fromkeys(models):
        of_model = np.array([name == model for name in models])
        seen = best if of_model.all() else _best(logarithms[:, ~of_model], [name for name in models if name != model])
        outside[of_model] = logarithms[seen, of_model]
    return grid[best], logarithms[best], outside


def _best(logarithms: Array, models: Sequence[str]) -> int:
    """Return the place of the numbers with which the mean over models is least; `logarithms`: (numbers, rows)."""
    sizes = np.abs(np.expm1(logarithms))
    means = [sizes[:, [name == model for name in models]].mean(axis=1) for model in dict.fromkeys(models)]
    return int(np.mean(means, axis=0).argmin())
