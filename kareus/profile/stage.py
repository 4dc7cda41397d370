"""Command `profile`: measure components and whole instructions at every frequency of the search."""

import argparse
import logging
from pathlib import Path

from kareus.artifacts.outputs import add_force, check_outputs, table
from kareus.artifacts.provenance import check_subject
from kareus.artifacts.tables import read_provenance, write_table
from kareus.partition.graph import Batch, BlockGraph, Direction, instruction_directions
from kareus.partition.read import read_graphs
from kareus.partition.tables import SEGMENTS
from kareus.profile.bench import open_bench, progress_file
from kareus.profile.measure import Profiler
from kareus.profile.programs import (
    Execution,
    chunk_shapes,
    component_programs,
    instruction_program,
    profiled_executions,
)
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS
from kareus.progress.journal import Journal, Standing
from kareus.testbed.program import Program
from kareus.workload.slices import ProfileSlice, load_slice, subject_of

logger = logging.getLogger(__name__)


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
    check_outputs(arguments, [*tables, *progress_file(arguments.progress)])
    config = load_slice(arguments.config, ProfileSlice)
    check_subject(subject_of(config), {str(arguments.segments): read_provenance(arguments.segments, SEGMENTS)})
    graphs = read_graphs(arguments.segments)
    sm_count, directions = config.testbed.default_collective_sm_count, _directions(config)
    component_of, instruction_of = (
        component_programs(graphs, sm_count, directions),
        _instruction_programs(graphs, config),
    )
    everything = (len(component_of) + len(instruction_of)) * len(config.gpu.search_frequencies.clocks_mhz)
    journal = Journal(arguments.progress, Standing(budget=everything, space=everything))
    bench = open_bench(config)
    with bench.profiler(arguments.store, "instructions", graphs) as profiler:
        components = [
            {"component": name} | cost
            for name, program in component_of.items()
            for cost in _costs(profiler, program, config, journal)
        ]
        instructions = [
            {"stage": stage, "chunk": chunk, "direction": direction, "execution": execution} | cost
            for (stage, chunk, direction, execution), program in instruction_of.items()
            for cost in _costs(profiler, program, config, journal)
        ]
    logger.info("components and instructions at every clock: %s", profiler.tally)
    provenance = bench.provenance(subject_of(config))
    write_table(arguments.components, COMPONENTS.frame(components), COMPONENTS, provenance)
    write_table(arguments.instructions, PROFILED_INSTRUCTIONS.frame(instructions), PROFILED_INSTRUCTIONS, provenance)


def _directions(config: ProfileSlice) -> tuple[Direction, ...]:
    return instruction_directions(split_backward=config.split_backward)


def _instruction_programs(
    graphs: dict[Batch, BlockGraph], config: ProfileSlice
) -> dict[tuple[int, int, Direction, Execution], Program]:
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


def _costs(profiler: Profiler, program: Program, config: ProfileSlice, journal: Journal) -> list[dict[str, float]]:
    costs = []
    for frequency_mhz in config.gpu.search_frequencies.clocks_mhz:
        measured = profiler.measure(program, frequency_mhz)
        journal.standing.measured += 1
        journal.keep()
        costs.append({"frequency_mhz": frequency_mhz, "time_s": measured.time_s, "energy_j": measured.energy_j})
    return costs
