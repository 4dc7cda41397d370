"""Strategies: which candidates a round measures.

`informed` has a GPU model as its prior; `random` and `exhaustive` are baselines. `paper` selects in several passes
(paper, section 4.3.2 and Algorithm 1): three exploit by hypervolume improvement, each in its own plane of (time,
energy): total, dynamic and static energy. The fourth explores where the ensembles disagree most. Energies of a plane
follow from the two surrogates: total = dynamic + static power x time, static = static power x time.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kareus.pareto import Points, hypervolume_improvement
from kareus.search.config import InformedSearch, PaperSearch, SampleSizes, Strategy
from kareus.search.dataset import Dataset
from kareus.search.informed import informed
from kareus.search.problem import BUDGET_SPENT, Chosen, CostPrediction, Proposal, Proposer, SearchProblem, Stop
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


def pass_sizes(config: PaperSearch, batch: int) -> dict[str, int]:
    """Return the sizes of the exploitation passes: floors of their shares; what remains of the batch is exploration."""
    shares = {
        "total": config.total_energy_share,
        "dynamic": config.dynamic_energy_share,
        "static": config.static_energy_share,
    }
    # A share such as 0.2 of 15 is 3, not 2.9999999999999996.
    return {name: int(np.floor(round(share * batch, 9))) for name, share in shares.items()}


def select(
    data: Dataset, prediction: CostPrediction, uncertainty: NDArray[np.float64], config: PaperSearch, batch: int
) -> list[Chosen]:
    """Choose the next batch among the candidates that `prediction` and `uncertainty` describe.

    Each exploitation pass ranks all candidates, as the algorithm is written, so passes may agree, and each of them is
    credited; what they leave of the batch goes to the uncertainty pass. Ties go to the lower predicted energy of the
    pass, then to the earlier candidate.
    """
    batch = min(batch, len(prediction.time_s))
    taken = np.zeros(len(prediction.time_s), dtype=bool)
    passes = []
    for name, size in pass_sizes(config, batch).items():
        measured = plane(name, data.time_s, data.dynamic_energy_j, data.static_power_w)
        predicted = plane(name, prediction.time_s, prediction.dynamic_energy_j, data.static_power_w)
        score = normalised_improvement(predicted, measured, config.reference_margin)
        # Largest improvement first; ties by the energy of the plane, then by number (the last key of lexsort leads).
        energy_j = predicted[:, 1]
        ranked = np.lexsort((np.arange(len(score)), energy_j, -score))[:size]
        passes.append(Chosen(name, ranked))
        taken[ranked] = True
    ranked = np.lexsort((np.arange(len(taken)), plane_energy(prediction, data.static_power_w), -uncertainty))
    passes.append(Chosen("uncertainty", ranked[~taken[ranked]][: batch - int(taken.sum())]))
    return passes


def plane(
    name: str, time_s: NDArray[np.float64], dynamic_energy_j: NDArray[np.float64], static_power_w: float
) -> Points:
    """Return the points of the plane of pass `name`: time and its energy, shape (n, 2)."""
    energies = {
        "total": dynamic_energy_j + static_power_w * time_s,
        "dynamic": dynamic_energy_j,
        "static": static_power_w * time_s,
    }
    return np.column_stack((time_s, energies[name]))


def plane_energy(prediction: CostPrediction, static_power_w: float) -> NDArray[np.float64]:
    """Return the predicted total energy, which breaks the ties of the uncertainty pass."""
    return plane("total", prediction.time_s, prediction.dynamic_energy_j, static_power_w)[:, 1]


def normalised_improvement(predicted: Points, measured: Points, margin: float) -> NDArray[np.float64]:
    """Return the hypervolume improvement of each prediction over the measured front.

    Both axes are divided by their worst measurement; the reference point is then `margin` on both axes (paper,
    appendix on hyperparameters).
    """
    scale = measured.max(axis=0)
    return hypervolume_improvement(predicted / scale, measured / scale, np.full(2, margin))
