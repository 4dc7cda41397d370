"""Command `frontier`: compose what was measured into the microbatch frontiers of every stage."""

import argparse
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, table
from kareus.artifacts.provenance import Provenance, check_subject, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.errors import ArtifactError
from kareus.frontier.compose import MOST_POINTS, Option
from kareus.frontier.config import FrontierSlice
from kareus.frontier.methods import microbatch_rows
from kareus.frontier.microbatch import Cost, Makeup, Point, overlap_makeup, overlap_points
from kareus.frontier.tables import MICROBATCH
from kareus.graph.records import Batch, BlockGraph, Direction, instruction_directions
from kareus.partition.config import subject_of
from kareus.partition.names import expected_partitions
from kareus.partition.read import read_graphs
from kareus.partition.tables import SEGMENTS
from kareus.profile.programs import Execution, StageShape, chunk_shapes, profiled_executions
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS
from kareus.schedule.choice import Choice
from kareus.search.tables import CANDIDATES

logger = logging.getLogger(__name__)


class Noise(NamedTuple):
    """Relative standard deviations of one measured time and energy, as the testbed's whole instructions scatter."""

    time: float
    energy: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs and the output."""
    parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
    parser.add_argument("--segments", type=Path, required=True, help="operator graph (Parquet)")
    parser.add_argument("--components", type=Path, required=True, help="costs of components (Parquet)")
    parser.add_argument("--instructions", type=Path, required=True, help="costs of whole instructions (Parquet)")
    parser.add_argument(
        "--candidates", type=Path, nargs="*", default=[], help="searches (Parquet), each in its partition's folder"
    )
    parser.add_argument("--microbatch", type=Path, required=True, help="microbatch frontiers to write (Parquet)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Compose, prune and write."""
    check_files(arguments, [(arguments.microbatch, table(MICROBATCH))])
    config = load_slice(arguments.config, FrontierSlice)
    provenance = _provenance(arguments, config)
    _check_partitions(arguments.candidates, config)
    graphs = read_graphs(arguments.segments)
    components = _components(read_table(arguments.components, COMPONENTS))
    instructions = read_table(arguments.instructions, PROFILED_INSTRUCTIONS)
    profiled = _profiled(instructions)
    noise = Noise(*(float(np.median(instructions[name])) for name in ("time_noise", "energy_noise")))
    options = {path.parent.name: _options(path, noise, config) for path in arguments.candidates}

    rows = []
    for (stage, chunk), shape in chunk_shapes(config.parallelism.split, config.chunks).items():
        for direction in instruction_directions(split_backward=config.split_backward):
            points = {e: profiled[stage, chunk, direction, e] for e in profiled_executions(graphs, direction)}
            for execution, own in points.items():
                what = f"stage {stage}, {f'chunk {chunk}, ' * (config.chunks > 1)}{direction}, {execution}"
                _check_clocks(arguments.instructions, what, [point.frequency_mhz for point in own], config)
            if direction is Direction.WEIGHT_GRADIENT and Batch.NANOBATCH in graphs:
                points[Execution.NANOBATCHING] = points[Execution.SEQUENTIAL]  # there is nothing to run it beside
            elif options:
                makeup = _makeup(graphs, shape, direction, config)
                for name in (*makeup.edges, *makeup.outer):
                    _check_clocks(arguments.components, name, components[name], config)
                points[Execution.OVERLAP] = overlap_points(makeup, options, components, config.gpu)
            rows += microbatch_rows(stage, chunk, direction, points, config.gpu)
    logger.info(
        "%d points on the frontiers of %d methods",
        sum(row["on_frontier"] for row in rows),
        len({row["method"] for row in rows}),
    )
    thinned = thinned_clocks(rows)
    if thinned:
        logger.warning(
            "not exact: at %d clocks of instructions more than %d combinations were non-dominated, and as many kept",
            thinned,
            MOST_POINTS,
        )
    write_table(arguments.microbatch, MICROBATCH.frame(rows), MICROBATCH, provenance)


def thinned_clocks(rows: Iterable[Mapping[str, Any]]) -> int:
    """Number of clocks of instructions at which combinations were left out, by rows of `MICROBATCH`."""
    return len({(r["stage"], r["chunk"], r["direction"], r["frequency_mhz"]) for r in rows if r["is_thinned"]})


def _provenance(arguments: argparse.Namespace, config: FrontierSlice) -> Provenance:
    """Where all inputs come from: one workload, which is the configuration's, and one testbed with its GPU."""
    tables = [
        (arguments.segments, SEGMENTS),
        (arguments.components, COMPONENTS),
        (arguments.instructions, PROFILED_INSTRUCTIONS),
        *((path, CANDIDATES) for path in arguments.candidates),
    ]
    parents = {str(path): read_provenance(path, schema) for path, schema in tables}
    check_subject(subject_of(config), parents)
    provenance = derived(content_hash(config), parents)
    if provenance.testbed is None or provenance.testbed.gpu != config.gpu.name:
        found = provenance.testbed.gpu if provenance.testbed else "no GPU"
        raise ArtifactError(
            f"{arguments.components}: measured on {found}, the configuration has {config.gpu.name}; "
            f"give the tables of this one, or rerun the stages 'profile' and 'search'."
        )
    return provenance


def _check_partitions(candidates: Sequence[Path], config: FrontierSlice) -> None:
    """Searches are of the workload's partitions, each once: without one of them there is no overlap to compose."""
    found, expected = Counter(path.parent.name for path in candidates), Counter(expected_partitions(config))
    if found != expected:
        missing, superfluous = ", ".join(expected - found), ", ".join(found - expected)
        raise ArtifactError(
            f"--candidates: partitions missing: {missing or 'none'}, superfluous: {superfluous or 'none'}; "
            f"give one search for each partition, in a folder of its name."
        )


def _makeup(
    graphs: Mapping[Batch, BlockGraph], shape: StageShape, direction: Direction, config: FrontierSlice
) -> Makeup:
    recompute = config.activation_checkpointing
    return overlap_makeup(graphs[Batch.NANOBATCH], graphs[Batch.MICROBATCH], shape, direction, recompute=recompute)


def _check_clocks(path: Path, what: str, measured_mhz: Iterable[int], config: FrontierSlice) -> None:
    """What is not searched is measured at every clock of the search."""
    different = sorted(set(measured_mhz) ^ set(config.gpu.search_frequencies.clocks_mhz))
    if different:
        raise ArtifactError(
            f"{path}: {what}: not measured at the clocks of the configuration, they differ at "
            f"{', '.join(map(str, different))} MHz; rerun the stage 'profile'."
        )


def _components(table: pl.DataFrame) -> dict[str, dict[int, Cost]]:
    costs: dict[str, dict[int, Cost]] = defaultdict(dict)
    for row in table.iter_rows(named=True):
        costs[row["component"]][row["frequency_mhz"]] = Cost(*(row[name] for name in Cost._fields))
    return costs


def _profiled(table: pl.DataFrame) -> dict[tuple[int, int, str, str], list[Point]]:
    points: dict[tuple[int, int, str, str], list[Point]] = defaultdict(list)
    for row in table.iter_rows(named=True):
        point = Point(
            execution=Execution(row["execution"]),
            frequency_mhz=row["frequency_mhz"],
            **{name: row[name] for name in Cost._fields},
        )
        points[row["stage"], row["chunk"], row["direction"], row["execution"]].append(point)
    return points


def _options(path: Path, noise: Noise, config: FrontierSlice) -> dict[int, tuple[Option, ...]]:
    """Measured options of the partition whose search is at `path`, by frequency; not all need be there."""
    options: dict[int, tuple[Option, ...]] = defaultdict(tuple)
    for row in read_table(path, CANDIDATES).iter_rows(named=True):
        choice = Choice(partition=path.parent.name, sm_count=row["sm_count"], launch=row["launch"])
        option = Option(
            time_s=row["time_s"],
            energy_j=row["energy_j"],
            choice=choice,
            time_error_s=noise.time * row["time_s"],
            energy_error_j=noise.energy * row["energy_j"],
        )
        options[row["frequency_mhz"]] += (option,)
    unknown = sorted(set(options) - set(config.gpu.search_frequencies.clocks_mhz))
    if unknown:
        raise ArtifactError(
            f"{path}: searched at {', '.join(map(str, unknown))} MHz, which the configuration lacks; "
            f"rerun the stage 'search'."
        )
    return options
