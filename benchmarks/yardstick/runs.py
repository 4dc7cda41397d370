"""Runs: one partition under one truth, searched by several strategies with the profiler and protocol of planning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kareus.artifacts.randomness import generator
from kareus.artifacts.store import Row
from kareus.pareto import Points
from kareus.profile.measure import Measurement, Profiler
from kareus.search.prior import textbook
from kareus.search.problem import SearchProblem
from kareus.search.rounds import Trial, run_search
from kareus.search.stage import partition_program
from kareus.testbed.simulated.testbed import SimulatedTestbed
from kareus.workload.config import SearchConfig
from yardstick.peers import PEERS, search_with_peer
from yardstick.score import hypervolume_shares
from yardstick.subjects import Subject
from yardstick.truths import Truth, truth_of


class MemoryShelf(dict[tuple[Any, ...], Row]):
    """Keeps measurements for as long as one run lasts, so that strategies do not simulate the same one twice."""

    def append(self, row: Row) -> None:
        """Add a row of the table of measurements."""
        self[row["program"], row["frequency_mhz"], row["repeat"]] = row


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does at a time."""

    subject: Subject
    seed: int
    strategies: dict[str, SearchConfig]
    """Strategies by name, with their configurations; a peer's is that of `paper`, whose sizes it keeps to."""


def run(job: Job) -> list[Row]:
    """Search the job's partition with each strategy; returns one row of `RUNS` for each measurement."""
    subject, truth = job.subject, truth_of(job.subject.workload.gpu, job.seed)
    costs, measure = true_costs(subject, truth), measuring(subject, truth, job.seed)
    return [
        row
        for strategy, config in job.strategies.items()
        for row in _rows(job, truth, strategy, costs, searched(strategy, _problem(job, config), measure))
    ]


def true_costs(subject: Subject, truth: Truth) -> Points:
    """Noise-free (time, dynamic energy) of every candidate."""
    behaviour = truth.run_schedules(truth.gpu, subject.partition, *subject.features.T)
    return np.column_stack((behaviour.time_s, behaviour.energy_j - truth.gpu.static_power_w * behaviour.time_s))


def measuring(subject: Subject, truth: Truth, seed: int) -> Callable[[int], Measurement]:
    """Measures a candidate as planning does, on a simulated testbed that follows `truth`."""
    workload = subject.workload
    testbed = SimulatedTestbed(
        config=workload.testbed,
        gpu=truth.gpu,
        predecessor_power_w=workload.protocol.predecessor_power_w,
        seed=seed,
        run=truth.run_program,
    )
    profiler = Profiler(testbed, workload.protocol, MemoryShelf())

    def measure(candidate: int) -> Measurement:
        frequency_mhz, sm_count, launch = subject.features[candidate].astype(int).tolist()
        return profiler.measure(partition_program(subject.partition, sm_count, launch), frequency_mhz)

    return measure


def searched(strategy: str, problem: SearchProblem, measure: Callable[[int], Measurement]) -> Sequence[Trial]:
    """Trials of one search; planning's own strategies by the same call as planning makes."""
    static_power_w = problem.prior.static_power_w
    if strategy in PEERS:
        return search_with_peer(strategy, problem, measure, static_power_w)
    return run_search(problem, measure, static_power_w).trials


def search_problem(subject: Subject, config: SearchConfig, seed: int) -> SearchProblem:
    """The problem that planning poses."""
    return SearchProblem(
        partition=subject.partition,
        features=subject.features,
        prior=textbook(subject.workload.gpu),
        config=config,
        generator=generator(seed, f"{subject.name} {subject.partition.name}"),
    )


def _problem(job: Job, config: SearchConfig) -> SearchProblem:
    return search_problem(job.subject, config, job.seed)


def _rows(job: Job, truth: Truth, strategy: str, costs: Points, trials: Sequence[Trial]) -> list[Row]:
    shares = hypervolume_shares(costs, np.array([t.candidate for t in trials], dtype=np.int64))
    group_size = job.subject.partition.collective.group_size
    gpu_s = np.cumsum([t.measurement.duration_s * group_size for t in trials])
    same = {
        "workload": job.subject.name,
        "partition": job.subject.partition.name,
        "truth": truth.kind.value,
        "seed": job.seed,
        "strategy": strategy,
    }
    return [
        same
        | {
            "measured": number,
            "candidate": trial.candidate,
            "chosen_by": trial.chosen_by,
            "gpu_s": spent,
            "hypervolume_share": share,
        }
        for number, (trial, spent, share) in enumerate(zip(trials, gpu_s.tolist(), shares.tolist(), strict=True), 1)
    ]
