"""What a round costs beside measuring: one proposal of `paper` on a large partition, in CPU time of one core."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from kareus.search.dataset import Dataset
from kareus.search.problem import SearchProblem
from kareus.search.strategy import proposer_of
from kareus.search.surrogate import import_xgboost
from yardstick.runs import Instruments, search_problem
from yardstick.subjects import Subject, search_config
from yardstick.truths import truth_of

MEASURED = 224
"""What `paper` has measured of a large partition before its search ends."""
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """CPU seconds of one round, median over repeats."""

    round_s: float
    training_s: float
    """Of that, within XGBoost's boosting rounds."""
    offered: int
    """Candidates that were scored."""


def round_overhead(subject: Subject) -> Overhead:
    """Time rounds of `paper` on a partition of which `MEASURED` candidates are measured."""
    problem = search_problem(subject, search_config("paper"), 0)
    data = random_dataset(subject, problem)
    xgboost = import_xgboost()
    rounds, trainings = [], []
    for _ in range(REPEATS + 1):
        spent = [0.0]
        with mock.patch.object(xgboost.Booster, "update", _timed(xgboost.Booster.update, spent)):
            began_s = time.process_time()
            proposer_of(problem)(data, 1)
            rounds.append(time.process_time() - began_s)
        trainings.append(spent[0])
    return Overhead(
        round_s=float(np.median(rounds[1:])),  # the first one warms up
        training_s=float(np.median(trainings[1:])),
        offered=len(subject.space) - MEASURED,
    )


def random_dataset(subject: Subject, problem: SearchProblem) -> Dataset:
    """Measurements of random candidates."""
    measure = Instruments(subject, truth_of(subject.workload.gpu, 0), 0).measure
    candidates = problem.generator.choice(len(subject.space), size=MEASURED, replace=False)
    measured = [measure(candidate) for candidate in candidates.tolist()]
    return Dataset(
        candidates=candidates,
        time_s=np.array([m.time_s for m in measured]),
        energy_j=np.array([m.energy_j for m in measured]),
        static_power_w=subject.workload.gpu.static_power_w,
    )


def _timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        began_s = time.process_time()
        try:
            return call(*arguments, **named)
        finally:
            spent[0] += time.process_time() - began_s

    return timed
