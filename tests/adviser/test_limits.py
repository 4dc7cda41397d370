"""Answers under limits: every plan that is named keeps them, and what cannot keep them is said to."""

from dataclasses import replace

import pytest
from helpers.builders import CONFIG

from kareus.adviser.advice import answer
from kareus.adviser.choosing import choose
from kareus.adviser.goals import goals_of
from kareus.adviser.lines import frugal_lines, full_line
from kareus.adviser.question import ask

FEW = ("model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "tp=1,2", "cp=1", "pp=1,2", "microbatch_size=2", "recompute=none")
CAP_W = 2000.0
"""Less than any plan of the fastest layout draws (2,109 W), more than the least of those with two stages."""


def power_w(plan):
    return plan.energy_j / plan.time_s


def filling(advice, shares):
    """Return an answer on GPUs of which each layout needs a share, by its number; half of it where none is given."""
    layouts = []
    for one in advice.size.layouts:
        workload = one.candidate.workload
        gpu = replace(workload.gpu, memory_gib=one.candidate.memory.total_gib / shares.get(one.number, 0.5))
        layouts.append(replace(one, candidate=replace(one.candidate, workload=replace(workload, gpu=gpu))))
    chosen = next(one for one in layouts if one.number == advice.chosen.layout.number)
    size = replace(advice.size, layouts=layouts)
    return replace(advice, sizes=(size,), chosen=replace(advice.chosen, layout=chosen))


@pytest.fixture(scope="module")
def free():
    return answer(ask(FEW, gpus=4, global_batch=16, sequence_length=2048, config_dir=CONFIG))


@pytest.fixture(scope="module")
def capped(free):
    """The answer under the cap."""
    return answer(replace(free.question, goals=goals_of(max_power=f"{CAP_W:g}W")))


def test_a_plan_that_others_dominate_is_chosen_where_these_break_the_cap(free, capped):
    """It takes more time and more energy than plans of the fastest layout, and less power."""
    assert min(power_w(choice.cost) for choice in free.size.frontier) > CAP_W
    kept = [plan for one in capped.size.layouts for plan in one.plans if power_w(plan) <= CAP_W]
    assert capped.chosen.cost in kept
    assert capped.chosen.cost.time_s <= 1.003 * min(plan.time_s for plan in kept)


def test_a_full_layout_is_answered_by_the_best_other_that_keeps_the_cap(capped):
    """The fastest layout of all breaks it, and has room."""
    advice = filling(capped, {capped.chosen.layout.number: 0.97})
    others = [one for one in advice.size.layouts if one.number != advice.chosen.layout.number]
    kept = [(plan.time_s, one) for one in others for plan in one.plans if power_w(plan) <= CAP_W]
    least_s = min(time_s for time_s, _ in kept)
    named = {one.candidate.words for time_s, one in kept if time_s <= 1.003 * least_s}
    said = full_line(advice)
    assert any(f"the fastest below 95 % that keeps the limits is {words}, " in said for words in named)
    alone = filling(capped, {one.number: 0.97 for one in capped.size.layouts if one.number != 1})
    assert full_line(alone).endswith("; no other that was predicted needs less and keeps the limits")


def test_what_a_little_more_time_saves_keeps_the_deadline(free):
    """Without one the plan that is named takes up to 5 % more time."""
    (said,) = frugal_lines(free)
    assert " % slower saves " in said
    fastest = free.chosen.layout.fastest
    tokens = 16 * 2048
    goals = goals_of(least="time", tokens=1000 * tokens, deadline=f"{1001 * fastest.time_s:.6f}s")
    limited = replace(free, question=replace(free.question, goals=goals))
    assert choose(limited.question, limited.sizes).cost == fastest
    assert not [*frugal_lines(limited)]
