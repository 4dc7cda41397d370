"""Plans of a mixture of experts with dense blocks: what they are made of, and what they promise of overlap."""

from pathlib import Path

import pytest
from helpers.builders import CONFIG
from helpers.planned import SMALL

from kareus.frontiers.makeup import overlap_makeup
from kareus.graph.records import TRACED, Batch, Direction
from kareus.pipeline.methods import method_named
from kareus.plans.build import select_plan
from kareus.plans.check import check_plan
from kareus.plans.planning import PlannedTables, plan_tables
from kareus.plans.simulated_run import instruction_costs
from kareus.profile.programs import Execution, StageShape, chunk_shapes
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve_accepted

MIXTURE = (
    *(override for override in SMALL if not override.startswith(("parallelism.", "model.", "gpu."))),
    *("model=deepseek-v3", "model.num_layers=6", "gpu=h100-sxm5-80gb", "gpu.search_frequencies.stride_mhz=1080"),
    *("parallelism.tp=1", "parallelism.pp=3", "parallelism.dp=16", "parallelism.ep=16"),
    *("parallelism.layers_per_stage=[2,2,2]", "parallelism.sharding=optimizer", "software.expert_kernels=0"),
    *("software.dispatcher=flex", "recomputation=none", "sequence_length=8192", "iteration.include_update=false"),
)
"""The first of three stages has dense blocks alone, the second one of them; experts are on two nodes."""
LEFT_OUT = ("model=", "parallelism.layers_per_stage", "parallelism.pp", "sequence_length", "microbatch_size")
IN_A_V = (
    *(override for override in MIXTURE if not override.startswith(LEFT_OUT)),
    *("model=qwen3-30b-a3b", "parallelism.pp=2", "parallelism.layers_per_stage=[2,1,1,2]", "pipeline=zb-v"),
)
Planned = tuple[Workload, PlannedTables, list[StageShape]]


@pytest.fixture(scope="module")
def planned() -> Planned:
    (workload,) = resolve_accepted(MIXTURE, CONFIG).values()
    shapes = chunk_shapes(workload.parallelism.split, 1, workload.model.dense_layers)
    return workload, plan_tables(workload, [method_named("kareus")]), list(shapes.values())


def test_a_plan_of_experts_holds_and_overlaps_where_there_are_experts(planned: Planned) -> None:
    workload, tables, shapes = planned
    plan = select_plan(workload, tables.frontiers, "fastest", "kareus", name="experts")
    launches = {name: set(space.launch) for name, space in tables.spaces.items()}
    check_plan(plan, workload, "experts", Path("plan"), launches)
    assert [shape.dense for shape in shapes] == [2, 1, 0]
    costs = instruction_costs(plan.keyed, workload, tables.graphs, {})
    stages = set()
    for (key, instruction), (time_s, _) in zip(plan.keyed, costs, strict=True):
        if instruction.execution is Execution.OVERLAP:
            stages.add(key.stage)
            assert instruction.time_s == pytest.approx(time_s, rel=0.03), key
    assert stages == {1, 2}


def test_experts_in_a_v_are_planned_with_weight_gradients_apart() -> None:
    (workload,) = resolve_accepted(IN_A_V, CONFIG).values()
    tables = plan_tables(workload, [method_named("kareus")])
    plan = select_plan(workload, tables.frontiers, "fastest", "kareus", name="experts")
    check_plan(plan, workload, "experts", Path("plan"), {n: set(s.launch) for n, s in tables.spaces.items()})
    overlapped = {key.direction for key, i in plan.keyed if i.execution is Execution.OVERLAP}
    assert overlapped == {Direction.FORWARD, Direction.INPUT_GRADIENT}
    apart = [key for key, i in plan.keyed if key.direction is Direction.WEIGHT_GRADIENT and not i.partitions]
    assert {(key.stage, key.chunk) for key in apart} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_stages_have_the_partitions_of_their_blocks(planned: Planned) -> None:
    workload, tables, shapes = planned
    graphs, repeated = tables.graphs, workload.recomputation
    used = []
    for shape in shapes:
        makeups = [
            overlap_makeup(graphs[Batch.NANOBATCH], graphs[Batch.MICROBATCH], shape, direction, recomputation=repeated)
            for direction in TRACED
        ]
        used.append({name for makeup in makeups for name in makeup.partitions})
    assert used[0] == set()
    assert used[2] < used[1] == set(tables.searches)
    assert used[1] - used[2] == {"backward-dense-block-alltoall"}
