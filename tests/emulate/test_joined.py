"""Fleets whose pipelines share the update of the weights, or forwards and backwards, and a slow one among them."""

import itertools

import pytest
from helpers.examples import about
from helpers.fleets import CONFIG, SMALL, UPDATE_S, fleet, microbatch
from helpers.pipelines import tiny_problems
from hypothesis import given
from hypothesis import strategies as st

from kareus.emulate.frontiers import MethodFrontier, method_frontiers
from kareus.emulate.joined import beside_slow_pipeline, joining
from kareus.emulate.rows import fleet_rows, power_cap_rows, straggler_rows
from kareus.graph.records import Direction
from kareus.pipeline.frontiers import iteration_rows
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.solver.dag import earliest_starts
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

UPDATE = "iteration.include_update=true"
SHARDED = "parallelism.sharding=optimizer"
BLOCKING_W = 85.0


def own(frontiers, method="kareus"):
    return next(one for one in frontiers if one.method == method)


def replicated(*overrides):
    """The workload of a fleet of three pipelines, as users would plan it without one."""
    shape = [text for text in SMALL if not text.startswith("emulation")]
    texts = [*shape, "parallelism.dp=3", "num_microbatches=2", "pipeline.deadlines=6", UPDATE, *overrides]
    (workload,) = resolve_accepted(texts, CONFIG).values()
    return workload


def numbers(config, *directions):
    return {n for n, i in enumerate(instructions_of(config)) if i.key.direction in directions}


def naive_ends_s(frontier, choice, slow_choice, slowdown):
    """When each instruction ends in a pipeline and in a slow one, computed until nothing moves any more."""
    dag = frontier.problem.dag
    seconds = [
        frontier.problem.times_s(choice),
        [slowdown * time_s for time_s in frontier.problem.times_s(slow_choice)],
    ]
    ends = [[0.0] * len(dag.order) for _ in seconds]
    for i, pipeline in itertools.product(dag.order, (0, 1)):
        start_s = 0.0
        for before, transfer_s in dag.predecessors[i]:
            others = {pipeline, *((0, 1) if {i, before} & frontier.joined else ())}
            for other in others:
                start_s = max(start_s, ends[other][before] + transfer_s * (slowdown if other else 1))
        ends[pipeline][i] = start_s + seconds[pipeline][i]
    return ends


@pytest.mark.parametrize("sharding", ["none", "optimizer"])
def test_equal_pipelines_are_replicas_of_one_workload(sharding):
    workload = replicated(f"parallelism.sharding={sharding}")
    one = fleet(UPDATE, "emulation.pipelines=3", f"parallelism.sharding={sharding}")
    assert (one.workload.parallelism, one.gpus) == (workload.parallelism, workload.parallelism.gpus)
    points = microbatch(points=3, **UPDATE_S)
    frontiers = method_frontiers(one, points)
    found = fleet_rows(one, frontiers)
    for plan in iteration_rows(cut(workload, "pipeline"), points):
        of_method = [row for row in found if row["method"] == plan["method"]]
        if not of_method:  # the fleet's methods are fewer
            continue
        energy_j = min(row["energy_j"] for row in of_method if row["time_s"] <= plan["time_s"] * (1 + 1e-9))
        assert energy_j <= plan["energy_j"] * (1 + 1e-6)
        same = [row for row in of_method if row["time_s"] == pytest.approx(plan["time_s"], rel=1e-9)]
        assert all(row["energy_j"] >= plan["lower_bound_j"] * (1 - 1e-6) for row in same)
    fastest = [row["time_s"] for row in found if row["plan"] == 0 and row["method"] == "kareus"]
    assert fastest == [own(frontiers).problem.cost([0] * 14)[0]]


def test_a_joined_fleet_keeps_its_workloads_results():
    one = fleet(UPDATE, "emulation.pipelines=3")
    assert {one.workload_name: one.workload} == resolve_accepted([*SMALL[:3], "parallelism.dp=3"], CONFIG)


def test_pipelines_join_in_what_spans_them():
    reduced, stepped = Direction.GRADIENT_REDUCTION, Direction.UPDATE
    for overrides, directions in (
        ((UPDATE,), [reduced]),
        ((UPDATE, SHARDED), [reduced, stepped]),
        ((UPDATE, SHARDED, "emulation.pipelines=1"), []),
    ):
        config = cut(fleet(*overrides).pipeline, "pipeline")
        assert joining(config) == numbers(config, *directions)


@pytest.mark.parametrize(("ep", "joined"), [(1, []), (4, [Direction.FORWARD, Direction.BACKWARD])])
def test_pipelines_that_share_out_experts_join_in_every_pass(ep, joined):
    experts = "model=qwen3-30b-a3b", "model.num_layers=4"
    one = fleet(*experts, "gpu=h100-sxm5-80gb", "parallelism.tp=1", f"parallelism.ep={ep}", "microbatch_size=2")
    assert (one.refusal, one.gpus, one.workload.parallelism.dp) == (None, 8, 4 if joined else 1)
    config = cut(one.pipeline, "pipeline")
    assert joining(config) == numbers(config, *joined)


@pytest.mark.parametrize(("sharding", "forwards"), [("gradients", False), ("full", True)])
def test_sharded_gradients_join_every_backward(sharding, forwards):
    alone = "parallelism.pp=1", "parallelism.tp=1", "recomputation=full", "model=qwen3-1.7b", "microbatch_size=2"
    one = fleet(*alone, UPDATE, f"parallelism.sharding={sharding}")
    assert (one.refusal, one.gpus) == (None, 4)
    config = cut(one.pipeline, "pipeline")
    directions = [Direction.BACKWARD, Direction.UPDATE, *[Direction.FORWARD] * forwards]
    assert joining(config) == numbers(config, *directions)


@pytest.mark.parametrize("overrides", [(UPDATE,), (UPDATE, SHARDED)])
@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_a_straggler_delays_the_reduction_of_all(overrides, slowdown):
    """At the fastest points both stages' reductions begin when the slow pipeline's last backward there has ended."""
    one = fleet(*overrides)
    frontier = own(method_frontiers(one, microbatch(**UPDATE_S)))
    fastest = [0] * 14
    problem = beside_slow_pipeline(frontier.problem, frontier.joined, fastest, slowdown)
    times_s = problem.times_s([0] * len(problem.point_sets))
    alone_s, beside_s = (
        earliest_starts(dag, seconds)
        for dag, seconds in ((frontier.problem.dag, frontier.problem.times_s(fastest)), (problem.dag, times_s))
    )
    for number in numbers(cut(one.pipeline, "pipeline"), Direction.GRADIENT_REDUCTION):
        assert beside_s[number] == pytest.approx(slowdown * alone_s[number])
    assert problem.cost([0] * len(times_s))[0] == pytest.approx(slowdown * frontier.plans[0].time_s)


@pytest.mark.parametrize("overrides", [(UPDATE,), (UPDATE, SHARDED)])
def test_times_beside_a_slow_pipeline_are_those_of_both(overrides):
    one = fleet(*overrides)
    frontier = own(method_frontiers(one, microbatch(**UPDATE_S)))
    for choice in itertools.islice(itertools.product((0, 1), repeat=14), 0, 2**14, 97):
        problem = beside_slow_pipeline(frontier.problem, frontier.joined, [0] * 14, 1.1)
        slow = [0] * (len(problem.point_sets) - 14)
        times_s = problem.times_s([*choice, *slow])
        starts_s = earliest_starts(problem.dag, times_s)
        naive = naive_ends_s(frontier, choice, [0] * 14, 1.1)
        assert [a + b for a, b in zip(starts_s, times_s, strict=True)][:14] == pytest.approx(naive[0])
        assert problem.cost([*choice, *slow])[0] == pytest.approx(max(map(max, naive)))


@about(20)
@given(tiny_problems(), st.floats(1, 2), st.data())
def test_any_instructions_may_wait_for_all_pipelines(problem, slowdown, data):
    """Those of sharded weights are spread over an iteration."""
    numbered = st.sets(st.integers(0, len(problem.point_sets) - 1), min_size=1)
    frontier = MethodFrontier("kareus", problem, (), frozenset(data.draw(numbered)))
    choice, slow = (
        [data.draw(st.integers(0, len(points.times_s) - 1)) for points in problem.point_sets] for _ in range(2)
    )
    beside = beside_slow_pipeline(problem, frontier.joined, slow, slowdown)
    times_s = beside.times_s([*choice, *[0] * (len(beside.point_sets) - len(choice))])
    ends_s = [a + b for a, b in zip(earliest_starts(beside.dag, times_s), times_s, strict=True)]
    own_s, slow_s = naive_ends_s(frontier, choice, slow, slowdown)
    assert ends_s[: len(choice)] == pytest.approx(own_s)
    alone_s = slowdown * problem.cost(slow)[0]
    assert max(*ends_s, alone_s) == pytest.approx(max(*own_s, *slow_s))


@pytest.mark.parametrize("slowdown", [1.05, 1.2])
def test_others_save_without_delaying_the_slow_pipeline(slowdown):
    one = fleet(UPDATE, f"emulation.stragglers=[{slowdown}]", "emulation.num_microbatches=1")
    frontiers = method_frontiers(one, microbatch(**UPDATE_S))
    frontier = own(frontiers)
    problem, fastest = frontier.problem, frontier.plans[0]
    slow = [s.points.index(p) for s, p in zip(problem.point_sets, fastest.points, strict=True)]
    (row,) = [row for row in straggler_rows(one, frontiers) if row["method"] == "kareus"]
    time_s, waiting_w = slowdown * fastest.time_s, 16 * BLOCKING_W
    assert row["time_s"] == pytest.approx(time_s)
    slow_j = fastest.energy_j + waiting_w * (time_s - fastest.time_s)
    best_j = min(
        problem.effective_energy_j(choice)
        for choice in itertools.product((0, 1), repeat=10)
        if max(map(max, naive_ends_s(frontier, choice, slow, slowdown))) <= time_s * (1 + 1e-9)
    )
    least_j = slow_j + 3 * (best_j + waiting_w * time_s)
    assert least_j * (1 - 1e-9) <= row["energy_j"] <= least_j * (1 + row["gap"] + 1e-6)
    assert row["saving_percent"] > 0
    chosen = [s.points.index(p) for s, p in zip(problem.point_sets, row["points"], strict=True)]
    assert max(map(max, naive_ends_s(frontier, chosen, slow, slowdown))) == pytest.approx(time_s)
    assert row["plan_time_s"] == problem.cost(chosen)[0]


def test_a_power_cap_is_of_all_pipelines():
    one = fleet(UPDATE, "emulation.power_caps=[300W]")
    frontiers = method_frontiers(one, microbatch(**UPDATE_S))
    (row,) = [row for row in power_cap_rows(one, frontiers) if row["method"] == "kareus"]
    assert row["cap_w"] == 300 * 64
    assert row["energy_j"] / row["time_s"] == pytest.approx(row["power_w"])
    assert row["power_w"] <= row["cap_w"]
