"""Command `frontier`: compose what was measured into the microbatch frontiers of every stage."""

import argparse
import logging
from collections import defaultdict
from pathlib import Path

import polars as pl

from kareus.artifacts.provenance import derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.frontier.compose import Option
from kareus.frontier.methods import microbatch_rows
from kareus.frontier.microbatch import Cost, Point, overlap_makeup, overlap_points
from kareus.frontier.tables import MICROBATCH
from kareus.partition.graph import Batch, Direction
from kareus.partition.read import read_graphs
from kareus.profile.programs import Execution, stage_shapes
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS
from kareus.schedule.choice import Choice
from kareus.search.tables import CANDIDATES
from kareus.workload.slices import FrontierSlice, load_slice

logger = logging.getLogger(__name__)


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


def run(arguments: argparse.Namespace) -> None:
    """Compose, prune and write."""
    config = load_slice(arguments.config, FrontierSlice)
    graphs = read_graphs(arguments.segments)
    components = _components(read_table(arguments.components, COMPONENTS))
    profiled = _profiled(read_table(arguments.instructions, PROFILED_INSTRUCTIONS))
    options = {path.parent.name: _options(path) for path in arguments.candidates}

    rows = []
    for stage, shape in enumerate(stage_shapes(config.parallelism.split)):
        for direction in Direction:
            points = {e: profiled[stage, direction, e] for e in Execution if (stage, direction, e) in profiled}
            if options:
                makeup = overlap_makeup(
                    graphs[Batch.NANOBATCH],
                    graphs[Batch.MICROBATCH],
                    shape,
                    direction,
                    recompute=config.activation_checkpointing,
                )
                points[Execution.OVERLAP] = overlap_points(makeup, options, components, config.gpu)
            rows += microbatch_rows(stage, direction, points, config.gpu)
    logger.info(
        "%d points on the frontiers of %d methods",
        sum(row["on_frontier"] for row in rows),
        len({row["method"] for row in rows}),
    )
    parents = [
        read_provenance(arguments.components, COMPONENTS),
        read_provenance(arguments.instructions, PROFILED_INSTRUCTIONS),
    ]
    parents += [read_provenance(path, CANDIDATES) for path in arguments.candidates]
    write_table(arguments.microbatch, MICROBATCH.frame(rows), MICROBATCH, derived(content_hash(config), parents))


def _components(table: pl.DataFrame) -> dict[str, dict[int, Cost]]:
    costs: dict[str, dict[int, Cost]] = defaultdict(dict)
    for row in table.iter_rows(named=True):
        costs[row["component"]][row["frequency_mhz"]] = (row["time_s"], row["energy_j"])
    return costs


def _profiled(table: pl.DataFrame) -> dict[tuple[int, str, str], list[Point]]:
    points: dict[tuple[int, str, str], list[Point]] = defaultdict(list)
    for row in table.iter_rows(named=True):
        point = Point(
            execution=Execution(row["execution"]),
            frequency_mhz=row["frequency_mhz"],
            time_s=row["time_s"],
            energy_j=row["energy_j"],
        )
        points[row["stage"], row["direction"], row["execution"]].append(point)
    return points


def _options(path: Path) -> dict[int, tuple[Option, ...]]:
    """Measured options of the partition whose search is at `path`, by frequency."""
    options: dict[int, tuple[Option, ...]] = defaultdict(tuple)
    for row in read_table(path, CANDIDATES).iter_rows(named=True):
        choice = Choice(partition=path.parent.name, sm_count=row["sm_count"], launch=row["launch"])
        option = Option(time_s=row["time_s"], energy_j=row["energy_j"], choice=choice)
        options[row["frequency_mhz"]] += (option,)
    return options
