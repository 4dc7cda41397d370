"""What is said beside plans of trainings without a pipeline: what a little more time saves, and SMs of collectives."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from helpers.builders import CONFIG

import kareus
from kareus.artifacts.configuration import parse_yaml
from kareus.cli import main
from kareus.export.layouts import layout_text
from kareus.pipeline.methods import METHODS
from kareus.plans.actuated import SLOWER
from kareus.plans.answer import little_to_gain
from kareus.plans.build import select_plan
from kareus.plans.exchanges import WORTH, exchange_lines, exchange_overrides, with_best_exchanges, with_fsdp
from kareus.plans.obeyed import obeyed_lines
from kareus.plans.planning import plan_tables, quietly
from kareus.prediction.workload_prediction import predict
from kareus.runtime.engine_checks import engine_refusal
from kareus.testbed.config import NCCL_SM_COUNT
from kareus.workload.config import with_sm_count

FSDP = [
    "model=qwen3-1.7b",
    "gpu=h100-sxm5-80gb",
    "parallelism.tp=1",
    "parallelism.pp=1",
    "parallelism.dp=8",
    "parallelism.sharding=full",
    "microbatch_size=2",
    "num_microbatches=2",
    "sequence_length=2048",
    "recomputation=full",
    "software=torchtitan",
    "pipeline.deadlines=9",
]
PLANNED = [method for method in METHODS if method.name in ("sequential", "sequential+perseus", "kareus")]


@pytest.fixture(scope="module")
def planned():
    (workload,) = kareus.resolve(FSDP)
    with quietly():
        return workload, plan_tables(workload, PLANNED).frontiers


def lines(workload, frontiers, selector="fastest", method="sequential+perseus"):
    plan = select_plan(workload, frontiers, selector, method, name="mine")
    return list(obeyed_lines(plan, workload, frontiers, "type {} {}".format))


def test_a_little_slower_is_offered_with_what_to_type_for_it(planned):
    workload, frontiers = planned
    (first, *_) = lines(workload, frontiers)
    slower = select_plan(workload, frontiers, SLOWER, "sequential+perseus", name="mine").prediction
    baseline = frontiers.plans("sequential").row(0, named=True)
    saved, more = 1 - slower.energy_j / baseline["energy_j"], slower.time_s / baseline["time_s"] - 1
    assert first.startswith("at full speed there is ")
    assert f"{100 * more:.1f} % slower saves {100 * saved:.1f} % of energy: type {SLOWER} sequential+perseus" in first
    assert not any("at full speed there is" in line for line in lines(workload, frontiers, SLOWER))


def test_a_power_limit_that_is_named_is_the_best_within_that_time(planned):
    workload, frontiers = planned
    (line,) = (line for line in lines(workload, frontiers) if "power limit" in line)
    own, watts = kareus.predict(workload), workload.gpu.power_limit_w

    def at(limit_w):
        (capped,) = kareus.resolve([*FSDP, f"gpu.power_limit_w={limit_w}"])  # as a user asks
        return kareus.predict(capped)

    costs = {w: at(w) for w in (round(watts * (1 - 0.01 * n)) for n in range(1, 16))}
    within = {w: cost for w, cost in costs.items() if cost.time_s <= 1.05 * own.time_s}
    best_w = min(within, key=lambda w: within[w].energy_j)
    more, saved = within[best_w].time_s / own.time_s - 1, 1 - within[best_w].energy_j / own.energy_j
    assert f"{best_w:.0f} W is {100 * more:.1f} % slower and saves {100 * saved:.1f} % of energy" in line
    assert f"nvidia-smi -pl {best_w:.0f}" in line  # also for trainers without a loop of the user's


def test_a_plan_that_runs_whole_is_obeyed_whatever_its_method(planned):
    """Nothing overlaps without tensor parallelism, so that a plan of `kareus` is one of clocks."""
    assert not any("which obeys" in line for line in lines(*planned, method="kareus"))


def test_the_engine_is_offered_the_settings_that_it_sets(planned):
    workload, frontiers = planned
    engine = dataclasses.replace(workload, software=dataclasses.replace(workload.software, name="kareus"))
    (sms, _) = (line for line in lines(engine, frontiers, method="kareus") if "NCCL" in line)
    assert sms.endswith("plan with parallelism.fsdp=auto: kareus train sets it, and losses stay equal")


def test_the_number_of_sms_is_the_best_of_all_that_cost_nothing(planned):
    """Of a trainer whose groups cannot be limited one by one."""
    (workload,) = kareus.resolve([*FSDP[:-2], "software=llm-foundry", FSDP[-1]])
    count = with_best_exchanges(workload).testbed.default_collective_sm_count
    costs = {n: kareus.predict(with_sm_count(workload, n)) for n in (NCCL_SM_COUNT, *range(3, 31, 3))}
    best, own = costs[count], costs[NCCL_SM_COUNT]
    assert count < NCCL_SM_COUNT
    assert (best.time_s, best.energy_j) < (own.time_s, own.energy_j)
    assert all(
        best.time_s * best.energy_j <= c.time_s * c.energy_j
        for c in costs.values()
        if c.time_s <= own.time_s and c.energy_j <= own.energy_j
    )
    (line,) = exchange_lines(workload)
    assert "by a law that was measured within a node of A100s, so time both" in line
    assert line.endswith(
        f"plan with testbed.default_collective_sm_count={count}, and give the job NCCL_MIN_CTAS={count} "
        f"NCCL_MAX_CTAS={count}"
    )
    (line,) = exchange_lines(with_sm_count(workload, count))
    assert line.endswith(f"not counted above; give the job NCCL_MIN_CTAS={count} NCCL_MAX_CTAS={count}")


def test_a_number_for_all_that_is_given_is_where_the_search_begins(monkeypatch):
    """It is searched beside it, and the best one takes its place."""
    planned = []
    monkeypatch.setattr("kareus.cli.plan._plan", lambda _, workload, __: planned.append(workload))
    job = [*FSDP[:-2], "software=llm-foundry", FSDP[-1]]
    count = "testbed.default_collective_sm_count=2"
    assert main(["plan", *job, count, "parallelism.fsdp=auto", "--config-dir", str(CONFIG)]) == 0
    assert planned == [with_best_exchanges(*kareus.resolve([*job, count]))]
    assert planned[0].testbed.default_collective_sm_count > 2


def test_nccls_own_number_takes_the_place_of_a_given_one_that_is_worse():
    (workload,) = kareus.resolve(FSDP)
    given = with_sm_count(workload, 2)
    (override,) = exchange_overrides(workload, given.testbed.default_collective_sm_count)
    assert kareus.resolve([*FSDP, "testbed.default_collective_sm_count=2"]) == [given]
    assert kareus.resolve([*FSDP, override]) == [workload]


def test_a_search_with_nothing_to_share_out_says_so(monkeypatch, caplog):
    planned = []
    monkeypatch.setattr("kareus.cli.plan._plan", lambda _, workload, __: planned.append(workload))
    job = [text.replace("sharding=full", "sharding=optimizer") for text in FSDP]
    with caplog.at_level("INFO"):
        assert main(["plan", *job, "parallelism.fsdp=auto", "--config-dir", str(CONFIG)]) == 0
    assert planned == list(kareus.resolve(job))
    assert "nothing to search" in caplog.text


def test_each_kind_of_collective_has_its_best_number_of_sms(planned):
    """Against all pairs of numbers, though the search takes one kind after the other."""
    workload, frontiers = planned
    best = with_best_exchanges(workload)
    own, costs = kareus.predict(workload), {}
    steps = {}
    for gather, reduce in itertools.product((None, *range(3, 31, 3)), repeat=2):
        costs[gather, reduce] = predict(with_fsdp(workload, gather_sms=gather, reduce_sms=reduce), steps=steps)
    no_worse = {key: c for key, c in costs.items() if c.time_s <= own.time_s and c.energy_j <= own.energy_j}
    least = min(no_worse.values(), key=lambda c: c.time_s * c.energy_j)
    fsdp, found = best.parallelism.fsdp, kareus.predict(best)
    assert found.time_s * found.energy_j <= (1 + 2 * WORTH) * least.time_s * least.energy_j
    assert fsdp.gather_sms != fsdp.reduce_sms  # a gather moves half of what a reduction does
    assert fsdp.prefetch == 1  # blocks are alike
    assert kareus.resolve([*FSDP, *exchange_overrides(best)]) == [best]
    first, second = (line for line in lines(workload, frontiers) if "NCCL" in line)
    assert first.startswith(
        f"gathers of weights on {fsdp.gather_sms} SMs, reductions of gradients on {fsdp.reduce_sms}"
    )
    assert "plan with parallelism.fsdp=auto: adapters set it" in first
    assert "not measured here; plan with parallelism.fsdp.nvls=true, and start " in second
    first, *_ = (line for line in exchange_lines(best))
    assert first.endswith("not counted above; adapters set it, and losses stay equal")


def test_what_is_searched_for_the_engine_is_run_by_it(monkeypatch):
    job, planned = [*FSDP[:-2], "software=kareus", FSDP[-1]], []
    monkeypatch.setattr("kareus.cli.plan._plan", lambda _, workload, __: planned.append(workload))
    assert main(["plan", *job, "parallelism.fsdp=auto", "--config-dir", str(CONFIG)]) == 0
    assert planned == [with_best_exchanges(*kareus.resolve(job))]
    assert planned[0].parallelism.fsdp.label
    assert not engine_refusal(planned[0])


def test_an_exported_layout_names_the_environment(planned):
    workload, frontiers = planned
    plan = select_plan(workload, frontiers, "fastest", "sequential+perseus", name="mine")
    held = with_sm_count(workload, 12)
    assert "belongs to it: NCCL_MIN_CTAS=12 NCCL_MAX_CTAS=12" in layout_text(plan, held, "torchtitan", "toml")
    assert "NCCL" not in layout_text(plan, workload, "torchtitan", "toml")


@pytest.mark.parametrize("testbed", ["simulated", "cuda"])
def test_nccls_own_number_is_that_of_the_configuration(testbed):
    plain = parse_yaml((Path(CONFIG) / f"testbed/{testbed}.yaml").read_text())
    assert plain["default_collective_sm_count"] == NCCL_SM_COUNT


def test_little_is_said_only_of_little():
    assert little_to_gain(0.0, 0.03, 0.05, 0.2) is None
    assert little_to_gain(0.03, 0.0, 0.05, 0.2) is None
    assert little_to_gain(0.0, 0.01, 0.0, 0.01) is None
    assert little_to_gain(0.0, 0.01, 0.049, 0.06) == (
        "at full speed there is little to gain (1.0 % of energy); 4.9 % slower saves 6.0 % of energy"
    )
    assert little_to_gain(0.015, 0.0, 0.049, 0.06) == (
        "at full speed there is little to gain (1.5 % of time); 4.9 % slower saves 6.0 % of energy"
    )


def test_a_plan_that_is_still_faster_is_not_called_slower():
    said = little_to_gain(0.0, 0.001, -0.009, 0.01)
    assert said == "at full speed there is little to gain (0.1 % of energy); 0.9 % faster saves 1.0 % of energy"


def test_a_workload_on_other_sms_is_the_same_otherwise(planned):
    workload, _ = planned
    back = with_sm_count(with_sm_count(workload, 9), workload.default_collective_sm_count)
    assert dataclasses.asdict(back) == dataclasses.asdict(workload)
