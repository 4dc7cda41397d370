"""What the whole instructions of a small workload truly take, by the GPU model: what profiling in place should find."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from helpers.builders import CONFIG
from kareus.artifacts.provenance import TestbedIdentity
from kareus.frontiers.methods import microbatch_rows
from kareus.frontiers.microbatch import Point
from kareus.frontiers.tables import MICROBATCH
from kareus.gpu_model.model import run_program
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Batch, instruction_directions
from kareus.partition.extract import extract
from kareus.profile.programs import Execution, chunk_shapes, instruction_program
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve_accepted

TINY = (
    "num_microbatches=16",
    "microbatch_size=4",
    "gpu.search_frequencies.stride_mhz=51",
    "pipeline.deadlines=12",
    "iteration.include_update=false",
)
"""Overrides of a workload of two stages, eleven clocks and a dozen plans."""

FOUR_PIPELINES = (
    "parallelism=tp8",
    *(f"parallelism.{key}" for key in ("pp=1", "dp=4")),
    "num_microbatches=4",
    "microbatch_size=4",
    "pipeline.deadlines=40",
    "iteration.include_update=false",
)
"""Overrides of a workload of four replicas of one stage, with plans less than 1 % apart."""

SIMULATED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="GPU model, a job in virtual time")

TrueCosts = dict[InstructionKind, dict[int, tuple[float, float]]]
"""Seconds and joules of one GPU, by kind of instruction and clock in MHz."""


def measured_workload(*overrides: str, of: Sequence[str] = TINY) -> Workload:
    """The workload of `TINY` or others, but for what `overrides` say."""
    given = {text.partition("=")[0]: text for text in (*of, *overrides)}
    (workload,) = resolve_accepted(list(given.values()), CONFIG).values()
    return workload


def true_costs(workload: Workload) -> TrueCosts:
    """What every whole instruction takes at each clock, under sequential execution."""
    graphs = extract(workload.model, workload.parallelism, workload.microbatch_size, workload.sequence_length)
    clocks = workload.gpu.search_frequencies.clocks_mhz
    costs: TrueCosts = {}
    for (stage, chunk), shape in chunk_shapes(workload.parallelism.split, workload.chunks).items():
        for direction in instruction_directions(split_backward=workload.split_backward):
            program = instruction_program(
                {Batch.MICROBATCH: graphs[Batch.MICROBATCH]},
                shape,
                direction,
                Execution.SEQUENTIAL,
                recomputation=workload.recomputation,
                default_sm_count=workload.testbed.default_collective_sm_count,
                software=workload.software,
            )
            ran = run_program(workload.gpu, program, np.array(clocks, dtype=np.float64))
            costs[InstructionKind(stage, chunk, direction)] = {
                clock: (float(time_s), float(energy_j))
                for clock, time_s, energy_j in zip(clocks, ran.time_s, ran.energy_j, strict=True)
            }
    return costs


def true_frontiers(workload: Workload, costs: TrueCosts) -> pl.DataFrame:
    """The table `MICROBATCH` of known costs."""
    rows = []
    for kind, own in costs.items():
        points = [
            Point(execution=Execution.SEQUENTIAL, frequency_mhz=clock, time_s=time_s, energy_j=energy_j)
            for clock, (time_s, energy_j) in own.items()
        ]
        rows += microbatch_rows(kind, {Execution.SEQUENTIAL: points}, workload.gpu)
    return MICROBATCH.frame(rows)
