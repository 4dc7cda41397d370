"""Answers of the adviser: chosen plans, baselines, caps, prices, and what is printed and written."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers.builders import CONFIG

import kareus
from kareus.adviser.advice import answer, choose
from kareus.adviser.errors import MEASURED_ITERATIONS, model_error
from kareus.adviser.goals import goals_of
from kareus.adviser.lines import HEADS, MOST_ROWS, answer_lines, cells, shown
from kareus.adviser.question import ask
from kareus.adviser.tables import ADVISED_LAYOUTS, ADVISED_PLANS, layouts_frame, plans_frame
from kareus.artifacts.tables import problem_of
from kareus.cli import main
from kareus.fidelity.iterations.answer import answer_iterations
from kareus.fidelity.iterations.rows import read_iterations
from kareus.fidelity.kernels.shipped import shipped_files
from kareus.fidelity.lines import read_lines
from kareus.gpu_model.trust import numbers_of
from kareus.workload.compose import compose

FEW = ("model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "tp=1,2", "cp=1", "pp=1,2", "microbatch_size=2", "recompute=none")
MEASURED_GPUS = ("h100-sxm5-80gb", "a100-sxm4-80gb")
TRAINING = {"global_batch": 16, "sequence_length": 2048}


def advised(gpus=4, **goals):
    return answer(ask(FEW, gpus=gpus, **TRAINING, goals=goals_of(**goals), config_dir=CONFIG))


def chosen_by(advice, **goals):
    return choose(replace(advice.question, goals=goals_of(**goals)), advice.sizes).cost


@pytest.fixture(scope="module")
def fastest():
    return advised()


def test_the_fastest_plan_is_the_first_of_the_frontier(fastest):
    assert fastest.chosen == fastest.size.frontier[0]
    assert fastest.selector == "fastest"
    assert fastest.chosen.cost.time_s <= fastest.size.baseline.cost.time_s


def test_the_baseline_is_the_fastest_sequential_layout(fastest):
    known = [one.sequential.time_s for one in fastest.size.layouts if one.sequential]
    assert fastest.size.baseline.cost.time_s == min(known)
    unknown = [one.bound_s for one in fastest.size.layouts if not one.sequential]
    assert all(bound_s >= min(known) for bound_s in unknown)


def test_ties_are_to_be_measured(fastest):
    tied = tuple(replace(one, is_tied=True) for one in fastest.size.layouts)
    lines = list(answer_lines(replace(fastest, sizes=(replace(fastest.size, layouts=tied),))))
    assert any(line.startswith("~ tied") and "Measure the fastest two or three" in line for line in lines)


def test_a_cap_slows_down_and_is_kept(fastest):
    cost = fastest.chosen.cost
    cap_w = 0.97 * cost.energy_j / cost.time_s
    capped = chosen_by(fastest, max_power=f"{cap_w}W")
    assert capped.energy_j / capped.time_s <= cap_w
    assert capped.time_s > cost.time_s


def test_a_power_limit_of_gpus_slows_down_and_is_planned_for(fastest):
    limited = advised(max_gpu_power="350W")
    assert limited.chosen.cost.time_s > fastest.chosen.cost.time_s
    (workload,) = kareus.resolve(list(limited.overrides), CONFIG)
    assert workload == limited.chosen.layout.candidate.workload
    assert workload.gpu.power_limit_w == 350


def test_prices_decide_between_time_and_energy(fastest):
    by_energy = chosen_by(fastest, price_of_energy="1perkWh")
    by_time = chosen_by(fastest, gpu_price="100perGPUh")
    assert by_energy.energy_j < by_time.energy_j
    assert by_time.time_s == fastest.chosen.cost.time_s


def test_more_gpus_are_compared():
    both = advised(gpus="2..4")
    assert [size.gpus for size in both.sizes] == [2, 4]
    assert both.chosen_gpus == 4


def test_the_commands_plan_the_chosen_layout(fastest):
    (workload,) = kareus.resolve(list(fastest.overrides), CONFIG)
    assert workload == fastest.chosen.layout.candidate.workload
    plan = kareus.plan(workload, fastest.selector)
    assert plan.prediction.time_s == pytest.approx(fastest.chosen.cost.time_s, rel=0.03)
    assert plan.prediction.energy_j == pytest.approx(fastest.chosen.cost.energy_j, rel=0.05)


def test_lines_begin_with_the_answer_and_end_with_commands(fastest):
    lines = list(answer_lines(fastest))
    assert lines[0].startswith("qwen3-1.7b on 4 H100")
    assert "Megatron-LM" in lines[1]
    assert lines[2].startswith("[predicted by the GPU model, for chips at 50 degC; its error: 5.3 % of time (90 % of ")
    assert lines[-2].startswith("kareus plan model=qwen3-1.7b")
    assert lines[-1].startswith("kareus export")


def test_tables_follow_their_schemas(fastest):
    assert problem_of(layouts_frame(fastest), ADVISED_LAYOUTS) is None
    plans = plans_frame(fastest)
    assert problem_of(plans, ADVISED_PLANS) is None
    assert plans["is_chosen"].sum() == 1


def test_the_command_prints_and_writes(tmp_path, capsys):
    folder = tmp_path / "advice"
    options = ["--gpus", "4", "--global-batch", "16", "--sequence-length", "2048", "--tokens", "1e9"]
    assert (
        main(["advise", *FEW, *options, "--config-dir", str(CONFIG), "--json", "--output", str(folder), "--force"]) == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["chosen"]["gpus"] == 4
    assert printed == json.loads((folder / "advice.json").read_text()) | {"sizes": printed["sizes"]}
    assert pl.read_parquet(folder / "advised_plans.parquet").height == len(printed["sizes"][0]["frontier"])


def test_rows_of_the_table_are_in_the_order_of_numbers(fastest):
    few = replace(fastest.size, frontier=[max(fastest.size.frontier, key=lambda choice: choice.layout.number)])
    for size in (fastest.size, few):
        numbers = [one.number for one in shown(size)]
        assert numbers == sorted(numbers)
        assert {choice.layout.number for choice in size.frontier} <= set(numbers)
        assert len(numbers) <= MOST_ROWS


def test_figures_have_their_digits_and_no_negative_zero(fastest):
    one = fastest.size.frontier[0].layout
    plan = replace(one.plans[0], time_s=18.0, energy_j=123_456_789.0)
    tokens = 16 * 2048
    row = dict(zip(HEADS, cells(replace(one, plans=(plan,), bubble_share=-1e-17)), strict=True))
    assert (row["s"], row["kJ"], row["bubbles %"]) == ("18.00", "123,457", "0.0")
    assert row["mJ/token"] == f"{1e3 * plan.energy_j / tokens:,.0f}"


def test_ties_name_the_error_that_they_are_within(fastest):
    assert "114 measured iterations" in fastest.uncertainty.words
    known = model_error(compose(["gpu=a100-sxm4-40gb"], CONFIG)[0].workload.gpu)
    assert (known.time_percent, known.energy_percent) == (4.8, 4.0)
    unknown = model_error(compose(["gpu=h100-96gb-hbm2e"], CONFIG)[0].workload.gpu)
    assert "assumed: no iteration" in unknown.words


def test_measured_errors_are_of_the_shipped_numbers():
    shipped = {numbers_of(compose([f"gpu={gpu}"], CONFIG)[0].workload.gpu) for gpu in MEASURED_GPUS}
    assert shipped == set(MEASURED_ITERATIONS), "predict the shipped iterations anew, as the acceptance test below does"


@pytest.mark.acceptance
@pytest.mark.parametrize("gpu", MEASURED_GPUS)
def test_measured_errors_are_those_of_the_shipped_rows(gpu):
    path = shipped_files()["training_iterations"]
    rows = [row for row in read_iterations(read_lines(path)[1], path) if row.gpu == gpu]
    scored = answer_iterations(rows, (), CONFIG).scored
    known = MEASURED_ITERATIONS[numbers_of(compose([f"gpu={gpu}"], CONFIG)[0].workload.gpu)]
    assert known.rows == len(scored)
    assert known.of == ", ".join(sorted({one.row.family for one in scored}))
    assert known.time_percent == pytest.approx(100 * np.percentile([abs(one.error) for one in scored], 90), abs=0.06)
