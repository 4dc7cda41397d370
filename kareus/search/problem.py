"""The interface between a search and its strategy: the problem, the proposals of a round, and the reason to stop."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Indices
from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import Partition
from kareus.search.config import SearchConfig
from kareus.search.dataset import Dataset
from kareus.search.features import Features
from kareus.search.noise import Noise


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """The search of one partition: its candidates, the prior, and the source of randomness."""

    partition: Partition
    features: Features
    """Features of every candidate."""
    prior: Gpu
    """GPU whose model is the prior mean of `informed`; never the one that is searched."""
    config: SearchConfig
    generator: np.random.Generator

    def unmeasured(self, data: Dataset) -> Indices:
        """Return the numbers of the candidates that `data` lacks, ascending."""
        lacks = np.ones(len(self.features), dtype=bool)
        lacks[data.candidates] = False
        return np.flatnonzero(lacks)


@dataclass(frozen=True, slots=True)
class CostPrediction:
    """Predicted costs of candidates, each of shape (n,)."""

    time_s: NDArray[np.float64]
    dynamic_energy_j: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Candidates that one pass chose."""

    chosen_by: str
    candidates: Indices
    """Positions among the candidates offered; in a proposal, numbers of candidates."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Candidates of one round by the passes that chose them, and the predicted costs of all that were on offer."""

    passes: list[Chosen]
    """Several may choose the same candidate, which is measured once."""
    offered: Indices
    """Numbers of the candidates that `prediction` is about, ascending."""
    prediction: CostPrediction | None
    time_only: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Numbers of the candidates whose time alone is measured, before any candidate is measured whole."""
    repeats: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Numbers of those of the candidates that are measured whole once more, to tell the noise."""
    noise: Noise | None = None
    """Noise that was reckoned with; None if the strategy reckons with none."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a search."""

    why: str
    """Reason, as the table of rounds gives it."""
    is_cut_short: bool = False
    """Whether the budget ended the search before its stopping rule was met."""
    remaining: float | None = None
    """If so, the share of the hypervolume that the other candidates are predicted to add; None if that is not known."""
    noise: Noise | None = None
    """As in proposals."""


Proposer = Callable[[Dataset, int], Proposal | Stop]
"""Proposes what to measure next, given the data and the number of the round, from 0."""
BUDGET_SPENT = Stop("budget spent")
