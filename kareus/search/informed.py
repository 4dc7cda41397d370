"""Strategy `informed`: believe the GPU model as far as data bear it out, measure what may widen the frontier.

A round conditions the belief (`kareus.search.belief`) on all data, draws joint samples of all plausible candidates, and
chooses, one after the other, the candidates that add most hypervolume on average over the samples, each counting what
the ones before it will have added. The same samples say what all candidates together could still add; once that is
little the search ends. docs/search.md says more.
"""

import numpy as np
from numpy.typing import NDArray

from kareus.pareto import Points, pareto_mask, hypervolume, hypervolume_improvement, pareto_front
from kareus.search.belief import Belief, Conditioned, costs
from kareus.search.dataset import Dataset, Indices
from kareus.search.prior import imagine
from kareus.search.problem import BUDGET_SPENT, Chosen, Prediction, Proposal, Proposer, SearchProblem, Stop
from kareus.workload.config import InformedSearch

OPTIMISM = 1.5
"""Standard deviations by which a candidate is taken to be better when it is decided whether it is plausible."""
UNKNOWN = 1.0
LIKELY = 0.3
DEBUG = False
CORNER = np.ones(2)
"""The reference point in scaled axes."""


def informed(problem: SearchProblem, config: InformedSearch) -> Proposer:
    """Imagine GPUs and return the proposer; what it keeps between rounds follows from the data."""
    ensemble = imagine(problem.prior, problem.partition, problem.features, config.draws, problem.generator)
    belief = Belief(problem.features, ensemble, config.noise)
    errors: list[float] = []
    expected_of_looks = np.zeros((2, 0))

    def propose(data: Dataset, round_: int) -> Proposal | Stop:
        nonlocal expected_of_looks
        offered = problem.unmeasured(data)
        room = min(config.batch if round_ else config.initial, config.most - len(data.candidates), len(offered))
        if room <= 0:
            return BUDGET_SPENT
        believed = belief.given(data)
        latest = np.log(data.looked_time_s[len(errors) :])
        mean, deviation = expected_of_looks
        errors.extend(((latest - mean) / np.hypot(deviation, config.noise)).tolist())
        expected = costs(believed.mean, data.static_power_w)
        plausible = _plausible(believed, expected, offered, data.static_power_w, config)
        rows = np.concatenate((plausible, data.candidates))
        samples = costs(believed.sample(rows, config.samples, problem.generator), data.static_power_w)
        futures = [_Future(sample, len(plausible), config.reference_margin) for sample in samples]
        remaining = float(np.mean([future.remaining for future in futures]))
        likelihood = np.mean([future.best for future in futures], axis=0)
        contenders = np.flatnonzero(likelihood)
        for future in futures:
            future.candidates = future.candidates[contenders]
        found, gains = _greedy(futures, min(config.looks, len(contenders)))
        gains = np.array(gains) / len(futures)
        picks = contenders[found]
        calibrated = float(np.mean(np.square(errors[-config.judged :]))) if len(errors) >= config.judged else np.inf
        next_gain = gains[: config.batch].sum()
        if DEBUG: print(round_, len(data.candidates), len(data.looked), 'remaining %.4f next %.5f cal %.2f contenders %d'%(remaining, next_gain, calibrated, len(contenders)), believed.hyperparameters.scales)
        if next_gain < config.enough and calibrated < config.surprise and len(data.candidates) > 8:
            return Stop(f"predicted to lack {remaining:.2%} of the hypervolume")
        unknown = believed.deviation[:len(believed.mean)//2][plausible] > config.noise * UNKNOWN
        unknown &= ~np.isin(plausible, data.looked)
        if round_ == 0:
            clocks = problem.features[:, 0]
            anchors = np.linspace(clocks.min(), clocks.max(), room)
            best = np.sum(expected / expected.min(axis=0), axis=1)
            measured = np.array(sorted({int(np.argmin(best + 1e3 * np.abs(clocks - anchor))) for anchor in anchors}))
            looks0 = picks[~np.isin(plausible[picks], measured)]
            looked = looks0
        else:
            known = picks[~unknown[picks]]
            looked = picks[unknown[picks]]
            likely = known[likelihood[known] >= LIKELY]
            measured = likely[:room] if len(looked) > 0 else known[:room]
        doubtful = np.argsort(-believed.deviation[:len(believed.mean)//2][plausible] * unknown, kind="stable")
        doubtful = doubtful[unknown[doubtful]]
        doubtful = doubtful[~np.isin(doubtful, picks)][: config.doubtful]
        looks = plausible[np.concatenate((looked, doubtful)).astype(int)]
        size = len(believed.mean)//2
        expected_of_looks = np.stack((believed.mean[looks], believed.deviation[looks]))
        if not len(measured) and not len(looks):
            measured = picks[:room]
            if not len(measured):
                return Stop("nothing left that may widen the frontier")
        prediction = Prediction(expected[offered, 0], expected[offered, 1])
        chosen = Chosen("improvement" if round_ else "initial", plausible[measured] if round_ else measured)
        return Proposal([chosen], offered, prediction, looks)

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
        self.best = pareto_mask(scaled)[:plausible]
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
    gains = []
    for _ in range(size):
        gain = np.sum([future.improvements() for future in futures], axis=0)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        gains.append(gain.max())
        for future in futures:
            future.measure(chosen[-1])
    return chosen, gains


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
