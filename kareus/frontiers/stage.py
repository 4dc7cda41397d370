"""Command `frontier`: compose what was measured into the microbatch frontiers of every stage."""

import logging
from collections.abc import Mapping
from typing import Any

import polars as pl

from kareus.artifacts.provenance import Provenance
from kareus.artifacts.stage import InputTable, OutputTable, TableStage
from kareus.errors import StageInputError
from kareus.frontiers.compose import MOST_POINTS
from kareus.frontiers.config import FrontierSlice
from kareus.frontiers.frontiers import check_partitions, compose_frontiers
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.partition.read import read_graphs
from kareus.partition.tables import SEGMENTS
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS
from kareus.search.tables import CANDIDATES

logger = logging.getLogger(__name__)


def _compute(config: FrontierSlice, **inputs: Any) -> dict[str, pl.DataFrame]:
    graphs = inputs.pop("segments")
    return {"microbatch": compose_frontiers(config, graphs, **inputs)}


def _check_gpu(config: FrontierSlice, provenance: Provenance) -> None:
    """Check that everything was measured on the GPU of the configuration."""
    if provenance.testbed is None or provenance.testbed.gpu != config.gpu.name:
        measured = provenance.testbed.gpu if provenance.testbed else "no GPU"
        raise StageInputError(
            "components",
            f"measured on {measured}, the configuration has {config.gpu.name}; "
            f"give the tables of this one, or rerun the stages 'profile' and 'search'.",
        )


def _report(_config: FrontierSlice, tables: Mapping[str, pl.DataFrame]) -> None:
    microbatch = tables["microbatch"]
    logger.info(
        "%d points on the frontiers of %d methods", microbatch["on_frontier"].sum(), microbatch["method"].n_unique()
    )
    thinned = microbatch.filter("is_thinned").select("stage", "chunk", "direction", "frequency_mhz").n_unique()
    if thinned:
        logger.warning(
            "not exact: at %d clocks of instructions more than %d combinations were non-dominated, and as many kept",
            thinned,
            MOST_POINTS,
        )


STAGE: TableStage[FrontierSlice] = TableStage(
    config=FrontierSlice,
    inputs=(
        InputTable(option="segments", schema=SEGMENTS, help="operator graph (Parquet)", read=read_graphs),
        InputTable(option="components", schema=COMPONENTS, help="costs of components (Parquet)"),
        InputTable(option="instructions", schema=PROFILED_INSTRUCTIONS, help="costs of whole instructions (Parquet)"),
        InputTable(
            option="candidates",
            schema=CANDIDATES,
            help="searches (Parquet), each in its partition's folder",
            check_folders=check_partitions,
        ),
    ),
    outputs=(OutputTable(option="microbatch", schema=MICROBATCH, help="microbatch frontiers to write (Parquet)"),),
    compute=_compute,
    subject=subject_of,
    check=_check_gpu,
    report=_report,
)
add_arguments, run = STAGE.add_arguments, STAGE.run
