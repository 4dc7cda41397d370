"""Planning without measuring: the points and iteration frontiers of every method, exhaustively and free of noise.

What the workflow finds by measuring and searching on a testbed, taken from the GPU model behind a simulated one.
Energies are those of profiles, at the temperatures of their windows, since those of real GPUs are.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import polars as pl

from kareus.arrays import Array
from kareus.evidence.frontiers.subject import Subject
from kareus.frontiers.compose import Option
from kareus.frontiers.config import FrontierSlice
from kareus.frontiers.frontiers import frontiers_of
from kareus.frontiers.makeup import ExecutionCost
from kareus.frontiers.microbatch import Point
from kareus.gpu_model.model import Behaviour, KnownSteps, run_program, run_schedules, run_tally
from kareus.gpu_model.waiting import effective_energy_j
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Batch, Partition
from kareus.pareto import pareto_mask
from kareus.partition.detect import detect_partitions
from kareus.profile.heat import as_profiled
from kareus.profile.programs import Execution, component_programs, default_partition_program
from kareus.schedule.records import Choice
from kareus.schedule.space import search_space
from kareus.workload.slices import cut

OptionsByClock = dict[int, tuple[Option, ...]]
"""Ways to run a partition, by clock in MHz."""


def clocks_of(subject: Subject) -> Array:
    """Clocks in MHz that may be planned with."""
    return np.array(subject.workload.gpu.search_frequencies.clocks_mhz, dtype=np.float64)


def instruction_behaviours(
    subject: Subject, clocks_mhz: Array, steps: KnownSteps | None = None
) -> dict[tuple[InstructionKind, Execution], Behaviour]:
    """What a profile says of whole instructions at each clock, under sequential execution and default nanobatching.

    `steps` are the known ones of `run_tally`.
    """
    steps = {} if steps is None else steps
    gpu = subject.workload.gpu
    return {
        key: as_profiled(gpu, subject.workload.protocol, run_tally(gpu, counted, clocks_mhz, steps))
        for key, counted in subject.tallies.items()
    }


def microbatch_frontiers(subject: Subject) -> pl.DataFrame:
    """Return the table `MICROBATCH` of a workload, from every candidate of every partition."""
    clocks = clocks_of(subject)
    steps: KnownSteps = {}
    instructions = {
        (kind, execution): _points(behaviour, execution, clocks)
        for (kind, execution), behaviour in instruction_behaviours(subject, clocks, steps).items()
    }
    partitions = _partitions(subject)
    components = _components(subject, partitions, clocks, steps)
    options = {partition.name: _partition_options(subject, partition) for partition in partitions}
    config: FrontierSlice = cut(subject.workload, "frontier")
    return frontiers_of(config, subject.graphs, instructions, components, options)


def _points(behaviour: Behaviour, execution: Execution, clocks_mhz: Array) -> list[Point]:
    return [
        Point(execution=execution, frequency_mhz=int(clock), time_s=float(time_s), energy_j=float(energy_j))
        for clock, time_s, energy_j in zip(clocks_mhz, behaviour.time_s, behaviour.energy_j, strict=True)
    ]


def _partitions(subject: Subject) -> tuple[Partition, ...]:
    if Batch.NANOBATCH not in subject.graphs:
        return ()
    return tuple(detect_partitions(subject.graphs[Batch.NANOBATCH], recomputation=subject.workload.recomputation))


def _components(
    subject: Subject, partitions: Sequence[Partition], clocks_mhz: Array, steps: KnownSteps
) -> dict[str, dict[int, ExecutionCost]]:
    """Costs at every clock of what is not searched, partitions under their default schedules among it."""
    sm_count = subject.workload.testbed.default_collective_sm_count
    programs = component_programs(subject.graphs, sm_count, recomputation=subject.workload.recomputation)
    programs |= {partition.name: default_partition_program(partition, sm_count) for partition in partitions}
    workload = subject.workload
    behaviours = {
        name: as_profiled(workload.gpu, workload.protocol, run_program(workload.gpu, p, clocks_mhz, steps))
        for name, p in programs.items()
    }
    return {
        name: {
            int(c): ExecutionCost(float(t), float(e)) for c, t, e in zip(clocks_mhz, b.time_s, b.energy_j, strict=True)
        }
        for name, b in behaviours.items()
    }


def _partition_options(subject: Subject, partition: Partition) -> OptionsByClock:
    """Non-dominated ways to run a partition."""
    gpu = subject.workload.gpu
    space = search_space(partition, gpu, subject.workload.space)
    clocks, sm_counts = (np.array(column, dtype=np.float64) for column in (space.frequency_mhz, space.sm_count))
    launches = np.array([partition.operator_index(name) for name in space.launch])
    ran = run_schedules(gpu, partition, clocks, sm_counts, launches)
    behaviour = as_profiled(gpu, subject.workload.protocol, ran)
    effective_j = effective_energy_j(behaviour.energy_j, behaviour.time_s, gpu.blocking_power_w)
    options: dict[int, list[Option]] = defaultdict(list)
    for clock in sorted(set(clocks)):
        at_clock = np.flatnonzero(clocks == clock)
        for n in at_clock[pareto_mask(np.column_stack((behaviour.time_s[at_clock], effective_j[at_clock])))]:
            choice = Choice(partition=partition.name, sm_count=space.sm_count[n], launch=space.launch[n])
            option = Option(time_s=float(behaviour.time_s[n]), energy_j=float(behaviour.energy_j[n]), choice=choice)
            options[int(clock)].append(option)
    return {clock: tuple(at_clock) for clock, at_clock in options.items()}
