"""Command `pipeline`: solve the iteration frontiers of all methods."""

import logging
from collections.abc import Mapping

import polars as pl

from kareus.artifacts.stage import InputTable, OutputTable, TableStage
from kareus.frontiers.config import frontier_hash
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.frontiers import solve_iteration
from kareus.pipeline.tables import INSTRUCTIONS, ITERATION

logger = logging.getLogger(__name__)


def _compute(config: PipelineSlice, microbatch: pl.DataFrame) -> dict[str, pl.DataFrame]:
    iteration, instructions = solve_iteration(config, microbatch)
    return {"iteration": iteration, "instructions": instructions}


def _report(config: PipelineSlice, tables: Mapping[str, pl.DataFrame]) -> None:
    if not config.iteration.include_update:
        logger.info("the update of the weights is not part of the iteration (iteration.include_update=false)")
    for (method,), plans in tables["iteration"].group_by("method", maintain_order=True):
        logger.info(_summary(str(method), plans))


def _summary(method: str, plans: pl.DataFrame) -> str:
    first, gaps = plans.row(0, named=True), plans["gap"].to_list()
    return (
        f"{method}: {len(plans)} plan{'s' * (len(plans) > 1)}, least time {first['time_s']:.4f} s with "
        f"{first['energy_j']:.1f} J, largest gap {100 * max(gaps):z.3f} %"
    )


STAGE: TableStage[PipelineSlice] = TableStage(
    config=PipelineSlice,
    inputs=(
        InputTable(
            option="microbatch",
            schema=MICROBATCH,
            help="microbatch frontiers (Parquet)",
            config_hash=frontier_hash,
        ),
    ),
    outputs=(
        OutputTable(option="instructions", schema=INSTRUCTIONS, help="instructions to write (Parquet)"),
        OutputTable(option="iteration", schema=ITERATION, help="iteration frontiers to write (Parquet)"),
    ),
    compute=_compute,
    subject=subject_of,
    report=_report,
)
add_arguments, run = STAGE.add_arguments, STAGE.run
