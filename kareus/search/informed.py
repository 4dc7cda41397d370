"""Strategy `informed`: a Gaussian process whose prior is the GPU model; measure times first, then what is promising.

A round conditions the prior on all data (`kareus.search.posterior`), draws joint samples of all plausible candidates,
and picks greedily the candidates that add most hypervolume on average over the samples. It measures the time alone of
picks whose time is uncertain, and measures whole those whose time is known and that are likely to stay on the frontier;
the first round only measures times. The search ends once its picks together would add little and the latest times were
predicted with a small calibration error. docs/internals/search.md says more.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array, Indices
from kareus.pareto import Points, pareto_front
from kareus.search.config import InformedSearch
from kareus.search.dataset import Dataset
from kareus.search.noise import Noise, noise_of
from kareus.search.posterior import GaussianPrior, Posterior, costs
from kareus.search.posterior_samples import PosteriorSamples
from kareus.search.prior import sample_prior
from kareus.search.problem import BUDGET_SPENT, Chosen, CostPrediction, Proposal, Proposer, SearchProblem, Stop

OPTIMISM = 1.5
"""Standard deviations by which a candidate's cost is lowered when it is decided whether the candidate is plausible."""
LIKELY = 0.3
"""Chance of being on the frontier from which a candidate is measured while the times of others are still measured."""


def informed(problem: SearchProblem, config: InformedSearch) -> Proposer:
    """Sample the prior and return the proposer; what it keeps between rounds follows from the data."""
    ensemble = sample_prior(problem.prior, problem.partition, problem.features, config.draws, problem.generator)
    prior = GaussianPrior(problem.features, ensemble)
    calibration = _Calibration()

    def propose(data: Dataset, round_: int) -> Proposal | Stop:
        offered = problem.unmeasured(data)
        room = _room(config, data, offered)
        noise = noise_of(data, config.noise)
        if not len(offered):
            return replace(BUDGET_SPENT, noise=noise)
        posterior = prior.condition(data, noise)
        calibration.compare(np.log(data.timed_time_s), noise.time)
        expected = costs(posterior.mean, data.static_power_w)
        plausible = _plausible(posterior, expected, offered, data.static_power_w, config)
        samples = _samples(problem, config, posterior, plausible, data)
        picks, added = samples.best(config.picks)
        if added.sum() < config.enough and calibration.error(config.judged) < config.surprise:
            return Stop(f"the {len(picks)} best are predicted to add {added.sum():.2%} of the hypervolume", noise=noise)
        if room <= 0:
            return _cut_short(samples.remaining, noise)
        uncertain = _uncertain(posterior, plausible, data, config, noise)
        # Picks of uncertain time get a time-only measurement, and so do some of the least certain other candidates.
        others = _least_certain(posterior.time_deviation[plausible] * uncertain, picks, config.doubtful)
        time_only = plausible[np.concatenate((picks[uncertain[picks]], others))]
        if not len(picks) and not len(time_only):
            return Stop("nothing is predicted to widen the frontier", noise=noise)
        chosen_by = "improvement" if len(data.candidates) else "initial"
        if len(data.candidates):
            # While times of some picks are still uncertain, only those likely to stay on the frontier are measured.
            certain = picks[~uncertain[picks]]
            likely = certain[samples.chances[certain] >= LIKELY]
            measured = plausible[likely if uncertain[picks].any() else picks][:room]
        else:
            # The first round only measures times, unless there is none to measure.
            count = room if round_ or not len(time_only) else 0
            measured = _anchors(problem.features.frequency_mhz, expected, count)
        calibration.expect(posterior.mean[time_only], posterior.time_deviation[time_only])
        prediction = CostPrediction(expected[offered, 0], expected[offered, 1])
        repeats = measured if chosen_by == "initial" else measured[:0]
        return Proposal([Chosen(chosen_by, measured)], offered, prediction, time_only, repeats, noise)

    return propose


class _Calibration:
    """How well times were predicted that were measured afterwards."""

    def __init__(self) -> None:
        """Start without predictions."""
        self._mean = self._deviation = np.zeros(0)

    def expect(self, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> None:
        """Add predictions: means and standard deviations of the logarithms of the times that are measured next."""
        self._mean = np.concatenate((self._mean, mean))
        self._deviation = np.concatenate((self._deviation, deviation))

    def compare(self, measured: NDArray[np.float64], noise: float) -> None:
        """Compare with the logarithms of all measured times, in the order of the predictions.

        Args:
            measured: the logarithms.
            noise: standard deviation of one.
        """
        self._errors = (measured - self._mean) / np.hypot(self._deviation, noise)

    def error(self, latest: int) -> float:
        """Return the mean square of the latest standardised errors, about 1 if the posterior is calibrated."""
        return float(np.square(self._errors[-latest:]).mean()) if len(self._errors) else np.inf


def _room(config: InformedSearch, data: Dataset, offered: Indices) -> int:
    """Number of candidates that the round may measure."""
    batch = config.batch if len(data.candidates) else config.initial
    return min(batch, config.most - len(data.candidates), len(offered))


def _samples(
    problem: SearchProblem, config: InformedSearch, posterior: Posterior, plausible: Indices, data: Dataset
) -> PosteriorSamples:
    """Joint samples of what is plausible and of what has been measured, through which a sample's frontier runs too."""
    rows = np.concatenate((plausible, data.candidates))
    drawn = posterior.sample(rows, config.samples, problem.generator)
    return PosteriorSamples(costs(drawn, data.static_power_w), len(plausible), config.reference_margin)


def _cut_short(remaining: float, noise: Noise) -> Stop:
    why = f"{BUDGET_SPENT.why}; the rest is predicted to add {remaining:.2%} of the hypervolume"
    return Stop(why, is_cut_short=True, remaining=remaining, noise=noise)


def _uncertain(
    posterior: Posterior, plausible: Indices, data: Dataset, config: InformedSearch, noise: Noise
) -> NDArray[np.bool_]:
    """Mask of the plausible candidates whose time is worth a time-only measurement, shape (plausible,).

    That is: no time-only measurement was taken yet, the posterior deviates by more than half of what one measurement
    scatters, and the budget of time-only measurements is not spent.
    """
    if len(data.timed) >= config.most_looks:
        return np.zeros(len(plausible), dtype=bool)
    deviates: NDArray[np.bool_] = posterior.time_deviation[plausible] > noise.time / 2
    return deviates & ~np.isin(plausible, data.timed)


def _anchors(frequency_mhz: NDArray[np.float64], expected: Points, count: int) -> Indices:
    """The most promising candidates of clocks from the lowest to the highest: power has to be known at both ends.

    The promise of a candidate is the sum of its time and its energy, each relative to the least of all candidates.
    """
    cost = (expected / expected.min(axis=0)).sum(axis=1)
    clocks = np.unique(frequency_mhz)
    spread = clocks[np.linspace(0, len(clocks) - 1, min(count, len(clocks))).round().astype(int)]
    return np.array([int(np.where(frequency_mhz == clock, cost, np.inf).argmin()) for clock in spread])


def _least_certain(deviation: Array, picks: Indices, most: int) -> Indices:
    """Positions of the largest deviations other than `picks`, at most `most`; none whose deviation is 0."""
    order = np.argsort(-deviation, kind="stable")
    return order[(deviation[order] > 0) & ~np.isin(order, picks)][:most]


def _plausible(
    posterior: Posterior, expected: Points, offered: Indices, static_power_w: float, config: InformedSearch
) -> Indices:
    """The candidates that, taken optimistically, come closest to the expected frontier or farthest beyond it."""
    front = pareto_front(expected)
    ideal = front.min(axis=0)
    extent = config.reference_margin * front.max(axis=0) - ideal
    # A candidate is behind the expected frontier by the larger of its excesses in time and energy over the point of
    # the frontier that is closest in this sense; what is beyond the frontier has a negative distance.
    hoped = costs(posterior.mean - OPTIMISM * posterior.deviation, static_power_w)[offered]
    behind = ((hoped[:, None] - front) / extent).max(axis=2).min(axis=1)
    return offered[np.argsort(behind, kind="stable")[: config.plausible]]
