"""Surrogates: gradient-boosted trees that predict time and dynamic energy of a candidate (paper, section 4.3.2)."""

import sys
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array, Indices
from kareus.search.config import PaperSearch
from kareus.search.dataset import Dataset
from kareus.search.problem import CostPrediction


def predict(train: Array, data: Dataset, query: Array, config: PaperSearch, seed: int) -> CostPrediction:
    """Train both surrogates on `data` and predict the costs of other candidates.

    Args:
        train: matrix of the features of the measured candidates, in the order of `data`, shape (n, 3).
        data: their measurements.
        query: matrix of the features of the candidates to predict, shape (m, 3).
        config: hyperparameters.
        seed: of both surrogates.
    """
    return CostPrediction(
        time_s=_fit_predict(train, data.time_s, query, config, seed),
        dynamic_energy_j=_fit_predict(train, data.dynamic_energy_j, query, config, seed),
    )


def disagreement(
    train: Array, data: Dataset, query: Array, config: PaperSearch, generator: np.random.Generator
) -> NDArray[np.float64]:
    """How much bootstrap ensembles disagree on `query`: the sum of both objectives' standard deviations, shape (m,).

    Each member sees a resample of `bootstrap_fraction` of the data, drawn with replacement. Objectives are scaled
    by their largest measurement, so that seconds and joules can be added.
    """
    size = max(1, round(config.bootstrap_fraction * len(train)))
    resamples: list[Indices] = [generator.integers(len(train), size=size) for _ in range(config.ensemble_size)]
    seeds = generator.integers(2**31, size=config.ensemble_size)
    total = np.zeros(len(query))
    for objective in (data.time_s, data.dynamic_energy_j):
        members = [
            _fit_predict(train[rows], objective[rows], query, config, int(seed))
            for rows, seed in zip(resamples, seeds, strict=True)
        ]
        total += np.std(members, axis=0) / np.max(np.abs(objective))
    return total


def _fit_predict(
    train: Array, target: NDArray[np.float64], query: Array, config: PaperSearch, seed: int
) -> NDArray[np.float64]:
    """Boosted trees on the target scaled by its mean, so that the default leaf regularisation suits any unit."""
    xgboost = import_xgboost()
    scale = float(np.mean(np.abs(target))) or 1.0
    parameters = {
        "max_depth": config.max_depth,
        "eta": config.learning_rate,
        "seed": seed,
        "nthread": 1,  # the data are small; and one thread adds in one order, so that reruns agree to the bit
        "verbosity": 0,
    }
    # One thread for the matrix too: starting a pool of threads takes longer than training on a few hundred rows.
    matrix = xgboost.DMatrix(train, target / scale, nthread=1)
    booster = xgboost.Booster(parameters, [matrix])
    for iteration in range(config.boost_rounds):  # what `xgboost.train` does, less its callbacks
        booster.update(matrix, iteration)
    prediction: NDArray[np.float64] = booster.inplace_predict(query).astype(np.float64)
    return prediction * scale


def import_xgboost() -> ModuleType:
    """Import xgboost without its optional scikit-learn and pandas interfaces, which take seconds to load."""
    if "xgboost" not in sys.modules:
        hidden = [name for name in ("sklearn", "pandas") if name not in sys.modules]
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
        try:
            import xgboost  # noqa: F401, PLC0415
        finally:
            for name in hidden:
                del sys.modules[name]
    return sys.modules["xgboost"]
