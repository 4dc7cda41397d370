"""Profiling what is not searched: components and whole instructions, as estimates at every clock.

A function from the operator graph to tables, over any profiler; `kareus.profile.stage` is its command.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import polars as pl

from kareus.gpu_model.coefficients import GpuCoefficients
from kareus.graph.records import Batch, BlockGraph, Direction, Program, instruction_directions
from kareus.partition.detect import detect_partitions
from kareus.profile.config import ProfileSlice
from kareus.profile.measure import Profiler, identity_of
from kareus.profile.programs import (
    Execution,
    StageShape,
    component_programs,
    default_partition_program,
    instruction_program,
    laid_out_shapes,
    profiled_executions,
    weights_of,
)
from kareus.profile.smoothing import CurveClock, Observation, smoothed, undecided
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS
from kareus.progress.journal import Journal, OpenJournal, Standing, no_journal

CLOCKS_APART = 3
"""Partitions are measured under their default schedules at every third clock, down from the highest: they tell what
isolation misses of whole instructions, about the same share of them at all clocks."""
ProfiledInstruction = tuple[int, int, Direction, Execution]
"""Stage, chunk and direction of an instruction, and how it is executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTables:
    """Estimated costs of what is not searched."""

    components: pl.DataFrame
    """Table `COMPONENTS`."""
    instructions: pl.DataFrame
    """Table `PROFILED_INSTRUCTIONS`."""


def profile_instructions(
    config: ProfileSlice,
    graphs: dict[Batch, BlockGraph],
    profiler: Profiler,
    open_journal: OpenJournal = no_journal,
) -> ProfileTables:
    """Measure components and whole instructions at every clock of the search, partitions at some, and estimate costs.

    Args:
        config: what is profiled, and how often.
        graphs: operator graphs of a block.
        profiler: measures programs.
        open_journal: starts the journal of progress.
    """
    component_of = component_programs(
        graphs, config.testbed.default_collective_sm_count, _directions(config), recomputation=config.recomputation
    )
    partition_of = _partition_programs(graphs, config)
    instruction_of = _instruction_programs(graphs, config)
    clocks_mhz = config.gpu.search_frequencies.clocks_mhz
    spread_mhz = clocks_mhz[::-CLOCKS_APART][::-1]
    programs = {identity_of(program) for program in (*component_of.values(), *instruction_of.values())}
    everything = len(programs) * len(clocks_mhz) + len(partition_of) * len(spread_mhz)
    journal = open_journal(Standing(budget=everything, space=everything))
    measuring = _Families(profiler, clocks_mhz, config.gpu.coefficients, journal)
    components = [*_rows(component_of, measuring), *_rows(partition_of, replace(measuring, clocks_mhz=spread_mhz))]
    costs = {
        key: rows
        for family in _families(instruction_of, laid_out_shapes(config))
        for key, rows in zip(
            family, measuring.family([instruction_of[key] for key in family], config.confirmations), strict=True
        )
    }
    instructions = [
        {"stage": stage, "chunk": chunk, "direction": direction, "execution": execution} | cost
        for stage, chunk, direction, execution in instruction_of
        for cost in costs[stage, chunk, direction, execution]
    ]
    return ProfileTables(
        components=COMPONENTS.frame(components), instructions=PROFILED_INSTRUCTIONS.frame(instructions)
    )


def _rows(program_of: Mapping[str, Program], measuring: "_Families") -> list[dict[str, str | float]]:
    """Measure components; each is a family of its own."""
    return [
        {"component": name} | cost
        for name, program in program_of.items()
        for cost in measuring.family([program], confirmations=0)[0]
    ]


def _directions(config: ProfileSlice) -> tuple[Direction, ...]:
    return instruction_directions(split_backward=config.split_backward)


def _partition_programs(graphs: Mapping[Batch, BlockGraph], config: ProfileSlice) -> dict[str, Program]:
    if Batch.NANOBATCH not in graphs:
        return {}
    partitions = detect_partitions(
        graphs[Batch.NANOBATCH], recomputation=config.recomputation, split_backward=config.split_backward
    )
    sm_count = config.testbed.default_collective_sm_count
    return {partition.name: default_partition_program(partition, sm_count) for partition in partitions}


def _instruction_programs(graphs: dict[Batch, BlockGraph], config: ProfileSlice) -> dict[ProfiledInstruction, Program]:
    return {
        (stage, chunk, direction, execution): instruction_program(
            graphs,
            shape,
            direction,
            execution,
            recomputation=config.recomputation,
            default_sm_count=config.testbed.default_collective_sm_count,
            software=config.software,
            weights=weights_of(config, stage, shape, config.testbed.default_collective_sm_count),
        )
        for (stage, chunk), shape in laid_out_shapes(config).items()
        for direction in _directions(config)
        for execution in profiled_executions(graphs, direction)
    }


def _families(
    instruction_of: Mapping[ProfiledInstruction, Program], shapes: Mapping[tuple[int, int], StageShape]
) -> list[list[ProfiledInstruction]]:
    """Group instructions by direction, execution and kinds of blocks: with equal blocks, costs change alike.

    The power limit bends the curves of blocks, but not that of an embedding alone, in a chunk without blocks.
    """
    families: dict[tuple[Direction, Execution, bool, bool], list[ProfiledInstruction]] = {}
    for stage, chunk, direction, execution in instruction_of:
        shape = shapes[stage, chunk]
        kind = direction, execution, shape.layers > shape.dense, shape.dense > 0
        families.setdefault(kind, []).append((stage, chunk, direction, execution))
    return list(families.values())


@dataclass(frozen=True, slots=True)
class _Families:
    """Measures families of programs at every clock and estimates what they cost."""

    profiler: Profiler
    clocks_mhz: tuple[int, ...]
    coefficients: GpuCoefficients
    journal: Journal

    def family(self, programs: Sequence[Program], confirmations: int) -> list[list[dict[str, float]]]:
        """Return the costs of each program by clock: columns of the tables of costs.

        Args:
            programs: whose costs change alike with the clock; equal ones are measured once.
            confirmations: further measurements where noise would decide which clock is the fastest.
        """
        hashes = [identity_of(program) for program in programs]
        curves = {identity: number for number, identity in enumerate(dict.fromkeys(hashes))}
        program_of = dict(zip(hashes, programs, strict=True))
        of_curves = [program_of[identity] for identity in curves]
        seen = [
            self._measure(of_curves, place, 0) for place in itertools.product(range(len(of_curves)), self.clocks_mhz)
        ]
        estimates = smoothed(seen)
        close = undecided(estimates) if confirmations else []
        if close:
            self.journal.standing.budget += confirmations * len(close)
            repeats = range(1, confirmations + 1)
            seen += [self._measure(of_curves, place, repeat) for place in close for repeat in repeats]
            estimates = smoothed(seen)
        return [
            [{"frequency_mhz": mhz} | asdict(estimates[curves[identity], mhz]) for mhz in self.clocks_mhz]
            for identity in hashes
        ]

    def _measure(self, programs: Sequence[Program], place: CurveClock, repeat: int) -> Observation:
        curve, frequency_mhz = place
        measured = self.profiler.measure(programs[curve], frequency_mhz, repeat)
        self.journal.standing.measured += 1
        self.journal.keep()
        temperature_c = measured.temperature_c(self.coefficients)
        return Observation(
            curve, frequency_mhz, measured.time_s, measured.energy_j, temperature_c, measured.is_power_limited
        )
