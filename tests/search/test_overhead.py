"""What a round of `paper` costs beside measuring: ratios of processor times, so that any machine can hold them."""

import time
from collections.abc import Callable

import numpy as np
from helpers.builders import search

from kareus.pareto import hypervolume_improvement
from kareus.search.dataset import Dataset
from kareus.search.strategy import plane, select
from kareus.search.surrogate import disagreement, import_xgboost, predict

FEATURES = np.array([(f, s, p) for f in range(900, 1411, 30) for s in range(3, 31, 3) for p in range(4)], dtype=float)
TIME_S = 1e3 / FEATURES[:, 0] * (1 + 0.1 * np.sin(FEATURES[:, 1]) + 0.05 * FEATURES[:, 2])
DYNAMIC_J = FEATURES[:, 0] ** 2 / 1e4 * (1 + FEATURES[:, 1] / 300)
STATIC_W = 60.0
MEASURED = np.random.default_rng(0).choice(len(FEATURES), size=224, replace=False)
OFFERED = np.setdiff1d(np.arange(len(FEATURES)), MEASURED)
DATA = Dataset(MEASURED, TIME_S[MEASURED], DYNAMIC_J[MEASURED] + STATIC_W * TIME_S[MEASURED], STATIC_W)
CONFIG = search()


def paper_round():
    """Both surrogates, both ensembles and the four passes, after the last measurement of a large partition."""
    train, query = FEATURES[MEASURED], FEATURES[OFFERED]
    prediction = predict(train, DATA, query, CONFIG, 0)
    uncertainty = disagreement(train, DATA, query, CONFIG, np.random.default_rng(0))
    return select(DATA, prediction, uncertainty, CONFIG, CONFIG.large.batch)


def train_only():
    """Nothing but the boosting of the models of a round, two for the surrogates and two for each of the ensemble."""
    xgboost = import_xgboost()
    parameters = {"max_depth": CONFIG.max_depth, "eta": CONFIG.learning_rate, "nthread": 1, "verbosity": 0}
    matrix = xgboost.DMatrix(FEATURES[MEASURED], DATA.time_s, nthread=1)
    for _ in range(2 + 2 * CONFIG.ensemble_size):
        booster = xgboost.Booster(parameters, [matrix])
        for iteration in range(CONFIG.boost_rounds):
            booster.update(matrix, iteration)


def least_s(work: Callable[[], object], times: int = 5) -> float:
    """Least processor time of some runs."""
    spent = []
    for _ in range(times):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def test_training_is_the_greater_part_of_a_round(benchmark):
    benchmark(paper_round)
    assert least_s(paper_round) < 2 * least_s(train_only)


def test_the_passes_cost_no_more_than_a_few_closed_forms():
    """Each of the three exploitation passes scores all candidates at once."""
    measured, offered = (plane("total", TIME_S[n], DYNAMIC_J[n], STATIC_W) for n in (MEASURED, OFFERED))
    reference = 1.1 * measured.max(axis=0)
    prediction = predict(FEATURES[MEASURED], DATA, FEATURES[OFFERED], CONFIG, 0)
    passes_s = least_s(lambda: [select(DATA, prediction, np.zeros(len(OFFERED)), CONFIG, 32) for _ in range(50)])
    closed_s = least_s(lambda: [hypervolume_improvement(offered, measured, reference) for _ in range(50)])
    assert passes_s < 12 * closed_s
