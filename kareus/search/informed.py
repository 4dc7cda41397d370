"""Strategy `informed`: believe the GPU model as far as data bear it out; look first, then measure what is promising.

A round conditions the belief (`kareus.search.belief`) on all data, draws joint samples of all plausible candidates, and
picks, one after the other, the candidates that add most hypervolume on average over the samples, each counting what
the ones before it will have added. It looks at those whose time is in doubt, and measures those whose time is known and
that are likely to stay on the frontier; the first round only looks. The search ends once its picks together would add
little and the belief has been right about the latest looks. docs/search.md says more.
"""

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Indices
from kareus.pareto import Points, pareto_front
from kareus.search.belief import Belief, Conditioned, costs
from kareus.search.config import InformedSearch
from kareus.search.dataset import Dataset
from kareus.search.futures import Futures
from kareus.search.prior import imagine
from kareus.search.problem import BUDGET_SPENT, Chosen, Prediction, Proposal, Proposer, SearchProblem, Stop

OPTIMISM = 1.5
"""Standard deviations by which a candidate is taken to be better when it is decided whether it is plausible."""
LIKELY = 0.3
"""Chance of being on the frontier from which a candidate is measured while others are still looked at."""


def informed(problem: SearchProblem, config: InformedSearch) -> Proposer:
    """Imagine GPUs and return the proposer; what it keeps between rounds follows from the data."""
    ensemble = imagine(problem.prior, problem.partition, problem.features, config.draws, problem.generator)
    belief = Belief(problem.features, ensemble, config.noise)
    record = _Record(config.noise)

    def propose(data: Dataset, round_: int) -> Proposal | Stop:
        offered = problem.unmeasured(data)
        room = min(
            config.batch if len(data.candidates) else config.initial, config.most - len(data.candidates), len(offered)
        )
        if room <= 0:
            return BUDGET_SPENT
        believed = belief.given(data)
        record.compare(np.log(data.looked_time_s))
        expected = costs(believed.mean, data.static_power_w)
        plausible = _plausible(believed, expected, offered, data.static_power_w, config)
        rows = np.concatenate((plausible, data.candidates))
        samples = costs(believed.sample(rows, config.samples, problem.generator), data.static_power_w)
        futures = Futures(samples, len(plausible), config.reference_margin)
        picks, added = futures.best(config.picks)
        if added.sum() < config.enough and record.surprise(config.judged) < config.surprise:
            return Stop(f"the {len(picks)} best are predicted to add {added.sum():.2%} of the hypervolume")
        unknown = ~np.isin(plausible, data.looked) & (believed.time_deviation[plausible] > config.noise / 2)
        if len(data.looked) >= config.most_looks:
            unknown[:] = False
        doubtful = _doubtful(believed.time_deviation[plausible] * unknown, picks, config.doubtful)
        looks = plausible[np.concatenate((picks[unknown[picks]], doubtful))]
        if not len(picks) and not len(looks):
            return Stop("nothing is predicted to widen the frontier")
        chosen_by = "improvement" if len(data.candidates) else "initial"
        if len(data.candidates):
            known = picks[~unknown[picks]]
            measured = plausible[known[futures.chances[known] >= LIKELY] if unknown[picks].any() else picks][:room]
        else:
            measured = _anchors(problem.features.frequency_mhz, expected, room if round_ or not len(looks) else 0)
        record.expect(believed.mean[looks], believed.time_deviation[looks])
        prediction = Prediction(expected[offered, 0], expected[offered, 1])
        return Proposal([Chosen(chosen_by, measured)], offered, prediction, looks)

    return propose


class _Record:
    """How right the belief has been about the times that looks then saw."""

    def __init__(self, noise: float) -> None:
        self._noise = noise
        self._mean = self._deviation = np.zeros(0)

    def expect(self, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> None:
        """Note what is believed of the logarithms of the times that are looked at next."""
        self._mean = np.concatenate((self._mean, mean))
        self._deviation = np.concatenate((self._deviation, deviation))

    def compare(self, seen: NDArray[np.float64]) -> None:
        """Take what all looks saw."""
        self._errors = (seen - self._mean) / np.hypot(self._deviation, self._noise)

    def surprise(self, latest: int) -> float:
        """Mean square of the standardised errors of the latest looks, about 1 if beliefs are right."""
        return float(np.square(self._errors[-latest:]).mean()) if len(self._errors) else np.inf


def _anchors(frequency_mhz: NDArray[np.float64], expected: Points, count: int) -> Indices:
    """The most promising candidates of clocks from the lowest to the highest: power has to be known at both ends."""
    cost = (expected / expected.min(axis=0)).sum(axis=1)
    clocks = np.unique(frequency_mhz)
    spread = clocks[np.linspace(0, len(clocks) - 1, min(count, len(clocks))).round().astype(int)]
    return np.array([int(np.where(frequency_mhz == clock, cost, np.inf).argmin()) for clock in spread])


def _doubtful(deviation: NDArray[np.float64], picks: Indices, most: int) -> Indices:
    """The candidates of the largest deviation beside `picks`; none whose deviation is 0."""
    order = np.argsort(-deviation, kind="stable")
    return order[(deviation[order] > 0) & ~np.isin(order, picks)][:most]


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
