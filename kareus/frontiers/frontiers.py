"""The microbatch frontiers of every stage, from what was measured."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from kareus.errors import StageInputError
from kareus.frontiers.compose import Option
from kareus.frontiers.config import FrontierSlice
from kareus.frontiers.makeup import ExecutionCost, missed_costs, overlap_makeup
from kareus.frontiers.methods import SEARCHED, microbatch_rows
from kareus.frontiers.microbatch import Point, overlap_points
from kareus.frontiers.tables import MICROBATCH
from kareus.gpu_model.thermal import sustained_profile_j
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Batch, BlockGraph, Direction, instruction_directions
from kareus.partition.names import expected_partitions
from kareus.profile.programs import Execution, laid_out_shapes, profiled_executions
from kareus.schedule.records import Choice
from kareus.update.costs import pass_times, update_costs

NANOSECONDS = 9
"""Decimals of the times of the update: what a clock gains below them is worth no energy."""

InstructionPoints = Mapping[tuple[InstructionKind, Execution], Sequence[Point]]
"""Points of whole instructions that are not composed, by kind and execution."""
ComponentCosts = Mapping[str, Mapping[int, ExecutionCost]]
"""Costs of components, by name and clock in MHz."""
PartitionOptions = Mapping[str, Mapping[int, tuple[Option, ...]]]
"""Ways to run each partition, by its name and clock in MHz; not every clock need be there."""


class MeasuringNoise(NamedTuple):
    """Relative standard deviations of one measured time and energy, as the testbed's whole instructions scatter."""

    time: float
    energy: float


def compose_frontiers(
    config: FrontierSlice,
    graphs: Mapping[Batch, BlockGraph],
    components: pl.DataFrame,
    instructions: pl.DataFrame,
    candidates: Mapping[str, pl.DataFrame] | None,
) -> pl.DataFrame:
    """Compose what was measured into the microbatch frontiers of every stage.

    Args:
        config: the pipeline.
        graphs: operator graphs of its block.
        components: a table `COMPONENTS`.
        instructions: a table `PROFILED_INSTRUCTIONS`.
        candidates: a table `CANDIDATES` for every partition, by its name; None where nothing was searched.

    Returns:
        A table `MICROBATCH`, where nothing was searched without the methods that would have been searched for.

    Raises:
        StageInputError: a search is missing or superfluous, or something was measured at other clocks than the
            configuration's.
    """
    if candidates is None:
        whole = frontiers_of(config, graphs, _points(instructions, config), {}, {})
        return whole.filter(~pl.col("method").is_in(SEARCHED))
    check_partitions(config, list(candidates))
    noise = MeasuringNoise(*(float(np.median(instructions[name])) for name in ("time_noise", "energy_noise")))
    options = {name: _options(name, table, noise, config) for name, table in candidates.items()}
    return frontiers_of(config, graphs, _points(instructions, config), _components(components, config), options)


def frontiers_of(
    config: FrontierSlice,
    graphs: Mapping[Batch, BlockGraph],
    instructions: InstructionPoints,
    components: ComponentCosts,
    options: PartitionOptions,
) -> pl.DataFrame:
    """Return the table `MICROBATCH` of known or measured costs.

    Raises:
        StageInputError: the costs of an instruction or a component are not given at the clocks of the configuration.
    """
    rows = []
    fastest_s: dict[InstructionKind, float] = {}
    for (stage, chunk), shape in laid_out_shapes(config).items():
        for direction in instruction_directions(split_backward=config.split_backward):
            kind = InstructionKind(stage, chunk, direction)
            points = {e: instructions.get((kind, e), ()) for e in profiled_executions(graphs, direction)}
            for execution, of_execution in points.items():
                what = f"stage {stage}, {f'chunk {chunk}, ' * (config.chunks > 1)}{direction}, {execution}"
                _check_clocks("instructions", what, [point.frequency_mhz for point in of_execution], config)
            if direction is Direction.WEIGHT_GRADIENT and Batch.NANOBATCH in graphs:
                points[Execution.NANOBATCHING] = points[Execution.SEQUENTIAL]  # there is nothing to run it beside
            elif options:
                makeup = overlap_makeup(
                    graphs[Batch.NANOBATCH],
                    graphs[Batch.MICROBATCH],
                    shape,
                    direction,
                    recomputation=config.recomputation,
                )
                for name in (*makeup.edges, *makeup.outer):
                    _check_clocks("components", name, components.get(name, ()), config)
                if makeup.partitions:  # a chunk of dense blocks may have none, where others have experts
                    whole = {point.frequency_mhz: point.cost for point in points[Execution.NANOBATCHING]}
                    missed = missed_costs(makeup, components, whole)
                    waiting_w = config.gpu.blocking_power_w
                    points[Execution.OVERLAP] = overlap_points(makeup, options, components, missed, waiting_w)
            rows += microbatch_rows(kind, points, config.gpu)
            fastest_s[kind] = min(point.time_s for of_execution in points.values() for point in of_execution)
    if config.iteration.include_update:
        rows += _update_rows(config, graphs, fastest_s)
    return MICROBATCH.frame(rows)


def _update_rows(
    config: FrontierSlice, graphs: Mapping[Batch, BlockGraph], fastest_s: Mapping[InstructionKind, float]
) -> list[dict[str, Any]]:
    """Rows of the update of the weights, at every clock; its collectives run beside the fastest passes of each chunk.

    Every method updates alike: there is nothing to search, and nothing to run in two nanobatches.
    """
    clocks_mhz, rows = config.gpu.search_frequencies.clocks_mhz, []
    for stage in range(config.parallelism.pp):
        passes = pass_times(config, stage, fastest_s)
        costs = update_costs(config, graphs[Batch.MICROBATCH], stage, passes, np.array(clocks_mhz, dtype=np.float64))
        for direction, (times_s, energies_j) in costs.items():
            points = [
                Point(
                    execution=Execution.SEQUENTIAL,
                    frequency_mhz=mhz,
                    time_s=time_s,
                    energy_j=energy_j,
                )
                for mhz, time_s, energy_j in zip(
                    clocks_mhz, times_s.round(NANOSECONDS).tolist(), energies_j.tolist(), strict=True
                )
            ]
            executions = dict.fromkeys(profiled_executions(graphs, Direction.BACKWARD), points)
            rows += microbatch_rows(InstructionKind(stage, 0, direction), executions, config.gpu)
    return rows


def check_partitions(config: FrontierSlice, names: list[str]) -> None:
    """Check that searches are of the workload's partitions, each once: overlap is composed of all of them.

    Raises:
        StageInputError: one is missing or superfluous.
    """
    present, expected = Counter(names), Counter(expected_partitions(config))
    if present != expected:
        missing, superfluous = ", ".join(expected - present), ", ".join(present - expected)
        raise StageInputError(
            "candidates",
            f"partitions missing: {missing or 'none'}, superfluous: {superfluous or 'none'}; "
            f"give one search for each partition, in a folder of its name.",
        )


def _check_clocks(option: str, what: str, measured_mhz: Iterable[int], config: FrontierSlice) -> None:
    """Check that a component or whole instruction was measured at every clock of the search."""
    different = sorted(set(measured_mhz) ^ set(config.gpu.search_frequencies.clocks_mhz))
    if different:
        raise StageInputError(
            option,
            f"{what}: not measured at the clocks of the configuration, they differ at "
            f"{', '.join(map(str, different))} MHz; rerun the stage 'profile'.",
        )


def _sustained_j(row: Mapping[str, Any], config: FrontierSlice) -> float:
    """Return the energy of a measured row on a GPU that trains for long."""
    energy_j, time_s, window_c = row["energy_j"], row["time_s"], row["temperature_c"]
    sustained: float = sustained_profile_j(config.gpu, energy_j, time_s, window_c)
    return sustained


def _cost(row: Mapping[str, Any], config: FrontierSlice) -> ExecutionCost:
    measured = ExecutionCost(*(row[name] for name in ExecutionCost._fields))
    return measured._replace(energy_j=_sustained_j(row, config))


def _components(table: pl.DataFrame, config: FrontierSlice) -> ComponentCosts:
    costs: dict[str, dict[int, ExecutionCost]] = defaultdict(dict)
    for row in table.iter_rows(named=True):
        costs[row["component"]][row["frequency_mhz"]] = _cost(row, config)
    return costs


def _points(table: pl.DataFrame, config: FrontierSlice) -> InstructionPoints:
    points: dict[tuple[InstructionKind, Execution], list[Point]] = defaultdict(list)
    for row in table.iter_rows(named=True):
        kind = InstructionKind(row["stage"], row["chunk"], Direction(row["direction"]))
        execution = Execution(row["execution"])
        cost = _cost(row, config)._asdict()
        points[kind, execution].append(Point(execution=execution, frequency_mhz=row["frequency_mhz"], **cost))
    return points


def _options(
    name: str, table: pl.DataFrame, noise: MeasuringNoise, config: FrontierSlice
) -> Mapping[int, tuple[Option, ...]]:
    """Return the measured options of the partition `name`, by frequency."""
    options: dict[int, tuple[Option, ...]] = defaultdict(tuple)
    for row in table.iter_rows(named=True):
        option = Option(
            time_s=row["time_s"],
            energy_j=_sustained_j(row, config),
            choice=Choice(partition=name, sm_count=row["sm_count"], launch=row["launch"]),
            time_error_s=noise.time * row["time_s"],
            energy_error_j=noise.energy * row["energy_j"],
            is_power_limited=row["is_power_limited"],
        )
        options[row["frequency_mhz"]] += (option,)
    unknown = sorted(set(options) - set(config.gpu.search_frequencies.clocks_mhz))
    if unknown:
        raise StageInputError(
            "candidates",
            f"searched at {', '.join(map(str, unknown))} MHz, which the configuration lacks; rerun the stage 'search'.",
            name,
        )
    return options
