"""Answers of the adviser: chosen plans, baselines, caps, prices, and what is printed and written."""

import json
from dataclasses import replace

import polars as pl
import pytest
from helpers.builders import CONFIG

import kareus
from kareus.advise.advice import answer, choose
from kareus.advise.goals import goals_of
from kareus.advise.lines import answer_lines
from kareus.advise.question import ask
from kareus.advise.tables import ADVISED_LAYOUTS, ADVISED_PLANS, layouts_frame, plans_frame
from kareus.artifacts.tables import problem_of
from kareus.cli import main

FEW = ("model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "tp=1,2", "cp=1", "pp=1,2", "microbatch_size=2", "recompute=none")
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


def test_a_cap_slows_down_and_is_kept(fastest):
    cost = fastest.chosen.cost
    cap_w = 0.97 * cost.energy_j / cost.time_s
    capped = chosen_by(fastest, max_power=f"{cap_w}W")
    assert capped.energy_j / capped.time_s <= cap_w
    assert capped.time_s > cost.time_s


def test_a_power_limit_of_gpus_slows_down(fastest):
    assert advised(max_gpu_power="350W").chosen.cost.time_s > fastest.chosen.cost.time_s


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
