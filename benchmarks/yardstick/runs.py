"""Runs: one partition under one truth, searched by several strategies with the profiler and protocol of planning."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kareus.arrays import generator
from kareus.artifacts.store import Row
from kareus.artifacts.tables import Column, TableSchema
from kareus.pareto import Points
from kareus.profile.measure import Measurement, TimeMeasurement, memory_profiler
from kareus.search.config import SearchConfig
from kareus.search.partition_search import candidate_program
from kareus.search.prior import textbook
from kareus.search.problem import SearchProblem
from kareus.search.rounds import SearchRun, run_search
from kareus.testbed.simulated_testbed import SimulatedTestbed
from yardstick.score import hypervolume_shares
from yardstick.subjects import Subject
from yardstick.truths import Truth, truth_of

RUNS = TableSchema(
    name="search_runs",
    version=1,
    meaning="Searches of simulated partitions by several strategies, one row for each measurement.",
    columns=(
        Column("workload", pl.String, "name of the workload"),
        Column("partition", pl.String, "name of the partition"),
        Column("truth", pl.String, "`perturbed` (the GPU model's laws, other coefficients) or `other-laws`"),
        Column("seed", pl.Int64, "of the truth, its noise and the search"),
        Column("strategy", pl.String, "`random`, `paper` or `informed`"),
        Column("measured", pl.Int64, "measurements up to and with this one", positive=True),
        Column("candidate", pl.Int64, "number of the candidate in the partition's search space"),
        Column("chosen_by", pl.String, "passes that chose it, with + between them"),
        Column("gpu_s", pl.Float64, "virtual GPU-seconds spent so far, all GPUs of the group", positive=True),
        Column("hypervolume_share", pl.Float64, "share of the exhaustive frontier's hypervolume, free of noise"),
    ),
    key=("workload", "partition", "seed", "strategy", "measured"),
)
"""Every measurement of every search, and what it brought."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does at a time."""

    subject: Subject
    seed: int
    strategies: dict[str, SearchConfig]
    """Strategies by name, with their configurations."""


def run(job: Job) -> list[Row]:
    """Search the job's partition with each strategy; returns one row of `RUNS` for each measurement."""
    subject, truth = job.subject, truth_of(job.subject.workload.gpu, job.seed)
    costs, instruments = true_costs(subject, truth), Instruments(subject, truth, job.seed)
    return [
        row
        for strategy, config in job.strategies.items()
        for row in _rows(job, truth, strategy, costs, _searched(job, config, instruments))
    ]


def true_costs(subject: Subject, truth: Truth) -> Points:
    """Noise-free (time, dynamic energy) of every candidate."""
    features = subject.features
    behaviour = truth.run_schedules(
        truth.gpu, subject.partition, features.frequency_mhz, features.sm_count, features.launch_index
    )
    return np.column_stack((behaviour.time_s, behaviour.energy_j - truth.gpu.static_power_w * behaviour.time_s))


class Instruments:
    """Measures candidates as planning does, on a simulated testbed that follows `truth`."""

    def __init__(self, subject: Subject, truth: Truth, seed: int) -> None:
        """Open the testbed, with nothing measured."""
        workload = subject.workload
        testbed = SimulatedTestbed(
            config=workload.testbed,
            gpu=truth.gpu,
            predecessor_power_w=workload.protocol.predecessor_power_w,
            seed=seed,
            run=truth.run_program,
        )
        self._subject = subject
        self._profiler = memory_profiler(testbed, workload.protocol)

    def measure(self, candidate: int, repeat: int = 0) -> Measurement:
        """Measure the candidate of a number."""
        program = candidate_program(self._subject.partition, self._subject.space[candidate])
        return self._profiler.measure(*program, repeat)

    def measure_time(self, candidate: int) -> TimeMeasurement:
        """Measure the time alone of the candidate of a number."""
        return self._profiler.measure_time(*candidate_program(self._subject.partition, self._subject.space[candidate]))


def _searched(job: Job, config: SearchConfig, instruments: Instruments) -> SearchRun:
    """One search, by the same call as planning makes."""
    subject = job.subject
    problem = SearchProblem(
        partition=subject.partition,
        features=subject.features,
        prior=textbook(subject.workload.gpu),
        config=config,
        generator=generator(job.seed, f"{subject.name} {subject.partition.name}"),
    )
    return run_search(problem, instruments.measure, instruments.measure_time, problem.prior.static_power_w)


def gpu_seconds(search: SearchRun, group_size: int) -> NDArray[np.float64]:
    """GPU-seconds spent up to and with each measurement, shape (n,).

    Time-only measurements and repeats before it are included.
    """
    timing_s = np.array([t.measurement.duration_s for t in search.time_trials])
    timed_in = np.array([t.round for t in search.time_trials], dtype=np.int64)
    again = [(t.round, t.measurement.duration_s) for t in search.repeats]
    measuring_s = np.cumsum([t.measurement.duration_s for t in search.trials])
    # Repeats of a round follow its measurements.
    before_s = np.array(
        [
            timing_s[timed_in <= t.round].sum() + sum(spent_s for round_, spent_s in again if round_ < t.round)
            for t in search.trials
        ]
    )
    spent: NDArray[np.float64] = group_size * (measuring_s + before_s)
    return spent


def _rows(job: Job, truth: Truth, strategy: str, costs: Points, search: SearchRun) -> list[Row]:
    trials = search.trials
    shares = hypervolume_shares(costs, np.array([t.candidate for t in trials], dtype=np.int64))
    gpu_s = gpu_seconds(search, job.subject.partition.collective.group_size)
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
            "chosen_by": "+".join(trial.chosen_by),
            "gpu_s": spent,
            "hypervolume_share": share,
        }
        for number, (trial, spent, share) in enumerate(zip(trials, gpu_s.tolist(), shares.tolist(), strict=True), 1)
    ]
