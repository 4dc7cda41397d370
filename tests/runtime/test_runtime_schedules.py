"""From a plan to the schedules of a stage's microbatches."""

from kareus.artifacts.provenance import TestbedIdentity
from kareus.graph.records import Direction
from kareus.plans.document import PLAN_SCHEMA_VERSION, Plan, PlannedInstruction, PredictedCost, StagePlan
from kareus.profile.programs import Execution
from kareus.runtime.schedules import MicrobatchSchedule, Schedule, planned_schedules
from kareus.schedule.records import Choice

CHOICES = (Choice(partition="backward-mlp-allreduce", sm_count=6, launch="norm"),)


def planned(direction: Direction, microbatch: int, execution: Execution, *choices: Choice) -> PlannedInstruction:
    return PlannedInstruction(
        direction=direction,
        microbatch=microbatch,
        chunk=0,
        execution=execution,
        frequency_mhz=1410,
        partitions=choices,
        start_s=0.0,
        time_s=1.0,
        energy_j=1.0,
    )


def test_each_microbatch_has_the_two_schedules_of_the_plan() -> None:
    stage = StagePlan(
        stage=0,
        layers=2,
        instructions=(
            planned(Direction.FORWARD, 0, Execution.SEQUENTIAL),
            planned(Direction.FORWARD, 1, Execution.NANOBATCHING),
            planned(Direction.BACKWARD, 0, Execution.OVERLAP, *CHOICES),
            planned(Direction.BACKWARD, 1, Execution.SEQUENTIAL),
        ),
    )
    plan = Plan(
        schema_version=PLAN_SCHEMA_VERSION,
        kareus_version="0",
        created_at="2026-01-01T00:00:00+00:00",
        workload="tiny",
        workload_hash="0",
        method="kareus",
        selector="fastest",
        testbed=TestbedIdentity(kind="simulated", gpu="none", detail=""),
        gpus=1,
        prediction=PredictedCost(
            time_s=1.0, energy_j=1.0, static_energy_j=1.0, dynamic_energy_j=0.0, lower_bound_j=1.0
        ),
        stages=(stage,),
    )
    assert planned_schedules(plan, 0) == {
        (0, 0): MicrobatchSchedule(Schedule(), Schedule(Execution.OVERLAP, CHOICES)),
        (0, 1): MicrobatchSchedule(Schedule(Execution.NANOBATCHING), Schedule()),
    }
