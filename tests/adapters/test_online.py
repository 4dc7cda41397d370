"""Changing plans between iterations: four pipelines as processes, and what a single rank tells the others."""

import dataclasses
import json
import math
import random
import signal
import time

import pytest
from helpers.driving import driven_plan, layout_of
from helpers.fake_device import wait_until
from helpers.online_ranks import RANKS, TENSOR_PARALLEL, OnlineJob, planned_pipelines, start

from kareus.adapters.agreement import Alone
from kareus.adapters.governor import CLEAN_ITERATIONS, Governor, costs_of
from kareus.adapters.online import OnlineChoice, PlanFolder
from kareus.adapters.recorder import next_iteration, table_path
from kareus.adapters.records import InstructionRecord, IterationRecord
from kareus.adapters.tables import STEPS
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import read_table, write_table
from kareus.device.claims import FOLDER_VARIABLE, setting_of
from kareus.device.controller import controlled_clocks
from kareus.errors import ConfigError, DeviceError
from kareus.plans.build import frontier_plans
from kareus.plans.document import PredictedCost
from kareus.plans.selectors import parse_selector

METHOD = "sequential+perseus"
SLOW, FAST_AGAIN = 6, 14
"""The pipeline 2 is slow from one iteration until the other."""


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A folder with plans, and what their instructions take."""
    top = tmp_path_factory.mktemp("online")
    return top, planned_pipelines(top / "plans")


@pytest.fixture(scope="module")
def ran(planned):
    """Selectors of all ranks by iteration, and the lines of the log, after a straggler came and went."""
    top, costs = planned
    job = OnlineJob(top=top, costs=costs, iterations=20, slow_between=(SLOW, FAST_AGAIN))
    ranks = start(job)
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0] * RANKS
    assert not any(job.gpu(rank).locked.exists() for rank in range(RANKS))
    tables = [read_table(table_path(top / "output", STEPS, TENSOR_PARALLEL * rank), STEPS) for rank in range(RANKS)]
    log = [json.loads(line) for line in (top / "output/changes.jsonl").read_text().splitlines()]
    return [table.sort("iteration")["selector"].to_list() for table in tables], log


def test_the_others_meet_a_straggler_within_three_iterations(planned, ran):
    top, _ = planned
    selectors, _ = ran
    plans = frontier_plans(WorkloadFolder(top / "plans"), METHOD)
    times_s = [plan.prediction.time_s for plan in plans]
    usual = [plan for plan in plans if plan.prediction.time_s <= 1.003 * times_s[0]][-1]  # `fastest`
    meeting = [plan for plan in plans if plan.prediction.time_s <= 1.15 * usual.prediction.time_s * (1 + 1e-9)][-1]
    assert meeting is not plans[-1]
    assert selectors[2] == [usual.selector] * 20  # the slow one keeps its plan
    for rank in (0, 1, 3):
        assert selectors[rank][:SLOW] == [usual.selector] * SLOW
        assert selectors[rank][SLOW + 3 : FAST_AGAIN] == [meeting.selector] * (FAST_AGAIN - SLOW - 3)
        assert selectors[rank][FAST_AGAIN + 3 :] == [usual.selector] * (20 - FAST_AGAIN - 3)


def test_all_ranks_change_at_the_same_iteration(ran):
    selectors, log = ran
    assert selectors[0] == selectors[1] == selectors[3]
    changed = [n for n in range(1, 20) if selectors[0][n] != selectors[0][n - 1]]
    assert [line["iteration"] for line in log] == [0, *changed]
    assert len(changed) == 2


def test_the_log_says_when_and_why(ran):
    selectors, log = ran
    assert [line["reason"] for line in log] == [
        "as selected",
        "pipeline 2 takes 1.150 times as long",
        "as selected",
    ]
    for line in log:
        assert [plan["pipeline"] for plan in line["plans"]] == list(range(RANKS))
        assert [plan["selector"] for plan in line["plans"]] == [own[line["iteration"]] for own in selectors]


@pytest.mark.parametrize("how", ["KILL", "TERM"])
def test_clocks_are_restored_whenever_a_rank_is_killed(planned, tmp_path, monkeypatch, how):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    _, costs = planned
    (tmp_path / "plans").symlink_to(planned[0] / "plans")
    job = OnlineJob(top=tmp_path, costs=costs, iterations=10**6, slow_between=(3, 10**6), pause_s=0.01)
    chance = random.Random(how)
    ranks = start(job)
    wait_until(lambda: all(job.gpu(rank).locked.exists() for rank in range(RANKS)), 60.0)
    time.sleep(chance.uniform(0.0, 0.5))
    victim = chance.randrange(RANKS)
    if how == "KILL":
        ranks[victim].kill()
    else:
        ranks[victim].terminate()
    for process in ranks:  # those that are left fail where they agree
        process.join(60)
    assert ranks[victim].exitcode == (-signal.SIGKILL if how == "KILL" else 128 + signal.SIGTERM)
    for rank in set(range(RANKS)) - {victim}:
        assert not job.gpu(rank).locked.exists()
        assert setting_of(job.gpu(rank).uuid) is None
    if how == "KILL":  # the next process that has the GPU does it
        with controlled_clocks(job.gpu(victim)):
            assert not job.gpu(victim).locked.exists()
    assert not job.gpu(victim).locked.exists()


SLOWER = PredictedCost(time_s=12.0, energy_j=3e3, static_energy_j=1e3, dynamic_energy_j=2e3, lower_bound_j=2e3)


def plans_of(fastest):
    """A plan and a slower one of the same clocks."""
    return fastest, dataclasses.replace(fastest, selector="deadline=12s", prediction=SLOWER)


PLANS = plans_of(driven_plan(stages=1))


class Rank:
    """One rank alone, and what its driver and its records say."""

    def __init__(self, log=None, every=1, first=0, throttle_reasons=None, plans=PLANS):
        self.reasons = ()
        self.choice = OnlineChoice(
            plans,
            layout=layout_of(plans[0]),
            pipeline=0,
            governor=Governor(
                costs_of(plans, plans[0].gpus), 1, parse_selector("fastest"), parse_selector("min-energy")
            ),
            agreement=Alone(),
            throttle_reasons=throttle_reasons or (lambda: self.reasons),
            log=log,
            first=first,
            every=every,
        )

    def iteration(self, number, share_of_asked=1.0, readings=1000):
        """Run an iteration in which the clock is a share of what was asked for; returns the plan.

        The clock is read in the first instructions only, as many as there are `readings`.
        """
        chosen = self.choice.iteration(number)
        instructions = tuple(
            InstructionRecord(
                key=step.key,
                start_s=float(place),
                time_s=1.0,
                energy_j=200.0,
                frequency_mhz=step.frequency_mhz,
                observed_mhz=round(step.frequency_mhz * share_of_asked) if place < readings else None,
            )
            for place, step in enumerate(chosen.steps)
        )
        record = IterationRecord(
            iteration=number,
            selector=chosen.selector,
            time_s=10.0,
            energy_j=2e3,
            tokens=None,
            frequency_mhz=None,
            observed_mhz=None,
            instructions=instructions,
        )
        self.choice.take_note(record)
        return chosen.selector


def test_a_clock_below_the_one_asked_for_takes_the_safe_plan(tmp_path):
    rank = Rank(tmp_path / "changes.jsonl")
    plans = [rank.iteration(n, 0.9 if n == 2 else 1.0) for n in range(CLEAN_ITERATIONS + 5)]
    assert plans == ["fastest"] * 3 + ["deadline=12s"] * CLEAN_ITERATIONS + ["fastest"] * 2
    lines = [json.loads(line) for line in (tmp_path / "changes.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 3, 3 + CLEAN_ITERATIONS]
    assert lines[1]["reason"] == "rank 0: its clock is 1269 MHz where 1410 MHz were asked for"


def test_few_readings_of_a_clock_may_be_of_one_that_changes():
    rank = Rank()
    assert [rank.iteration(n, 0.9, readings=2) for n in range(4)] == ["fastest"] * 4
    assert [rank.iteration(n, 0.9, readings=3) for n in range(4, 6)] == ["fastest", "deadline=12s"]


def test_all_passes_of_a_short_iteration_are_enough():
    """One microbatch, and an update that is over before its clock is read."""
    rank = Rank(plans=plans_of(driven_plan(stages=1, microbatches=1, update=True)))
    assert [rank.iteration(n, 0.9, readings=1) for n in range(3)] == ["fastest"] * 3
    assert [rank.iteration(n, 0.9, readings=2) for n in range(3, 5)] == ["fastest", "deadline=12s"]


def test_a_clock_that_the_power_limit_holds_was_planned_so():
    rank = Rank()
    rank.reasons = ("power-limit",)
    assert [rank.iteration(n, 0.9) for n in range(4)] == ["fastest"] * 4


def test_a_hot_gpu_takes_the_safe_plan_at_once():
    rank = Rank()
    plans = [rank.iteration(0)]
    rank.reasons = ("thermal-limit", "power-limit")
    assert [*plans, rank.iteration(1)] == ["fastest", "deadline=12s"]


def test_ranks_may_agree_more_seldom():
    rank = Rank(every=4)
    rank.reasons = ("thermal-limit",)
    plans = [rank.iteration(0)]
    rank.reasons = ()
    plans += [rank.iteration(n) for n in range(1, 4 * CLEAN_ITERATIONS + 1)]
    assert plans == ["deadline=12s"] * 4 * CLEAN_ITERATIONS + ["fastest"]


def test_a_gpu_that_knows_no_reasons_follows_its_plan(caplog):
    def unknown():
        raise DeviceError("GPU-0: reasons: not supported;")

    rank = Rank(throttle_reasons=unknown)
    assert [rank.iteration(n) for n in range(3)] == ["fastest"] * 3
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == "GPU-0: reasons: not supported; Heat and power brakes change no plan of this rank."


def test_the_log_counts_iterations_as_the_tables_do(tmp_path):
    log, row = tmp_path / "changes.jsonl", {"rank": 0, "selector": "fastest", "time_s": 1.0}
    missing = dict.fromkeys(("energy_j", "tokens", "frequency_mhz", "observed_mhz"))
    path = table_path(tmp_path, STEPS, 0)
    path.parent.mkdir()
    assert next_iteration(tmp_path, 0) == 0
    frame = STEPS.frame([{**row, **missing, "iteration": n} for n in range(7)])
    write_table(path, frame, STEPS, Provenance(config_hash=""))
    Rank(log, first=next_iteration(tmp_path, 0)).iteration(0)
    assert json.loads(log.read_text())["iteration"] == 7


def test_a_log_that_cannot_be_written_ends_no_training(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    assert Rank(tmp_path / "file" / "changes.jsonl").iteration(0) == "fastest"
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"price_per_gpu_hour": 2.5}, "changes nothing without prices"),
        ({"prices": "prices.csv", "price_per_gpu_hour": -1.0}, "price_per_gpu_hour=-1.0: must be 0 or more"),
        ({"prices": "prices.csv", "price_per_gpu_hour": math.nan}, "price_per_gpu_hour=nan"),
        ({"prices": "prices.csv", "prices_began_s": math.nan}, "prices_began_s=nan"),
        ({"prices": "prices.csv", "prices_began_s": 1.8e12}, "prices_began_s=1800000000000.0: must be from 0 to"),
    ],
)
def test_prices_that_cannot_be_are_refused_at_once(given, said):
    with pytest.raises(ConfigError, match=said):
        PlanFolder(folder="plans", **given)
