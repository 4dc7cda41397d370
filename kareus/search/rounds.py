"""The search loop: propose, measure times, measure, compare hypervolumes, stop or go on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kareus.pareto import hypervolume
from kareus.profile.measure import Measurement, TimeMeasurement
from kareus.search.config import PaperSearch, SearchConfig, Strategy
from kareus.search.dataset import Dataset
from kareus.search.noise import Noise
from kareus.search.problem import Proposal, Proposer, SearchProblem, Stop
from kareus.search.strategy import proposer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measured candidate."""

    candidate: int
    round: int
    chosen_by: tuple[str, ...]
    """Every pass that chose it, in the order of the passes."""
    predicted_time_s: float | None
    predicted_dynamic_energy_j: float | None
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTrial:
    """One candidate whose time alone was measured."""

    candidate: int
    round: int
    measurement: TimeMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTrial:
    """One measured candidate that was measured once more."""

    candidate: int
    round: int
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How one round went."""

    round: int
    measured: int
    """Number of measurements up to and with this round."""
    timed: int
    """Number of time-only measurements up to and with this round."""
    hypervolume: float
    """Hypervolume of the measured (time, total energy), each divided by its maximum so far."""
    improvement: float | None
    """Relative improvement over the round before; None for the first measurements, and as long as there are none."""
    measuring_s: float
    """Testbed's clock spent in this round."""
    timing_s: float
    """Testbed's clock spent on time-only measurements in this round, a part of `measuring_s`."""
    noise: Noise | None
    """Noise that was reckoned with after this round; None if the strategy reckons with none."""
    stop: Stop | None
    """Why the search ended after this round; None if it went on."""


@dataclass(slots=True)
class SearchRun:
    """All trials and rounds of the search of one partition."""

    trials: list[Trial] = field(default_factory=list)
    time_trials: list[TimeTrial] = field(default_factory=list)
    repeats: list[RepeatedTrial] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    proposing_s: list[float] = field(default_factory=list)
    """Wall clock spent on each proposal, by round; one more than rounds if the last proposal was to end."""

    def dataset(self, static_power_w: float) -> Dataset:
        """Return what has been measured so far."""
        return Dataset(
            candidates=np.array([t.candidate for t in self.trials], dtype=np.int64),
            time_s=np.array([t.measurement.time_s for t in self.trials]),
            energy_j=np.array([t.measurement.energy_j for t in self.trials]),
            static_power_w=static_power_w,
            timed=np.array([t.candidate for t in self.time_trials], dtype=np.int64),
            timed_time_s=np.array([t.measurement.time_s for t in self.time_trials]),
            repeated=np.array([t.candidate for t in self.repeats], dtype=np.int64),
            repeated_time_s=np.array([t.measurement.time_s for t in self.repeats]),
            repeated_energy_j=np.array([t.measurement.energy_j for t in self.repeats]),
        )


def run_search(
    problem: SearchProblem,
    measure: Callable[..., Measurement],
    measure_time: Callable[[int], TimeMeasurement],
    static_power_w: float,
    report: Callable[[Round], None] = lambda _: None,
) -> SearchRun:
    """Search until the strategy has nothing to propose, the budget is spent or the hypervolume no longer grows.

    Args:
        problem: what to search, how and with which budget.
        measure: measures the candidate of a number; again if 1 is given as the second argument.
        measure_time: measures the time alone of the candidate of a number.
        static_power_w: splits measured energy into static and dynamic.
        report: called with every round as it ends.
    """
    search = SearchRun()
    propose = _timed(proposer_of(problem), search.proposing_s)
    proposal = propose(search.dataset(static_power_w), 0)
    while isinstance(proposal, Proposal):
        number = len(search.rounds)
        before = search.dataset(static_power_w)
        search.time_trials += [
            TimeTrial(candidate=c, round=number, measurement=measure_time(c)) for c in proposal.time_only.tolist()
        ]
        search.trials += _measure_all(proposal, number, measure)
        search.repeats += [
            RepeatedTrial(candidate=c, round=number, measurement=measure(c, 1)) for c in proposal.repeats.tolist()
        ]
        timing_s = sum(t.measurement.duration_s for t in search.time_trials[len(before.timed) :])
        measuring_s = sum(t.measurement.duration_s for t in search.trials[len(before.candidates) :])
        measuring_s += sum(t.measurement.duration_s for t in search.repeats[len(before.repeated) :])
        data = search.dataset(static_power_w)
        volume, improvement = _progress(before, data, problem.config.reference_margin)
        proposal = _converged([r.improvement for r in search.rounds] + [improvement], problem.config) or propose(
            data, number + 1
        )
        search.rounds.append(
            Round(
                round=number,
                measured=len(data.candidates),
                hypervolume=volume,
                improvement=improvement,
                timed=len(data.timed),
                measuring_s=timing_s + measuring_s,
                timing_s=timing_s,
                noise=proposal.noise,
                stop=proposal if isinstance(proposal, Stop) else None,
            )
        )
        report(search.rounds[-1])
    return search


def _timed(propose: Proposer, spent_s: list[float]) -> Proposer:
    """Wrap `propose`, adding the wall clock that each proposal took to `spent_s`."""

    def timed(data: Dataset, round_: int) -> Proposal | Stop:
        began_s = time.perf_counter()
        answer = propose(data, round_)
        spent_s.append(time.perf_counter() - began_s)
        return answer

    return timed


def _measure_all(proposal: Proposal, round_: int, measure: Callable[..., Measurement]) -> list[Trial]:
    chosen_by: dict[int, list[str]] = {}
    for chosen in proposal.passes:
        for candidate in chosen.candidates.tolist():
            chosen_by.setdefault(candidate, []).append(chosen.chosen_by)
    trials = []
    for candidate, passes in chosen_by.items():
        time_s = dynamic_energy_j = None
        if proposal.prediction is not None:
            place = int(np.searchsorted(proposal.offered, candidate))
            time_s = float(proposal.prediction.time_s[place])
            dynamic_energy_j = float(proposal.prediction.dynamic_energy_j[place])
        trials.append(
            Trial(
                candidate=candidate,
                round=round_,
                chosen_by=tuple(passes),
                predicted_time_s=time_s,
                predicted_dynamic_energy_j=dynamic_energy_j,
                measurement=measure(candidate),
            )
        )
    return trials


def _progress(before: Dataset, after: Dataset, margin: float) -> tuple[float, float | None]:
    """Hypervolume of (time, total energy), each divided by its maximum so far, and its relative improvement.

    Both hypervolumes are taken on the scale of the later data, so that a new worst point is no progress.
    """
    if not len(after.candidates):
        return 0.0, None
    scale = after.total.max(axis=0)
    reference = np.full(2, margin)
    volume = hypervolume(after.total / scale, reference)
    if not len(before.candidates):
        return volume, None
    return volume, volume / hypervolume(before.total / scale, reference) - 1


def _converged(improvements: list[float | None], config: SearchConfig) -> Stop | None:
    """The stopping rule of `paper`, over the last rounds' improvements of the hypervolume."""
    scored = [i for i in improvements if i is not None]
    if not isinstance(config, PaperSearch) or config.strategy is not Strategy.PAPER:
        return None
    if len(scored) < config.stopping_window:
        return None
    mean = sum(scored[-config.stopping_window :]) / config.stopping_window
    if mean >= config.stopping_improvement:
        return None
    return Stop(f"hypervolume grew {mean:.2%} a round over {config.stopping_window} rounds")
