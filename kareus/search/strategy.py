"""Strategies: which candidates a round measures.

`informed` has a GPU model as its prior; `paper` follows Algorithm 1 of the paper; `random` and `exhaustive` are
baselines.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from kareus.search.acquisition import select
from kareus.search.config import InformedSearch, PaperSearch, SampleSizes, Strategy
from kareus.search.dataset import Dataset
from kareus.search.informed import informed
from kareus.search.problem import BUDGET_SPENT, Chosen, Proposal, Proposer, SearchProblem, Stop
from kareus.search.surrogate import disagreement, predict


def proposer_of(problem: SearchProblem) -> Proposer:
    """Return the proposer of the problem's strategy, at the start of a search."""
    if isinstance(problem.config, InformedSearch):
        return informed(problem, problem.config)
    return partial(PROPOSERS[problem.config.strategy], problem, problem.config)


def most_measured(problem: SearchProblem) -> int:
    """Return the largest number of candidates that a search measures; many searches stop earlier."""
    space, config = len(problem.features), problem.config
    if isinstance(config, InformedSearch):
        return min(config.most, space)
    if config.strategy is Strategy.EXHAUSTIVE:
        return space
    sizes = sizes_of(len(problem.partition.operators), config)
    return min(sizes.initial + sizes.max_rounds * sizes.batch, space)


def sizes_of(operators: int, config: PaperSearch) -> SampleSizes:
    """Return the sample sizes for one operator, two or three, or more (paper, appendix on hyperparameters)."""
    if operators == 1:
        return config.small
    return config.medium if operators <= 3 else config.large  # noqa: PLR2004 - the paper's classes


def propose_paper(problem: SearchProblem, config: PaperSearch, data: Dataset, round_: int) -> Proposal | Stop:
    """Propose a random initial design, then what the four passes choose."""
    sizes = sizes_of(len(problem.partition.operators), config)
    if round_ == 0:
        return _random(problem, data, sizes.initial, "initial")
    offered = problem.unmeasured(data)
    if round_ > sizes.max_rounds or not len(offered):
        return replace(BUDGET_SPENT, is_cut_short=len(offered) > 0)
    train, query = problem.features.matrix[data.candidates], problem.features.matrix[offered]
    seed = int(problem.generator.integers(2**31))
    prediction = predict(train, data, query, config, seed)
    uncertainty = disagreement(train, data, query, config, problem.generator)
    passes = select(data, prediction, uncertainty, config, sizes.batch)
    return Proposal([Chosen(p.chosen_by, offered[p.candidates]) for p in passes], offered, prediction)


def propose_random(problem: SearchProblem, config: PaperSearch, data: Dataset, round_: int) -> Proposal | Stop:
    """Propose as many random candidates as `paper` may measure, in rounds of the same sizes."""
    sizes = sizes_of(len(problem.partition.operators), config)
    if round_ > sizes.max_rounds or not len(problem.unmeasured(data)):
        return BUDGET_SPENT
    return _random(problem, data, sizes.batch if round_ else sizes.initial, "random")


def propose_exhaustive(problem: SearchProblem, config: PaperSearch, data: Dataset, round_: int) -> Proposal | Stop:
    """Propose every candidate in one round."""
    if round_ > 0:
        return BUDGET_SPENT
    return Proposal([Chosen("all", problem.unmeasured(data))], np.array([], dtype=np.int64), None)


PROPOSERS: dict[Strategy, Callable[[SearchProblem, PaperSearch, Dataset, int], Proposal | Stop]] = {
    Strategy.PAPER: propose_paper,
    Strategy.RANDOM: propose_random,
    Strategy.EXHAUSTIVE: propose_exhaustive,
}
"""Strategies that keep to the paper's sizes."""


def _random(problem: SearchProblem, data: Dataset, size: int, chosen_by: str) -> Proposal:
    offered = problem.unmeasured(data)
    chosen = problem.generator.choice(offered, size=min(size, len(offered)), replace=False)
    return Proposal([Chosen(chosen_by, chosen)], np.array([], dtype=np.int64), None)
