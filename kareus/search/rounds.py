"""The search loop: propose, look, measure, compare hypervolumes, stop or go on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kareus.pareto import hypervolume
from kareus.profile.measure import Look, Measurement
from kareus.search.config import PaperSearch, SearchConfig, Strategy
from kareus.search.dataset import Dataset
from kareus.search.problem import Proposal, Proposer, SearchProblem, Stop
from kareus.search.strategy import proposer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measured candidate."""

    candidate: int
    round: int
    chosen_by: str
    predicted_time_s: float | None
    predicted_dynamic_energy_j: float | None
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """One candidate that was looked at."""

    candidate: int
    round: int
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How one round went."""

    round: int
    measured: int
    hypervolume: float
    improvement: float | None
    """None for the first measurements, and as long as there are none."""
    looked: int
    """Looks up to and with this round."""
    measuring_s: float
    """Testbed's clock, looks included."""
    looking_s: float
    """Of that, on looks."""
    stop: str


@dataclass(slots=True)
class Search:
    """All trials and rounds of one partition."""

    trials: list[Trial] = field(default_factory=list)
    glances: list[Glance] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    proposing_s: list[float] = field(default_factory=list)
    """Wall clock spent on each proposal, by round; one more than rounds if the last proposal was to end."""

    def dataset(self, static_power_w: float) -> Dataset:
        """What has been measured and looked at."""
        return Dataset(
            candidates=np.array([t.candidate for t in self.trials], dtype=np.int64),
            time_s=np.array([t.measurement.time_s for t in self.trials]),
            energy_j=np.array([t.measurement.energy_j for t in self.trials]),
            static_power_w=static_power_w,
            looked=np.array([g.candidate for g in self.glances], dtype=np.int64),
            looked_time_s=np.array([g.look.time_s for g in self.glances]),
        )


def run_search(
    problem: SearchProblem,
    measure: Callable[[int], Measurement],
    look: Callable[[int], Look],
    static_power_w: float,
    report: Callable[[Round], None] = lambda _: None,
) -> Search:
    """Search until the strategy has nothing to propose, the budget is spent or the hypervolume stands still.

    Args:
        problem: what to search, how and with which budget.
        measure: measures the candidate of a number.
        look: looks at the candidate of a number.
        static_power_w: splits measured energy into static and dynamic.
        report: told of every round as it ends.
    """
    search = Search()
    propose = _timed(proposer_of(problem), search.proposing_s)
    proposal = propose(search.dataset(static_power_w), 0)
    while isinstance(proposal, Proposal):
        number = len(search.rounds)
        before = search.dataset(static_power_w)
        search.glances += [Glance(candidate=c, round=number, look=look(c)) for c in proposal.looks.tolist()]
        search.trials += _measure_all(proposal, number, measure)
        looking_s = sum(g.look.duration_s for g in search.glances[len(before.looked) :])
        measuring_s = sum(t.measurement.duration_s for t in search.trials[len(before.candidates) :])
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
                looked=len(data.looked),
                measuring_s=looking_s + measuring_s,
                looking_s=looking_s,
                stop=proposal.why if isinstance(proposal, Stop) else "",
            )
        )
        report(search.rounds[-1])
    return search


def _timed(propose: Proposer, spent_s: list[float]) -> Proposer:
    """As `propose`; adds to `spent_s` what each proposal took."""

    def timed(data: Dataset, round_: int) -> Proposal | Stop:
        began_s = time.perf_counter()
        answer = propose(data, round_)
        spent_s.append(time.perf_counter() - began_s)
        return answer

    return timed


def _measure_all(proposal: Proposal, round_: int, measure: Callable[[int], Measurement]) -> list[Trial]:
    trials = []
    for chosen in proposal.passes:
        for candidate in chosen.candidates.tolist():
            time_s = dynamic_energy_j = None
            if proposal.prediction is not None:
                place = int(np.searchsorted(proposal.offered, candidate))
                time_s = float(proposal.prediction.time_s[place])
                dynamic_energy_j = float(proposal.prediction.dynamic_energy_j[place])
            trials.append(
                Trial(
                    candidate=candidate,
                    round=round_,
                    chosen_by=chosen.chosen_by,
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
    known = [i for i in improvements if i is not None]
    if not isinstance(config, PaperSearch) or config.strategy is not Strategy.PAPER:
        return None
    if len(known) < config.stopping_window:
        return None
    mean = sum(known[-config.stopping_window :]) / config.stopping_window
    if mean >= config.stopping_improvement:
        return None
    return Stop(f"hypervolume grew {mean:.2%} a round over {config.stopping_window} rounds")
