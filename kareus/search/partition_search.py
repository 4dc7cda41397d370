"""Searching one partition: a function from its search space to tables, over any profiler.

`kareus.search.stage` is its command.
"""

import logging
from dataclasses import dataclass
from typing import Any

import polars as pl

from kareus.arrays import generator
from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import Partition, Program
from kareus.pareto import pareto_mask
from kareus.profile.measure import Measurement, Profiler, TimeMeasurement
from kareus.profile.programs import partition_program
from kareus.progress.journal import OpenJournal, Standing, no_journal
from kareus.schedule.records import ExecutionSchedule, SearchSpace
from kareus.search.config import InformedSearch, SearchSlice
from kareus.search.features import features_of
from kareus.search.prior import textbook
from kareus.search.problem import SearchProblem
from kareus.search.rounds import Round, SearchRun, run_search
from kareus.search.strategy import most_measured
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTables:
    """What the search of one partition found, and how it went."""

    candidates: pl.DataFrame
    """Table `CANDIDATES`."""
    rounds: pl.DataFrame
    """Table `ROUNDS`."""
    proposals: pl.DataFrame
    """Table `PROPOSALS`, the only one that differs from run to run."""


def search_partition(
    config: SearchSlice,
    partition: Partition,
    space: SearchSpace,
    profiler: Profiler,
    open_journal: OpenJournal = no_journal,
) -> SearchTables:
    """Search the candidates of `partition` and log every round.

    Args:
        config: strategy, GPU and seed.
        partition: what is searched.
        space: its candidates.
        profiler: measures them.
        open_journal: starts the journal of progress.

    Raises:
        ArtifactError: the space names an operator that the partition does not have.
    """
    problem = SearchProblem(
        partition=partition,
        features=features_of(partition, space),
        prior=textbook(config.gpu),
        config=config.search,
        generator=generator(config.seed, partition.name),
    )
    journal = open_journal(Standing(budget=most_measured(problem), space=len(space), round=0))

    def measure(candidate: int, repeat: int = 0) -> Measurement:
        measured = profiler.measure(*candidate_program(partition, space[candidate]), repeat)
        journal.standing.measured += repeat == 0
        journal.keep()
        return measured

    def measure_time(candidate: int) -> TimeMeasurement:
        measured = profiler.measure_time(*candidate_program(partition, space[candidate]))
        journal.standing.looked += 1
        journal.keep()
        return measured

    def report(round_: Round) -> None:
        journal.standing.round, journal.standing.hypervolume = round_.round + 1, round_.hypervolume
        journal.keep()
        _log(round_)

    static_power_w = config.gpu.static_power_w
    search_run = run_search(problem, measure, measure_time, static_power_w, report=report)
    _warn(partition.name, search_run.rounds[-1], config)
    shared = {"strategy": str(config.search.strategy), "gpus": partition.collective.group_size}
    proposals = [{"round": round_, "proposing_s": spent_s} for round_, spent_s in enumerate(search_run.proposing_s)]
    return SearchTables(
        candidates=CANDIDATES.frame(_candidate_rows(search_run, space, config.gpu)),
        rounds=ROUNDS.frame([_round_row(round_) | shared for round_ in search_run.rounds]),
        proposals=PROPOSALS.frame(proposals),
    )


def candidate_program(partition: Partition, schedule: ExecutionSchedule) -> tuple[Program, int]:
    """Return the program of `partition` under `schedule`, and its clock in MHz."""
    return partition_program(partition, schedule.sm_count, schedule.launch), schedule.frequency_mhz


def _log(round_: Round) -> None:
    progress = f"hypervolume {round_.hypervolume:.4f}"
    if round_.improvement is not None:
        progress += f" ({round_.improvement:+z.2%})"
    if round_.stop is not None:
        progress += f"; ends: {round_.stop.why}"
    logger.info("round %d: %d time-only, %d measured, %s", round_.round, round_.timed, round_.measured, progress)


def _warn(partition: str, last: Round, config: SearchSlice) -> None:
    """Say that a search was cut short, and what that may cost."""
    if last.stop is None or not last.stop.is_cut_short:
        return
    cost = "" if last.stop.remaining is None else f", which may cost {last.stop.remaining:.1%} of the hypervolume"
    remedy = "search.most" if isinstance(config.search, InformedSearch) else "rounds (config/search)"
    logger.warning(
        "%s: %d measurements, the whole budget, ended this search before its stopping rule was met%s; allow more %s.",
        partition,
        last.measured,
        cost,
        remedy,
    )


def _candidate_rows(search_run: SearchRun, space: SearchSpace, gpu: Gpu) -> list[dict[str, Any]]:
    data = search_run.dataset(gpu.static_power_w)
    dynamic_energy_j, on_frontier = data.dynamic_energy_j.tolist(), pareto_mask(data.dynamic).tolist()
    return [
        {
            "candidate": trial.candidate,
            "round": trial.round,
            "chosen_by": list(trial.chosen_by),
            "frequency_mhz": space.frequency_mhz[trial.candidate],
            "sm_count": space.sm_count[trial.candidate],
            "launch": space.launch[trial.candidate],
            "predicted_time_s": trial.predicted_time_s,
            "predicted_dynamic_energy_j": trial.predicted_dynamic_energy_j,
            "time_s": trial.measurement.time_s,
            "energy_j": trial.measurement.energy_j,
            "temperature_c": trial.measurement.temperature_c(gpu.coefficients),
            "is_power_limited": trial.measurement.is_power_limited,
            "dynamic_energy_j": dynamic_energy_j[i],
            "on_frontier": on_frontier[i],
        }
        for i, trial in enumerate(search_run.trials)
    ]


def _round_row(round_: Round) -> dict[str, Any]:
    stop, noise = round_.stop, round_.noise
    return {
        "round": round_.round,
        "measured": round_.measured,
        "looked": round_.timed,
        "hypervolume": round_.hypervolume,
        "improvement": round_.improvement,
        "measuring_s": round_.measuring_s,
        "looking_s": round_.timing_s,
        "time_noise": None if noise is None else noise.time,
        "power_noise": None if noise is None else noise.power,
        "stop": "" if stop is None else stop.why,
        "is_cut_short": stop is not None and stop.is_cut_short,
        "remaining": None if stop is None else stop.remaining,
    }
