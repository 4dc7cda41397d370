"""Fleets against plans enumerated one by one, and against sums done by hand."""

import dataclasses
import itertools

import pytest
from helpers.fleets import all_plans, fleet, microbatch

from kareus.emulate.fleet import reduction_s, scale_of
from kareus.emulate.frontiers import method_frontiers
from kareus.emulate.rows import fleet_rows, power_cap_rows, straggler_rows
from kareus.emulate.tables import FLEET
from kareus.emulate.waiting import adopted
from kareus.model.parallelism import Sharding
from kareus.pipeline.compare import compare_methods

BLOCKING_W, STATIC_W = 85.0, 60.0


def own(frontiers, method="kareus"):
    return next(one for one in frontiers if one.method == method)


def of(rows, method="kareus"):
    return [row for row in rows if row["method"] == method]


def test_a_fleet_costs_its_pipelines():
    one = fleet()
    frontiers = method_frontiers(one, microbatch())
    plans = own(frontiers).plans
    for row, plan in zip(of(fleet_rows(one, frontiers)), plans, strict=True):
        assert (row["gpus"], row["pipelines"], row["num_microbatches"]) == (64, 4, 2)
        assert (row["time_s"], row["pipeline_time_s"]) == (plan.time_s, plan.time_s)
        assert row["energy_j"] == pytest.approx(4 * plan.energy_j)
        assert row["static_energy_j"] == pytest.approx(STATIC_W * 64 * plan.time_s)
        assert row["power_w"] == pytest.approx(4 * plan.energy_j / plan.time_s)
        assert row["gap"] == pytest.approx(plan.gap)


def test_comparisons_at_equal_time_do_not_depend_on_the_grid():
    reductions = []
    for deadlines in (3, 40):
        one = fleet(f"emulation.deadlines={deadlines}", "emulation.num_microbatches=6")
        rows = fleet_rows(one, method_frontiers(one, microbatch(points=12)))
        (kareus,) = (row for row in compare_methods(FLEET.frame(rows)) if row.method == "kareus")
        reductions.append((kareus.iso_time_energy_reduction_percent, kareus.iso_energy_time_reduction_percent))
    assert reductions[0] == pytest.approx(reductions[1], abs=0.3)


def test_gradients_travel_a_ring_between_nodes():
    """1,000 parameters a GPU, 8 GPUs on 50 GB/s: 2 x 3/4 x 4,000 bytes at 6.25 GB/s, or 3/4 x (4,000 + 2,000)."""
    one = fleet().workload
    model = dataclasses.replace(
        one.model, hidden_size=8, intermediate_size=8, num_attention_heads=8, num_key_value_heads=8, head_dim=1
    )
    tiny = dataclasses.replace(one, model=dataclasses.replace(model, vocab_size=8 * 984))
    tiny = dataclasses.replace(tiny, parallelism=dataclasses.replace(tiny.parallelism, pp=1, layers_per_stage=(1,)))
    # per GPU: 4 x 64 / 8 + 3 x 64 / 8 matrices, one tied table of 984 x 8, 2 x 8 norms, 8 of the final norm
    parameters = 56 + 984 * 8 + 16 + 8
    assert reduction_s(tiny, 4) == pytest.approx(2 * 3 / 4 * parameters * 4 / 6.25e9)
    sharded = dataclasses.replace(tiny, parallelism=dataclasses.replace(tiny.parallelism, sharding=Sharding.OPTIMIZER))
    assert reduction_s(sharded, 4) == pytest.approx(3 / 4 * parameters * 6 / 6.25e9)
    assert reduction_s(tiny, 1) == 0


def test_an_exposed_reduction_adds_its_time_and_blocking_power():
    hidden, exposed = fleet(), fleet("emulation.gradient_reduction=exposed")
    frontiers = method_frontiers(hidden, microbatch())
    longer_s = reduction_s(exposed.workload, 4)
    assert longer_s > 0
    for before, after in zip(fleet_rows(hidden, frontiers), fleet_rows(exposed, frontiers), strict=True):
        assert before["reduction_s"] == after["reduction_s"] == longer_s
        assert after["time_s"] == pytest.approx(before["time_s"] + longer_s)
        assert after["energy_j"] == pytest.approx(before["energy_j"] + 64 * BLOCKING_W * longer_s)


def test_a_straggler_without_a_delay_changes_nothing():
    one = fleet("emulation.stragglers=[1.0]")
    frontiers = method_frontiers(one, microbatch())
    (row,), fastest = of(straggler_rows(one, frontiers)), of(fleet_rows(one, frontiers))[0]
    assert row["time_s"] == pytest.approx(fastest["time_s"])
    assert row["waiting_energy_j"] == pytest.approx(fastest["energy_j"])
    assert row["energy_j"] <= fastest["energy_j"] * (1 + 1e-9)


FALLING = "gpu.waiting_shares=[[1350,0.4],[1410,1.0]]"
"""A GPU that draws less while it waits at a lower clock."""


def test_others_wait_for_a_straggler_at_their_last_clock():
    """Every plan, played with its wait: at the clock of each stage's last instruction until the slow one ends."""
    one = fleet("emulation.stragglers=[1.3]", FALLING)
    frontiers = method_frontiers(one, microbatch())
    problem, fastest = own(frontiers).problem, own(frontiers).plans[0]
    time_s = 1.3 * fastest.time_s
    watts = {point: 8 * BLOCKING_W * share for point, share in ((0, 1.0), (1, 0.7))}

    def played_j(choice):
        cost_s, cost_j = problem.cost(choice)
        return cost_j + sum(watts[choice[lane[-1]]] for lane in problem.stages) * (time_s - cost_s)

    choices = list(itertools.product(*(range(len(s.times_s)) for s in problem.point_sets)))
    best_j = min(played_j(choice) for choice in choices if problem.cost(choice)[0] <= time_s)
    slow_j = fastest.energy_j + sum(watts[fastest.points[lane[-1]]] for lane in problem.stages) * (
        time_s - fastest.time_s
    )
    (row,) = of(straggler_rows(one, frontiers))
    assert row["waiting_energy_j"] == pytest.approx(4 * slow_j)
    assert slow_j + 3 * best_j <= row["energy_j"] * (1 + 1e-9)
    assert row["energy_j"] == pytest.approx(slow_j + 3 * best_j, rel=5e-3)


def test_a_method_runs_plans_of_another_whose_clocks_are_fewer():
    frontiers = method_frontiers(fleet("emulation.stragglers=[]", FALLING), microbatch(points=6))
    fixed, scaled = own(frontiers, "sequential"), own(frontiers, "sequential+perseus")
    assert fixed.problem.waiting_power_w > scaled.problem.waiting_power_w
    (same,) = adopted(fixed.plans[0], fixed.problem, scaled.problem)
    assert same.energy_j == pytest.approx(fixed.plans[0].energy_j)


@pytest.mark.parametrize("reduction", ["hidden", "exposed"])
@pytest.mark.parametrize("slowdown", [1.02, 1.06, 1.3])
def test_others_take_nearly_the_best_plan_for_a_straggler(slowdown, reduction):
    one = fleet(f"emulation.stragglers=[{slowdown}]", f"emulation.gradient_reduction={reduction}")
    frontiers = method_frontiers(one, microbatch())
    problem, fastest = own(frontiers).problem, own(frontiers).plans[0]
    time_s, waiting_w = slowdown * fastest.time_s, 16 * BLOCKING_W
    slow_j = fastest.energy_j + waiting_w * (time_s - fastest.time_s)
    best_j = min(e - waiting_w * t + waiting_w * time_s for t, e in all_plans(problem) if t <= time_s)
    reduction_j = 64 * BLOCKING_W * scale_of(one).exposed_s
    (row,) = of(straggler_rows(one, frontiers))
    assert row["time_s"] == pytest.approx(time_s + scale_of(one).exposed_s)
    assert row["waiting_energy_j"] == pytest.approx(4 * slow_j + reduction_j)
    least_j = slow_j + 3 * best_j + reduction_j
    assert least_j * (1 - 1e-9) <= row["energy_j"] <= least_j * (1 + row["gap"] + 1e-6)
    assert row["plan_time_s"] <= time_s * (1 + 1e-9)
    assert row["saving_percent"] > 0


def test_who_cannot_adapt_waits():
    one = fleet("emulation.stragglers=[1.2]")
    (row,) = of(straggler_rows(one, method_frontiers(one, microbatch())), "sequential")
    assert row["energy_j"] == row["waiting_energy_j"]


@pytest.mark.parametrize("reduction", ["hidden", "exposed"])
def test_a_power_cap_is_kept_by_a_plan_as_fast_as_almost_any(reduction):
    one = fleet(f"emulation.gradient_reduction={reduction}")
    frontiers = method_frontiers(one, microbatch())
    scale, plans = scale_of(one), of(fleet_rows(one, frontiers))
    costs = [scale.cost(*plan) for plan in all_plans(own(frontiers).problem)]
    caps_w = [plan["power_w"] / 64 * (1 + share) for plan in plans for share in (1e-9, 1e-3)]
    capped = dataclasses.replace(
        one, emulation=dataclasses.replace(one.emulation, power_caps=tuple(f"{cap_w!r}W" for cap_w in caps_w))
    )
    for cap_w, row in zip(caps_w, of(power_cap_rows(capped, frontiers)), strict=True):
        assert row["cap_w"] == pytest.approx(64 * cap_w)
        assert row["power_w"] <= row["cap_w"] * (1 + 1e-9)
        best_s = min(time_s for time_s, energy_j in costs if energy_j / time_s <= row["cap_w"])
        precomputed_s = min(plan["time_s"] for plan in plans if plan["power_w"] <= row["cap_w"])
        assert best_s * (1 - 1e-9) <= row["time_s"] <= precomputed_s


def test_a_cap_between_two_plans_is_used_up():
    one = fleet("emulation.deadlines=2", "emulation.num_microbatches=8")
    frontiers = method_frontiers(one, microbatch(points=12))
    fast, slow = of(fleet_rows(one, frontiers))[-2:]
    cap_w = (fast["power_w"] + slow["power_w"]) / 2 / 64
    capped = dataclasses.replace(one, emulation=dataclasses.replace(one.emulation, power_caps=(f"{cap_w!r}W",)))
    (row,) = of(power_cap_rows(capped, frontiers))
    assert fast["time_s"] < row["time_s"] < slow["time_s"]
    assert 0.99 * row["cap_w"] < row["power_w"] <= row["cap_w"]


def test_a_cap_below_every_plan_is_kept_by_waiting():
    """Of plans of T s and E J, the fastest within P waits until E and static power for the wait are P a second."""
    one = fleet("emulation.power_caps=[90W]")
    frontiers = method_frontiers(one, microbatch())
    plans, rows = fleet_rows(one, frontiers), power_cap_rows(one, frontiers)
    assert min(plan["power_w"] for plan in plans) > 90 * 64
    for row in rows:
        fastest_s = min(p["dynamic_energy_j"] for p in of(plans, row["method"])) / (90 - STATIC_W) / 64
        assert row["time_s"] == pytest.approx(fastest_s)
        assert row["power_w"] == pytest.approx(90 * 64)
        assert row["energy_j"] == pytest.approx(90 * 64 * row["time_s"])
        assert 0 < row["waiting_s"] < row["time_s"]


def test_a_cap_that_nothing_keeps_is_an_empty_row():
    one = fleet("emulation.power_caps=[60W,300W]")
    rows = power_cap_rows(one, method_frontiers(one, microbatch()))
    assert [row["cap_w"] / 64 for row in rows if row["time_s"] is None] == [60] * 3
    assert all(row["time_s"] for row in rows if row["cap_w"] == 300 * 64)


@pytest.mark.parametrize(("gpu", "limit_w"), [("a100-sxm4-40gb", 400), ("h100-sxm5-80gb", 700)])
def test_a_cap_may_be_a_share_of_the_power_limit(gpu, limit_w):
    assert fleet(f"gpu={gpu}").gpu_caps_w == pytest.approx((0.6 * limit_w, 0.55 * limit_w))
    own = fleet(f"gpu={gpu}", f"emulation.power_caps=[50%,{limit_w / 2}W,0.3kW]")
    assert own.gpu_caps_w == tuple(dict.fromkeys((limit_w / 2, 300)))
