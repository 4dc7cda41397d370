"""Strategies: which candidates a round measures.

`paper` follows Algorithm 1 of the paper; `random` and `exhaustive` are yardsticks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.partition.graph import Partition
from kareus.search.acquisition import Chosen, select
from kareus.search.dataset import Dataset, Indices
from kareus.search.surrogate import Features, Prediction, disagreement, predict
from kareus.workload.config import SampleSizes, SearchConfig, Strategy
from kareus.workload.gpu import Gpu


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """One partition's search: its candidates, what is known beforehand, and where randomness comes from."""

    partition: Partition
    features: Features
    """Of every candidate, shape (candidates, 3)."""
    prior: Gpu
    """A GPU whose model is what `informed` expects before it has measured; never the one that is searched."""
    config: SearchConfig
    generator: np.random.Generator


@dataclass(frozen=True, slots=True)
class Proposal:
    """Candidates of one round by the pass that chose them, and what was predicted for all that were on offer."""

    passes: list[Chosen]
    """Positions are numbers of candidates."""
    offered: Indices
    """Numbers of the candidates that `prediction` is about, ascending."""
    prediction: Prediction | None


Proposer = Callable[[SearchProblem, Dataset, int], Proposal | None]
"""Given the data and the round (0 first), what to measure next; None ends the search."""


def sizes_of(operators: int, config: SearchConfig) -> SampleSizes:
    """Sample sizes by class of partition: one operator, two or three, more (paper, appendix on hyperparameters)."""
    if operators == 1:
        return config.small
    return config.medium if operators <= 3 else config.large  # noqa: PLR2004 - the paper's classes


def propose_paper(problem: SearchProblem, data: Dataset, round_: int) -> Proposal | None:
    """Random initial design, then the four passes."""
    sizes = sizes_of(len(problem.partition.operators), problem.config)
    if round_ == 0:
        return _random(problem, data, sizes.initial, "initial")
    offered = _unmeasured(problem, data)
    if round_ > sizes.max_rounds or not len(offered):
        return None
    train, query = problem.features[data.candidates], problem.features[offered]
    seed = int(problem.generator.integers(2**31))
    prediction = predict(train, data, query, problem.config, seed)
    uncertainty = disagreement(train, data, query, problem.config, problem.generator)
    passes = select(data, prediction, uncertainty, problem.config, sizes.batch)
    return Proposal([Chosen(p.chosen_by, offered[p.candidates]) for p in passes], offered, prediction)


def propose_random(problem: SearchProblem, data: Dataset, round_: int) -> Proposal | None:
    """As many random candidates as `paper` may measure, in rounds of the same sizes."""
    sizes = sizes_of(len(problem.partition.operators), problem.config)
    if round_ > sizes.max_rounds or not len(_unmeasured(problem, data)):
        return None
    size = sizes.initial if round_ == 0 else sizes.batch
    return _random(problem, data, size, "random")


def propose_exhaustive(problem: SearchProblem, data: Dataset, round_: int) -> Proposal | None:
    """Every candidate, in one round."""
    if round_ > 0:
        return None
    return Proposal([Chosen("all", _unmeasured(problem, data))], np.array([], dtype=np.int64), None)


PROPOSERS: dict[Strategy, Proposer] = {
    Strategy.PAPER: propose_paper,
    Strategy.RANDOM: propose_random,
    Strategy.EXHAUSTIVE: propose_exhaustive,
}


def _random(problem: SearchProblem, data: Dataset, size: int, chosen_by: str) -> Proposal:
    offered = _unmeasured(problem, data)
    chosen = problem.generator.choice(offered, size=min(size, len(offered)), replace=False)
    return Proposal([Chosen(chosen_by, chosen)], np.array([], dtype=np.int64), None)


def _unmeasured(problem: SearchProblem, data: Dataset) -> NDArray[np.int64]:
    return np.setdiff1d(np.arange(len(problem.features)), data.candidates)
