"""What strategies are asked, and what they answer."""

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


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """One partition's search: its candidates, what is known beforehand, and where randomness comes from."""

    partition: Partition
    features: Features
    """Features of every candidate."""
    prior: Gpu
    """A GPU whose model is what `informed` expects before it has measured; never the one that is searched."""
    config: SearchConfig
    generator: np.random.Generator

    def unmeasured(self, data: Dataset) -> Indices:
        """Numbers of the candidates that `data` lacks, ascending."""
        return np.setdiff1d(np.arange(len(self.features)), data.candidates)


@dataclass(frozen=True, slots=True)
class Prediction:
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
    """Candidates of one round by the pass that chose them, and what was predicted for all that were on offer."""

    passes: list[Chosen]
    offered: Indices
    """Numbers of the candidates that `prediction` is about, ascending."""
    prediction: Prediction | None
    looks: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Numbers of the candidates to look at, before any is measured."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more is worth measuring."""

    why: str


Proposer = Callable[[Dataset, int], Proposal | Stop]
"""Given the data and the round (0 first), what to measure next."""
BUDGET_SPENT = Stop("budget spent")
