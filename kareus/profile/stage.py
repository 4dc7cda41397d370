"""Command `profile`: measure components and whole instructions at every frequency of the search."""

import argparse
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, check_folder, table
from kareus.artifacts.provenance import check_subject
from kareus.artifacts.tables import read_provenance, write_table
from kareus.graph.program import Program
from kareus.graph.records import Batch, BlockGraph, Direction, instruction_directions
from kareus.partition.config import subject_of
from kareus.partition.read import read_graphs
from kareus.partition.tables import SEGMENTS
from kareus.profile.bench import open_bench, progress_file
from kareus.profile.config import ProfileSlice
from kareus.profile.measure import Profiler, identity_of
from kareus.profile.programs import (
    Execution,
    chunk_shapes,
    component_programs,
    instruction_program,
    profiled_executions,
)
from kareus.profile.smoothing import Observation, Place, smoothed, undecided
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS
from kareus.progress.journal import Journal, Standing

logger = logging.getLogger(__name__)

ProgramKey = tuple[int, int, Direction, Execution]
"""Stage, chunk, direction, and how it is executed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs, the store and the outputs."""
    parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
    parser.add_argument("--segments", type=Path, required=True, help="operator graph (Parquet)")
    parser.add_argument("--store", type=Path, required=True, help="folder of the measurement store")
    parser.add_argument("--components", type=Path, required=True, help="costs of components to write (Parquet)")
    parser.add_argument("--instructions", type=Path, required=True, help="costs of instructions to write (Parquet)")
    parser.add_argument("--progress", type=Path, help="journal for those who watch, kept while profiling (JSON)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure what the store does not have yet, then write both tables."""
    tables = [(arguments.components, table(COMPONENTS)), (arguments.instructions, table(PROFILED_INSTRUCTIONS))]
    check_files(arguments, [*tables, *progress_file(arguments.progress)])
    check_folder(arguments.store, force=arguments.force)
    config = load_slice(arguments.config, ProfileSlice)
    check_subject(subject_of(config), {str(arguments.segments): read_provenance(arguments.segments, SEGMENTS)})
    graphs = read_graphs(arguments.segments)
    sm_count, directions = config.testbed.default_collective_sm_count, _directions(config)
    component_of = component_programs(graphs, sm_count, directions)
    instruction_of = _instruction_programs(graphs, config)
    everything = len({identity_of(program) for program in (*component_of.values(), *instruction_of.values())}) * len(
        config.gpu.search_frequencies.clocks_mhz
    )
    journal = Journal(arguments.progress, Standing(budget=everything, space=everything))
    bench = open_bench(config)
    with bench.profiler(arguments.store, "instructions", graphs) as profiler:
        measuring = _Measuring(profiler, config.gpu.search_frequencies.clocks_mhz, journal)
        components = [
            {"component": name} | cost
            for name, program in component_of.items()
            for cost in measuring.family([program], confirmations=0)[0]
        ]
        costs = {
            key: own
            for family in _families(instruction_of)
            for key, own in zip(
                family, measuring.family([instruction_of[key] for key in family], config.confirmations), strict=True
            )
        }
        instructions = [
            {"stage": stage, "chunk": chunk, "direction": direction, "execution": execution} | cost
            for stage, chunk, direction, execution in instruction_of
            for cost in costs[stage, chunk, direction, execution]
        ]
    logger.info("components and instructions at every clock: %s", profiler.tally)
    provenance = bench.provenance(subject_of(config))
    write_table(arguments.components, COMPONENTS.frame(components), COMPONENTS, provenance)
    write_table(arguments.instructions, PROFILED_INSTRUCTIONS.frame(instructions), PROFILED_INSTRUCTIONS, provenance)


def _directions(config: ProfileSlice) -> tuple[Direction, ...]:
    return instruction_directions(split_backward=config.split_backward)


def _instruction_programs(graphs: dict[Batch, BlockGraph], config: ProfileSlice) -> dict[ProgramKey, Program]:
    return {
        (stage, chunk, direction, execution): instruction_program(
            graphs,
            shape,
            direction,
            execution,
            recompute=config.activation_checkpointing,
            default_sm_count=config.testbed.default_collective_sm_count,
        )
        for (stage, chunk), shape in chunk_shapes(config.parallelism.split, config.chunks).items()
        for direction in _directions(config)
        for execution in profiled_executions(graphs, direction)
    }


def _families(
    instruction_of: Mapping[ProgramKey, Program],
) -> list[list[ProgramKey]]:
    """Instructions by direction and execution: their blocks are equal, so their costs change alike with the clock."""
    families: dict[tuple[Direction, Execution], list[ProgramKey]] = {}
    for key in instruction_of:
        families.setdefault(key[2:], []).append(key)
    return list(families.values())


@dataclass(frozen=True, slots=True)
class _Measuring:
    """Measures families of programs at every clock and estimates what they cost."""

    profiler: Profiler
    clocks_mhz: tuple[int, ...]
    journal: Journal

    def family(self, programs: Sequence[Program], confirmations: int) -> list[list[dict[str, float]]]:
        """Costs of each program by clock: columns of the tables of costs.

        Args:
            programs: whose costs change alike with the clock; equal ones are measured once.
            confirmations: further measurements where noise would decide which clock is the fastest.
        """
        hashes = [identity_of(program) for program in programs]
        curves = {identity: number for number, identity in enumerate(dict.fromkeys(hashes))}
        program_of = dict(zip(hashes, programs, strict=True))
        own = [program_of[identity] for identity in curves]
        seen = [self._measure(own, place, 0) for place in itertools.product(range(len(own)), self.clocks_mhz)]
        estimates = smoothed(seen)
        close = undecided(estimates) if confirmations else []
        if close:
            self.journal.standing.budget += confirmations * len(close)
            repeats = range(1, confirmations + 1)
            seen += [self._measure(own, place, repeat) for place in close for repeat in repeats]
            estimates = smoothed(seen)
        return [
            [{"frequency_mhz": mhz} | asdict(estimates[curves[identity], mhz]) for mhz in self.clocks_mhz]
            for identity in hashes
        ]

    def _measure(self, programs: Sequence[Program], place: Place, repeat: int) -> Observation:
        curve, frequency_mhz = place
        measured = self.profiler.measure(programs[curve], frequency_mhz, repeat)
        self.journal.standing.measured += 1
        self.journal.keep()
        return Observation(curve, frequency_mhz, measured.time_s, measured.energy_j)
