"""Decisions about plans: from the same reports the same on every rank, and the reasons for them."""

import dataclasses

import pytest
from helpers.driving import driven_plan
from hypothesis import given
from hypothesis import strategies as st

from kareus.adapters.conditions import Conditions, ToldStraggler
from kareus.adapters.governor import CLEAN_ITERATIONS, Governor, PlanCosts, RankReport, costs_of
from kareus.errors import ConfigError, EngineError
from kareus.plans.selectors import Prices, parse_selector

PLANS = PlanCosts(
    times_s=tuple(1.0 + 0.02 * n for n in range(16)),
    passes_s=tuple(1.0 + 0.02 * n for n in range(16)),
    energies_j=tuple(1000.0 - 30 * n + n * n for n in range(16)),
    gpus=8,
)
"""From 1 s and 1 kW to 1.3 s and 0.6 kW."""


def governor(pipelines=4, selector="fastest", safe="min-energy"):
    return Governor(PLANS, pipelines, parse_selector(selector), parse_selector(safe))


def reports(iteration, slowdowns, **changes):
    """What ranks of the first stages tell; the rest is told by the first rank."""
    own = [RankReport(pipeline=n, iteration=iteration, slowdown=s) for n, s in enumerate(slowdowns)]
    return [dataclasses.replace(own[0], **changes), *own[1:]]


def decided(one, rounds):
    return [one.decide(reports(n, slowdowns)).plans for n, slowdowns in enumerate(rounds)]


EVEN, UNEVEN = (1.0,) * 4, (1.0, 1.0, 1.1, 1.0)


def test_a_pipeline_that_is_slow_once_changes_nothing():
    assert decided(governor(), [EVEN, UNEVEN, EVEN, UNEVEN, EVEN]) == [(0, 0, 0, 0)] * 5


def test_the_others_just_meet_a_straggler_and_leave_it_at_once():
    plans = decided(governor(), [EVEN, UNEVEN, UNEVEN, UNEVEN, EVEN])
    assert plans == [(0, 0, 0, 0)] * 2 + [(5, 5, 0, 5)] * 2 + [(0, 0, 0, 0)]
    assert PLANS.times_s[5] == pytest.approx(1.1)


def test_the_update_gives_no_time_to_meet_a_straggler_in():
    """Pipelines wait for each other before it: of plans of 1 s with half of it for the update, 10 % are 0.05 s."""
    updated = dataclasses.replace(PLANS, passes_s=tuple(time_s - 0.5 for time_s in PLANS.times_s))
    one = Governor(updated, 4, parse_selector("fastest"), parse_selector("min-energy"))
    assert decided(one, [EVEN, UNEVEN, UNEVEN])[-1] == (2, 2, 0, 2)


def test_what_slows_all_pipelines_down_is_no_straggler():
    assert decided(governor(), [(1.3,) * 4] * 4) == [(0, 0, 0, 0)] * 4


def test_small_changes_of_a_straggler_keep_plans():
    plans = decided(governor(), [(1.0, 1.0, 1.10 + 0.01 * (n % 2), 1.0) for n in range(8)])
    assert len(set(plans[2:])) == 1


@given(st.lists(st.lists(st.floats(0.9, 1.4), min_size=4, max_size=4), min_size=3, max_size=8))
def test_no_plan_is_slower_than_the_slowest_pipeline(rounds):
    one = governor()
    for number, slowdowns in enumerate(rounds):
        plans = one.decide(reports(number, slowdowns)).plans
        if number == 0:
            continue
        last = [[min(a, b) for a, b in zip(*rounds[number - 1 : number + 1], strict=True)]][0]
        slowest = max(last) / min(last)
        for plan, own in zip(plans, last, strict=True):
            assert PLANS.times_s[plan] * own / min(last) <= max(slowest, 1.0) * 1.04  # of which 0.03 make no straggler


def test_reports_that_come_late_are_counted_once():
    late = governor()
    told = [late.decide(reports(0, EVEN)).plans, late.decide(reports(1, UNEVEN)).plans]
    told += [late.decide(reports(1, UNEVEN)).plans, late.decide(reports(2, UNEVEN)).plans]
    assert told == [(0, 0, 0, 0)] * 3 + [(5, 5, 0, 5)]


def test_a_straggler_can_be_told():
    inside = Conditions(straggler=ToldStraggler(slowdown=1.1, pipeline=1))
    outside = Conditions(straggler=ToldStraggler(slowdown=1.1))
    assert governor().decide(reports(0, EVEN, conditions=inside)).plans == (5, 0, 5, 5)
    decision = governor().decide(reports(0, EVEN, conditions=outside))
    assert decision.plans == (5, 5, 5, 5)
    assert decision.reason == "a pipeline outside takes 1.100 times as long"


def test_a_power_cap_moves_the_point_to_the_fastest_plan_within():
    decision = governor().decide(reports(0, EVEN, conditions=Conditions(power_cap_w=800.0)))
    powers_w = [e / t for e, t in zip(PLANS.energies_j, PLANS.times_s, strict=True)]
    (plan,) = set(decision.plans)
    assert powers_w[plan] <= 800.0 < powers_w[plan - 1]
    assert decision.reason == "power cap of 800 W"


def test_a_cap_that_no_plan_keeps_takes_the_least_power_and_says_so():
    decision = governor().decide(reports(0, EVEN, conditions=Conditions(power_cap_w=100.0)))
    assert set(decision.plans) == {15}
    assert decision.reason.startswith("power cap of 100 W, which no plan keeps: this takes 596")


def test_prices_move_the_point_along_the_frontier():
    chosen = {}
    for per_kwh, per_gpu_hour in ((0.1, 100.0), (0.1, 0.0), (10.0, 1.0)):
        decision = governor().decide(reports(0, EVEN, prices=Prices(per_kwh, per_gpu_hour)))
        chosen[per_kwh, per_gpu_hour] = decision.plans[0]
    assert chosen[0.1, 100.0] == 0  # time is dear
    assert chosen[0.1, 0.0] == 15  # time is free
    assert 0 < chosen[10.0, 1.0] < 15


def test_a_violation_holds_the_safe_plan_for_a_while():
    one = governor()
    hot = reports(0, EVEN)
    hot[3] = dataclasses.replace(hot[3], violation="its driver reports thermal-limit")
    decision = one.decide(hot)
    assert decision.plans == (15, 15, 15, 15)
    assert decision.reason == "rank 3: its driver reports thermal-limit"
    plans = [one.decide(reports(1 + n, EVEN)).plans[0] for n in range(CLEAN_ITERATIONS + 1)]
    assert plans == [15] * (CLEAN_ITERATIONS - 1) + [0] * 2


def test_ranks_with_other_plans_are_refused():
    told = [RankReport(pipeline=0, plans="a"), RankReport(pipeline=1, plans="b")]
    with pytest.raises(EngineError, match="ranks read different ones from the folder of plans"):
        governor(2).decide(told)


def test_a_selector_that_no_plan_serves_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"no plan is within 500\.0 ms"):
        governor(selector="deadline=0.5s")


def test_a_job_of_more_replicas_is_charged_for_all_its_gpus() -> None:
    plan = driven_plan(gpus=2)
    planned, job = costs_of([plan], 2), costs_of([plan], 8)
    assert job.times_s == planned.times_s
    assert job.energies_j == tuple(4 * energy_j for energy_j in planned.energies_j)
    assert job.gpus == 8
