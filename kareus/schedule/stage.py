"""Command `schedule`: write the search space of every partition."""

import polars as pl

from kareus.artifacts.stage import InputTable, OutputTable, TableStage
from kareus.graph.records import Partition
from kareus.partition.read import read_partitions
from kareus.partition.tables import PARTITIONS
from kareus.schedule.config import ScheduleSlice
from kareus.schedule.space import enumerate_spaces
from kareus.schedule.tables import SPACE


def _compute(config: ScheduleSlice, partitions: tuple[Partition, ...]) -> dict[str, pl.DataFrame]:
    return {"space": enumerate_spaces(config, partitions)}


STAGE: TableStage[ScheduleSlice] = TableStage(
    config=ScheduleSlice,
    inputs=(InputTable(option="partitions", schema=PARTITIONS, help="partitions (Parquet)", read=read_partitions),),
    outputs=(OutputTable(option="space", schema=SPACE, help="search spaces to write (Parquet)"),),
    compute=_compute,
)
add_arguments, run = STAGE.add_arguments, STAGE.run
