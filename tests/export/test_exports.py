"""Plans in the formats of other tools."""

import ast
import dataclasses
from pathlib import Path

import pytest

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import TestbedIdentity
from kareus.errors import ConfigError
from kareus.export.zeus import frequency_schedule, is_frequency_schedule
from kareus.graph.records import TRACED, Direction
from kareus.plans.document import Plan, PlannedInstruction, PredictedCost, StagePlan
from kareus.profile.programs import Execution
from kareus.schedule.records import Choice

CHOICES = (Choice(partition="forward-mlp-allreduce", sm_count=6, launch="up"),)


def instruction(direction, microbatch, frequency_mhz):
    overlaps = direction is Direction.FORWARD
    return PlannedInstruction(
        direction=direction,
        microbatch=microbatch,
        chunk=0,
        execution=Execution.OVERLAP if overlaps else Execution.SEQUENTIAL,
        frequency_mhz=frequency_mhz,
        partitions=CHOICES if overlaps else (),
        start_s=0.0,
        time_s=1.0,
        energy_j=100.0,
    )


@pytest.fixture
def plan():
    order = {0: ((1410, 1200), (900, 900)), 1: ((1410, 900), (1200, 1410))}
    stages = [
        [instruction(d, m, mhz) for m, clocks in enumerate(own) for d, mhz in zip(TRACED, clocks, strict=True)]
        for own in order.values()
    ]
    return Plan(
        schema_version=1,
        kareus_version="0",
        created_at="",
        workload="tiny",
        workload_hash="",
        method="kareus",
        selector="fastest",
        testbed=TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="2"),
        gpus=4,
        prediction=PredictedCost(
            time_s=4.0, energy_j=9.0, static_energy_j=3.0, dynamic_energy_j=6.0, lower_bound_j=9.0
        ),
        stages=tuple(StagePlan(stage=n, layers=2, instructions=tuple(own)) for n, own in enumerate(stages)),
    )


def run_as(plan, *executions):
    """The plan with its forwards, and if given its backwards, executed so."""
    forward, backward = (*executions, Execution.SEQUENTIAL)[:2]

    def changed(own):
        execution = forward if own.direction is Direction.FORWARD else backward
        return dataclasses.replace(own, execution=execution, partitions=())

    stages = [dataclasses.replace(s, instructions=tuple(map(changed, s.instructions))) for s in plan.stages]
    return dataclasses.replace(plan, stages=tuple(stages))


def exported(plan):
    return frequency_schedule(plan, WorkloadFolder(Path("results/tiny")), Path("results/tiny/plan/fastest.json"))


def test_the_zeus_schedule_is_a_literal_list_per_stage(plan):
    first = [("forward", 1410), ("backward", 1200), ("forward", 900), ("backward", 900)]
    last = [("forward", 1410), ("backward", 900), ("forward", 1200), ("backward", 1410)]
    text = exported(run_as(plan, Execution.SEQUENTIAL))
    assert ast.literal_eval(text) == [first, last]
    assert text.splitlines()[0].endswith("planned by Kareus for sequential execution")
    assert "Leaves out:" in text.splitlines()[1]
    halves = exported(run_as(plan, Execution.NANOBATCHING, Execution.NANOBATCHING))
    assert halves == text.replace("sequential", "nanobatching")


@pytest.mark.parametrize("hostile", ["a\nimport os; os.system('reboot')\n#", "a\r[1/0]", "\u2028__import__('os')", "]"])
def test_no_text_of_a_plan_gets_into_the_zeus_file(plan, hostile):
    sequential = run_as(plan, Execution.SEQUENTIAL)
    named = dataclasses.replace(
        sequential,
        workload=hostile,
        selector=hostile,
        method=hostile,
        testbed=TestbedIdentity(kind=hostile, gpu=hostile, detail=hostile),
    )
    assert exported(named) == exported(sequential)


@pytest.mark.parametrize(
    "executions",
    [(Execution.OVERLAP,), (Execution.OVERLAP, Execution.OVERLAP), (Execution.NANOBATCHING, Execution.SEQUENTIAL)],
)
def test_clocks_that_zeus_cannot_ask_for_are_not_exported(plan, executions):
    with pytest.raises(ConfigError) as raised:
        exported(run_as(plan, *executions))
    assert str(raised.value).endswith(
        "kareus select fastest results/tiny --method sequential+perseus && "
        "kareus export results/tiny/plan/fastest_sequential+perseus.json --format zeus"
    )


def test_only_a_schedule_for_zeus_is_recognised_as_one(plan, tmp_path):
    path = tmp_path / "schedule"
    for text, is_one in ((exported(run_as(plan, Execution.SEQUENTIAL)), True), ("# notes\n[\n]\n", False), ("", False)):
        path.write_text(text)
        assert is_frequency_schedule(path) is is_one


def test_weight_gradients_run_sequentially_in_any_plan(plan):
    halves = run_as(plan, Execution.NANOBATCHING, Execution.NANOBATCHING)
    weights = dataclasses.replace(instruction(Direction.WEIGHT_GRADIENT, 0, 900), execution=Execution.SEQUENTIAL)
    stage = dataclasses.replace(halves.stages[0], instructions=(*halves.stages[0].instructions, weights))
    text = exported(dataclasses.replace(halves, stages=(stage,)))
    assert ast.literal_eval(text)[0][-1] == ("weight-gradient", 900)
