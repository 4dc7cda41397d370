"""A plan of two stages and the driver of one of its ranks, on a made-up GPU."""

from pathlib import Path

import torch

from helpers.fake_device import FakeDevice
from kareus.adapters.choice import PlanChoice
from kareus.adapters.driver import StageDriver, open_driver
from kareus.adapters.layout import RankLayout
from kareus.artifacts.provenance import TestbedIdentity
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions
from kareus.plans.document import PLAN_SCHEMA_VERSION, Plan, PlannedInstruction, PredictedCost, StagePlan
from kareus.profile.programs import Execution

CLOCKS_MHZ = {Direction.FORWARD: (1410, 1200), Direction.UPDATE: (900,)}
"""Of a direction, by turns of the microbatches: all are clocks of `FakeDevice`."""
OF_BACKWARDS_MHZ = (900, 1200)


def driven_plan(
    stages: int = 2,
    microbatches: int = 4,
    chunks: int = 1,
    *,
    gpus: int | None = None,
    schedule: PipelineSchedule = PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,
    reduction: bool = False,
    update: bool = False,
    execution: Execution = Execution.SEQUENTIAL,
) -> Plan:
    """A plan whose numbers are made up: adapters read only its order and its clocks."""
    update_steps = [Direction.GRADIENT_REDUCTION] * reduction + [Direction.UPDATE] * update
    updates = [update_steps] * stages if update_steps else ()
    keys = [i.key for i in pipeline_instructions(schedule, stages, microbatches, chunks=chunks, updates=updates)]
    instructions = {
        key: PlannedInstruction(
            direction=key.direction,
            microbatch=key.microbatch,
            chunk=key.chunk,
            execution=execution,
            frequency_mhz=_clock_mhz(key.direction, key.microbatch + key.stage),
            partitions=(),
            start_s=0.0,
            time_s=1.0,
            energy_j=200.0,
        )
        for key in keys
    }
    cost = PredictedCost(time_s=10.0, energy_j=4e3, static_energy_j=1e3, dynamic_energy_j=3e3, lower_bound_j=3e3)
    return Plan(
        schema_version=PLAN_SCHEMA_VERSION,
        kareus_version="0",
        created_at="2026-01-01T00:00:00+00:00",
        workload="made-up",
        workload_hash="0" * 16,
        method="kareus",
        selector="fastest",
        testbed=TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="made up"),
        gpus=gpus or stages,
        prediction=cost,
        stages=tuple(
            StagePlan(stage=stage, layers=2, instructions=tuple(i for k, i in instructions.items() if k.stage == stage))
            for stage in range(stages)
        ),
    )


def layout_of(plan: Plan, rank: int = 0) -> RankLayout:
    """The layout that the plan is of, one rank a stage."""
    passes = plan.stages[0].passes
    return RankLayout(
        rank=rank,
        gpus=plan.gpus,
        stage=rank,
        stages=len(plan.stages),
        chunks=1 + max(i.chunk for i in passes),
        microbatches=1 + max(i.microbatch for i in passes),
    )


def opened(plan: Plan, gpu: FakeDevice | None, output: Path | None = None, clocks: str = "planned") -> StageDriver:
    """The driver of the plan's first rank."""
    choice = PlanChoice(plan, layout_of(plan))
    return open_driver(choice, layout_of(plan), gpu, torch.device("cpu"), clocks=clocks, output=output)


def drive(driver: StageDriver, plan: Plan, iterations: int = 1) -> None:
    """Tell the driver what a training by the plan would run."""
    for _ in range(iterations):
        for key, _ in plan.stages[0].keyed:
            driver.begin(key)
            driver.end(key)
        driver.end_iteration(tokens=1024)


def _clock_mhz(direction: Direction, turn: int) -> int:
    clocks_mhz = CLOCKS_MHZ.get(direction, OF_BACKWARDS_MHZ)
    return clocks_mhz[turn % len(clocks_mhz)]
