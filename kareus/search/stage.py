"""Command `search`: run the rounds of one partition over the durable store."""

import argparse
import dataclasses
import logging
from pathlib import Path
from typing import Any

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, check_folder, table
from kareus.artifacts.provenance import common_subject
from kareus.artifacts.randomness import generator
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.graph.program import Program
from kareus.graph.records import Partition
from kareus.pareto import pareto_mask
from kareus.partition.read import find_partition
from kareus.partition.tables import PARTITIONS
from kareus.profile.bench import open_bench, progress_file
from kareus.profile.measure import Look, Measurement
from kareus.profile.programs import partition_program
from kareus.progress.journal import Journal, Standing
from kareus.schedule.candidates import ExecutionSchedule, SearchSpace
from kareus.schedule.tables import SPACE, space_of
from kareus.search.config import SearchSlice
from kareus.search.features import features_of
from kareus.search.prior import textbook
from kareus.search.problem import SearchProblem
from kareus.search.rounds import Round, Search, run_search
from kareus.search.strategy import most_measured
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs, the store and the outputs."""
    parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
    parser.add_argument("--partitions", type=Path, required=True, help="partitions (Parquet)")
    parser.add_argument("--space", type=Path, required=True, help="search spaces (Parquet)")
    parser.add_argument("--partition", required=True, help="name of the partition to search")
    parser.add_argument("--store", type=Path, required=True, help="folder of the measurement store")
    parser.add_argument("--candidates", type=Path, required=True, help="measured candidates to write (Parquet)")
    parser.add_argument("--rounds", type=Path, required=True, help="rounds to write (Parquet)")
    parser.add_argument("--proposals", type=Path, required=True, help="times of choosing to write (Parquet)")
    parser.add_argument("--progress", type=Path, help="journal for those who watch, kept while searching (JSON)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Search, measuring only what the store does not have."""
    _check_outputs(arguments)
    config = load_slice(arguments.config, SearchSlice)
    partition = find_partition(arguments.partitions, arguments.partition)
    space = space_of(read_table(arguments.space, SPACE), partition.name)
    problem = SearchProblem(
        partition=partition,
        features=features_of(partition, space),
        prior=textbook(config.gpu),
        config=config.search,
        generator=generator(config.seed, partition.name),
    )
    journal = Journal(arguments.progress, Standing(budget=most_measured(problem), space=len(problem.features), round=0))
    bench = open_bench(config)
    provenance = bench.provenance(_subject(arguments.partitions, arguments.space))
    place = (arguments.store, partition.name, partition)
    with bench.profiler(*place) as profiler, bench.looker(*place) as looker:

        def measure(candidate: int) -> Measurement:
            measured = profiler.measure(*candidate_program(partition, space[candidate]))
            journal.standing.measured += 1
            journal.keep()
            return measured

        def look(candidate: int) -> Look:
            looked = looker.look(*candidate_program(partition, space[candidate]))
            journal.standing.looked += 1
            journal.keep()
            return looked

        def report(round_: Round) -> None:
            journal.standing.round, journal.standing.hypervolume = round_.round + 1, round_.hypervolume
            journal.keep()
            _report(round_)

        search = run_search(problem, measure, look, config.gpu.static_power_w, report=report)
    logger.info("candidates: %s; looks: %s", profiler.tally, looker.tally)
    rows = _candidate_rows(search, space, config.gpu.static_power_w)
    write_table(arguments.candidates, CANDIDATES.frame(rows), CANDIDATES, provenance)
    shared = {"strategy": str(config.search.strategy), "gpus": partition.collective.group_size}
    rounds = [dataclasses.asdict(r) | shared for r in search.rounds]
    write_table(arguments.rounds, ROUNDS.frame(rounds), ROUNDS, provenance)
    proposals = [{"round": round_, "proposing_s": spent_s} for round_, spent_s in enumerate(search.proposing_s)]
    write_table(arguments.proposals, PROPOSALS.frame(proposals), PROPOSALS, provenance)


def _check_outputs(arguments: argparse.Namespace) -> None:
    tables = (
        (arguments.candidates, table(CANDIDATES)),
        (arguments.rounds, table(ROUNDS)),
        (arguments.proposals, table(PROPOSALS)),
    )
    check_files(arguments, [*tables, *progress_file(arguments.progress)])
    check_folder(arguments.store, force=arguments.force)


def candidate_program(partition: Partition, schedule: ExecutionSchedule) -> tuple[Program, int]:
    """Return the program of `partition` under `schedule`, and its clock in MHz."""
    return partition_program(partition, schedule.sm_count, schedule.launch), schedule.frequency_mhz


def _subject(partitions: Path, space: Path) -> str:
    """What both inputs are about."""
    return common_subject(
        {str(partitions): read_provenance(partitions, PARTITIONS), str(space): read_provenance(space, SPACE)}
    )


def _report(round_: Round) -> None:
    progress = f"hypervolume {round_.hypervolume:.4f}"
    if round_.improvement is not None:
        progress += f" ({round_.improvement:+.2%})"
    if round_.stop:
        progress += f"; ends: {round_.stop}"
    logger.info("round %d: %d looked at, %d measured, %s", round_.round, round_.looked, round_.measured, progress)


def _candidate_rows(search: Search, space: SearchSpace, static_power_w: float) -> list[dict[str, Any]]:
    data = search.dataset(static_power_w)
    dynamic_energy_j, on_frontier = data.dynamic_energy_j.tolist(), pareto_mask(data.dynamic).tolist()
    return [
        {
            "candidate": trial.candidate,
            "round": trial.round,
            "chosen_by": trial.chosen_by,
            "frequency_mhz": space.frequency_mhz[trial.candidate],
            "sm_count": space.sm_count[trial.candidate],
            "launch": space.launch[trial.candidate],
            "predicted_time_s": trial.predicted_time_s,
            "predicted_dynamic_energy_j": trial.predicted_dynamic_energy_j,
            "time_s": trial.measurement.time_s,
            "energy_j": trial.measurement.energy_j,
            "dynamic_energy_j": dynamic_energy_j[i],
            "on_frontier": on_frontier[i],
        }
        for i, trial in enumerate(search.trials)
    ]
