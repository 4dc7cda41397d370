"""Answers under limits: every plan that is named keeps them, and what cannot keep them is said to."""

import re
from dataclasses import replace

import pytest
from helpers.builders import CONFIG

from kareus.adviser.advice import answer
from kareus.adviser.beside import frugal_lines, full_line
from kareus.adviser.choosing import choose
from kareus.adviser.goals import goals_of
from kareus.adviser.limits import broken_words
from kareus.adviser.lines import headline, short_lines, training_line
from kareus.adviser.question import ask
from kareus.adviser.rows import POWER, heads, shown, table_lines
from kareus.adviser.tables import layouts_frame, plans_frame
from kareus.errors import ConfigError
from kareus.plans.units import duration, scaled, significant
from kareus.report.advice_page import advice_page

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


def test_the_chosen_plan_is_in_the_table_of_plans_wherever_it_lies(free, capped):
    for advice in (free, capped):
        rows = list(plans_frame(advice).iter_rows(named=True))
        (chosen,) = (row for row in rows if row["is_chosen"])
        assert (chosen["layout"], chosen["time_s"]) == (advice.chosen.layout.number, advice.chosen.cost.time_s)
        assert [row["plan"] for row in rows] == list(range(len(rows)))
        assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)
        front = {(one.layout.number, one.cost.time_s) for one in advice.size.frontier}
        assert {(row["layout"], row["time_s"]) for row in rows if row["is_on_frontier"]} == front
    assert chosen["is_on_frontier"] is False, "a plan that breaks the cap dominates it"


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


def test_a_row_without_a_plan_that_keeps_the_limits_says_so_and_has_no_plans_figures(capped):
    """Neither is it marked as of the frontier: nothing of it can be chosen."""
    on_frontier = {choice.layout.number for choice in capped.size.frontier}
    layouts = shown(capped, capped.size)
    assert capped.chosen.layout.number in {one.number for one in layouts}
    head, *rows = table_lines(capped, layouts, on_frontier)
    sheet = next(sheet for section in advice_page(capped).sections for sheet in section.sheets)
    of_page = {row.cells[0].split()[0]: row.cells for row in sheet.rows}
    assert "kW" in head.split() and [name for _, name in sheet.heads][1:] == heads(capped)[1:]
    broken = 0
    for one, row in zip(layouts, rows, strict=True):
        least_w = min(map(power_w, one.plans))
        cells = of_page[str(one.number)]
        kw = [row.split()[head.split().index(POWER) + (row[0] != " ")], cells[heads(capped).index(POWER)]]
        if least_w > CAP_W:
            said = f"no plan keeps the limits: at least {scaled(least_w, 'W', digits=4)}"
            assert row.endswith(said) and said in cells[0] and "frontier" not in cells[0]
            assert (row[0], kw) == (" ", ["-", "-"])
            broken += 1
        else:
            assert "no plan keeps" not in row + cells[0]
            assert kw[0] == kw[1] and float(kw[0]) <= CAP_W / 1e3
    assert 0 < broken < len(layouts)
    chosen = of_page[str(capped.chosen.layout.number)]
    assert chosen[1:4] == tuple(
        significant(value)
        for value in (
            capped.chosen.cost.time_s,
            capped.chosen.cost.energy_j / 1e3,
            power_w(capped.chosen.cost) / 1e3,
        )
    )


def test_powers_are_shown_where_they_are_limited_alone(free):
    assert POWER not in heads(free)


@pytest.mark.parametrize(
    "goals", [{}, {"max_power": f"{CAP_W:g}W"}, {"price_of_energy": "5EURperkWh"}, {"least": "energy"}]
)
def test_the_table_of_layouts_has_the_numbers_of_the_page(free, goals):
    asked = replace(free.question, goals=goals_of(**goals))
    advice = replace(free, question=asked, chosen=choose(asked, free.sizes))
    sheet = next(sheet for section in advice_page(advice).sections for sheet in section.sheets)
    names = [name for _, name in sheet.heads]
    rows = {row["layout"]: row for row in layouts_frame(advice).iter_rows(named=True) if row["depth"] != "refused"}
    columns = {
        "s": ("time_s", 1.0),
        "kJ": ("energy_j", 1e3),
        "kW": ("power_w", 1e3),
        "least kJ": ("least_energy_j", 1e3),
    }
    for shown_row in sheet.rows:
        row = rows[int(shown_row.cells[0].split()[0])]
        for name in set(names) & set(columns):
            column, unit = columns[name]
            cell = "-" if row[column] is None else significant(row[column] / unit)
            assert cell == shown_row.cells[names.index(name)]
    chosen = rows[advice.chosen.layout.number]
    assert (chosen["time_s"], chosen["energy_j"]) == (advice.chosen.cost.time_s, advice.chosen.cost.energy_j)
    for one in (one for one in advice.size.layouts if one.plans):
        row = rows[one.number]
        assert (row["time_s"] is None) == ("max_power" in goals and min(map(power_w, one.plans)) > CAP_W)
        assert row["fastest_time_s"] == one.fastest.time_s
        assert row["least_power_w"] == min(map(power_w, one.plans))


def refusal(free, **goals):
    with pytest.raises(ConfigError, match="no plan keeps the limits") as refused:
        choose(replace(free.question, goals=goals_of(**goals)), free.sizes)
    return str(refused.value)


def test_limits_that_conflict_are_answered_by_what_is_possible_at_both(free):
    """Each can be kept alone: the numbers of one are of plans that keep the other."""
    plans = [plan for one in free.size.layouts for plan in one.plans]
    least_s = min(plan.time_s for plan in plans if power_w(plan) <= CAP_W)
    iterations, most_s = 1_000_000, 0.99 * least_s
    limits = {"max_power": f"{CAP_W:g}W", "tokens": iterations * 16 * 2048, "deadline": f"{iterations * most_s:.0f}s"}
    said = refusal(free, **limits)
    least_w = min(power_w(plan) for plan in plans if plan.time_s <= most_s)
    whole = duration(iterations * least_s)
    assert f"within --max-power 2.00 kW the fastest takes {scaled(least_s, 's')} an iteration, {whole} in all" in said
    assert f"within the deadline the least power of a plan is {scaled(least_w, 'W', digits=4)} on 4 GPUs" in said
    assert "allow more time or power" in said
    assert "--max-gpu-power" not in said, "which slows down, too"


def test_a_power_limit_of_gpus_is_named_where_it_keeps_a_cap(free):
    """Then GPUs go below the clocks of plans; asked with it, the question has an answer, and no slower one."""
    cap_w = 1600.0
    assert min(power_w(plan) for one in free.size.layouts for plan in one.plans) > cap_w
    said = refusal(free, max_power=f"{cap_w:g}W")
    named = re.search(r"--max-gpu-power (\S+), if the driver takes it, with which .* takes ([0-9.]+) ms at ", said)
    assert named
    advice = answer(replace(free.question, goals=goals_of(max_power=f"{cap_w:g}W", max_gpu_power=named[1])))
    assert power_w(advice.chosen.cost) <= cap_w
    assert advice.chosen.cost.time_s <= float(named[2]) / 1e3 * 1.003
    assert "--max-gpu-power 400W," not in refusal(free, max_power=f"{cap_w:g}W", max_gpu_power="400W")


def test_what_is_compared_with_is_said_to_break_the_limits(free):
    """The trainer's own execution at full clocks; unlimited, nothing is said of it."""
    tokens, baseline = 1e9, free.size.baseline.cost
    iterations = tokens / (16 * 2048)

    def lines(**goals):
        asked = replace(free.question, goals=goals_of(tokens=tokens, **goals))
        advice = replace(free, question=asked, chosen=choose(asked, free.sizes))
        return headline(advice), training_line(advice)

    broken = f" ({scaled(power_w(baseline), 'W')}, over the limit)"
    assert all(line.endswith(broken) for line in lines(max_power=f"{CAP_W:g}W"))
    assert all("over the limit" not in line for line in lines(max_power="1MW"))
    deadline = f"{0.999 * iterations * baseline.time_s:.0f}s"
    late = replace(free.question, goals=goals_of(tokens=tokens, deadline=deadline))
    assert broken_words(late, free.size.baseline) == " (after the deadline)"


@pytest.mark.parametrize(("limit", "said"), [("700W", True), ("900W", True), ("699W", False)])
def test_a_power_limit_above_what_gpus_have_is_said_to_limit_nothing(free, limit, said):
    """An H100 has 700 W."""
    advice = replace(free, question=replace(free.question, goals=goals_of(max_gpu_power=limit)))
    line = f"--max-gpu-power {limit} limits nothing: the power limit of H100-SXM5-80GB is 700 W"
    assert (line in [*short_lines(advice)]) is said
    assert (f"{line}." in advice_page(advice).extra["lead"]) is said
