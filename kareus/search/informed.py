"""Strategy `informed`: believe the GPU model as far as data bear it out, measure what may widen the frontier.

A round conditions the belief (`kareus.search.belief`) on all data, draws joint samples of all plausible candidates, and
chooses, one after the other, the candidates that add most hypervolume on average over the samples, each counting what
the ones before it will have added. The same samples say what all candidates together could still add; once that is
little the search ends. docs/search.md says more.
"""

import numpy as np
from numpy.typing import NDArray

from kareus.pareto import Points, hypervolume, hypervolume_improvement, pareto_front
from kareus.search.belief import Belief, Conditioned, costs
from kareus.search.dataset import Dataset, Indices
from kareus.search.prior import imagine
from kareus.search.problem import BUDGET_SPENT, Chosen, Prediction, Proposal, Proposer, SearchProblem, Stop
from kareus.workload.config import InformedSearch

OPTIMISM = 1.5
"""Standard deviations by which a candidate is taken to be better when it is decided whether it is plausible."""
CORNER = np.ones(2)
"""The reference point in scaled axes."""


def informed(problem: SearchProblem, config: InformedSearch) -> Proposer:
    """Imagine GPUs and return the proposer; what it keeps between rounds depends on nothing measured."""
    ensemble = imagine(problem.prior, problem.partition, problem.features, config.draws, problem.generator)
    belief = Belief(problem.features, ensemble, config.noise)

    def propose(data: Dataset, round_: int) -> Proposal | Stop:
        offered = problem.unmeasured(data)
        room = min(config.batch if round_ else config.initial, config.most - len(data.candidates), len(offered))
        if room <= 0:
            return BUDGET_SPENT
        believed = belief.given(data)
        expected = costs(believed.mean, data.static_power_w)
        plausible = _plausible(believed, expected, offered, data.static_power_w, config)
        rows = np.concatenate((plausible, data.candidates))
        samples = costs(believed.sample(rows, config.samples, problem.generator), data.static_power_w)
        futures = [_Future(sample, len(plausible), config.reference_margin) for sample in samples]
        remaining = float(np.mean([future.remaining for future in futures]))
        if len(data.candidates) >= config.least and remaining < config.enough:
            return Stop(f"predicted to lack {remaining:.2%} of the hypervolume")
        chosen = _greedy(futures, room)
        prediction = Prediction(expected[offered, 0], expected[offered, 1])
        return Proposal([Chosen("improvement" if round_ else "initial", plausible[chosen])], offered, prediction)

    return propose


class _Future:
    """One sample of the belief: what the candidates cost, in axes scaled to its own frontier."""

    def __init__(self, sample: Points, plausible: int, margin: float) -> None:
        """Scale `sample`, whose first `plausible` points may be measured and whose others have been."""
        front = pareto_front(sample)
        ideal, reference = front.min(axis=0), margin * front.max(axis=0)
        scaled = (sample - ideal) / (reference - ideal)
        self.candidates = scaled[:plausible]
        self.front = pareto_front(scaled[plausible:])
        self.remaining = 1 - hypervolume(self.front, CORNER) / hypervolume(scaled, CORNER)
        """Share of the hypervolume that measuring everything would add."""

    def improvements(self) -> NDArray[np.float64]:
        """Of every candidate."""
        return hypervolume_improvement(self.candidates, self.front, CORNER)

    def measure(self, candidate: int) -> None:
        """Count a candidate as measured."""
        self.front = pareto_front(np.vstack((self.front, self.candidates[candidate])))


def _greedy(futures: list[_Future], size: int) -> list[int]:
    """Choose, one after the other, the candidates of the largest mean improvement; of equal ones the most plausible."""
    chosen: list[int] = []
    for _ in range(size):
        gain = np.sum([future.improvements() for future in futures], axis=0)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        for future in futures:
            future.measure(chosen[-1])
    return chosen


def _plausible(
    believed: Conditioned, expected: Points, offered: Indices, static_power_w: float, config: InformedSearch
) -> Indices:
    """The candidates that, taken optimistically, come closest to the expected frontier or farthest beyond it."""
    front = pareto_front(expected)
    ideal = front.min(axis=0)
    extent = config.reference_margin * front.max(axis=0) - ideal
    hoped = costs(believed.mean - OPTIMISM * believed.deviation, static_power_w)[offered]
    behind = ((hoped[:, None] - front) / extent).max(axis=2).min(axis=1)
    return offered[np.argsort(behind, kind="stable")[: config.plausible]]
