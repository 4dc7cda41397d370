"""A plan in Megatron-Core: a real GPT on two pipeline stages, on CPUs, with a made-up GPU for each rank.

Two ranks run everything once, forked from a process that has imported Megatron; tests look at what they found. What
happens amid trainings of it is forked from the same process.
"""

import json
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from helpers.code_blocks import python_blocks, run_block
from helpers.driving import driven_plan
from helpers.events import BY_A_PLAN, cells_of
from helpers.trainer_events import EVENTS, MEGATRON, check_saved
from helpers.worlds import importing, spawn

from kareus.adapters.recorder import table_path
from kareus.adapters.tables import MICROBATCHES, STEPS
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import TableSchema, read_table, write_table
from kareus.pipeline.config import PipelineSchedule
from kareus.plans.file import write_plan
from kareus.workload.tables import WORKLOADS

STAGES, ITERATIONS, TOKENS = 2, 3, 4 * 8
PLANS = {
    "1f1b": driven_plan(STAGES, 4, update=True),
    "replicas": driven_plan(1, 4, gpus=2, reduction=True, update=True),
    "interleaved": driven_plan(STAGES, 4, chunks=2, schedule=PipelineSchedule.INTERLEAVED),
    "gpipe": driven_plan(STAGES, 4, schedule=PipelineSchedule.GPIPE),
}
OUTPUT = {"1f1b": "first", "core": "second", "bridge": "third", "interleaved": "interleaved", "replicas": "replicas"}
"""Folder of tables of each job, as the page has it."""
Found = dict[str, Any]
both_schedules = pytest.mark.parametrize("name", ["1f1b", "interleaved"])


@pytest.fixture(scope="module")
def importer() -> Iterator[Executor]:
    """A process that has imported Megatron, from which all ranks are forked."""
    with importing("helpers.megatron_ranks", "helpers.trainer_events") as importer:
        yield importer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, importer: Executor) -> Path:
    """Where two ranks have left what they found."""
    folder = tmp_path_factory.mktemp("megatron")
    for name, plan in PLANS.items():
        write_plan(folder / f"{name}.json", plan)
    write_plan(folder / "plan.json", PLANS["1f1b"])
    spawn(STAGES, _run, folder, folder, importer=importer)
    return folder


@pytest.fixture(params=range(STAGES))
def rank(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def found(folder: Path, rank: int) -> Found:
    found: Found = json.loads((folder / f"{rank}/found.json").read_text())
    return found


def planned(name: str, rank: int) -> list[list[Any]]:
    """Forwards and backwards of an iteration, with chunk and microbatch."""
    return [[str(i.direction), i.chunk, i.microbatch] for i in PLANS[name].stages[rank].passes]


@pytest.mark.parametrize("event", EVENTS)
def test_megatron_saves_the_same_weights_as_without_kareus(tmp_path: Path, importer: Executor, event: str) -> None:
    check_saved(importer, MEGATRON, event, tmp_path)


def test_what_goes_wrong_harms_no_training_of_megatron(tmp_path: Path, importer: Executor) -> None:
    assert cells_of(importer, "Megatron-Core", tmp_path) == BY_A_PLAN


@both_schedules
def test_megatron_runs_what_the_plan_has_in_its_order(found: Found, rank: int, name: str) -> None:
    assert found[name]["ran"] == planned(name, rank) * ITERATIONS
    assert found[name]["bare"] == found[name]["ran"]


@both_schedules
def test_losses_are_those_without_a_plan_bit_for_bit(found: Found, rank: int, name: str) -> None:
    assert found[name]["losses"] == found[name]["bare losses"]
    assert [len(losses) for losses in found[name]["losses"]] == [4 * rank] * ITERATIONS  # only the last stage has them


@both_schedules
def test_each_instruction_is_recorded_with_its_clock(folder: Path, rank: int, name: str) -> None:
    rows = table(folder, name, MICROBATCHES, rank)
    of_plan = PLANS[name].stages[rank].instructions
    recorded = rows.select("direction", "chunk", "microbatch", "frequency_mhz").rows()
    assert recorded == [(str(i.direction), i.chunk, i.microbatch, i.frequency_mhz) for i in of_plan] * ITERATIONS
    assert rows["energy_j"].min() > 0
    steps = table(folder, name, STEPS, rank)
    assert steps.select("iteration", "tokens").rows() == [(n, TOKENS) for n in range(ITERATIONS)]


@both_schedules
def test_clocks_are_locked_in_order_and_restored(found: Found, rank: int, name: str) -> None:
    clocks_mhz = [i.frequency_mhz for i in PLANS[name].stages[rank].instructions] * ITERATIONS
    *locked, last = found[name]["calls"]
    assert last == "reset"
    assert set(locked) == {f"lock {clock_mhz}" for clock_mhz in clocks_mhz}
    rest = iter(clocks_mhz)  # a request that the next one overtakes is never locked
    assert all(call in (f"lock {clock_mhz}" for clock_mhz in rest) for call in locked)


def test_replicas_of_one_stage_obey_up_to_the_update(found: Found, folder: Path, rank: int) -> None:
    assert found["replicas"]["ran"] == planned("replicas", 0) * ITERATIONS
    rows = table(folder, "replicas", MICROBATCHES, rank)
    of_plan = [(str(i.direction), i.frequency_mhz) for i in PLANS["replicas"].stages[0].instructions]
    assert rows.select("direction", "frequency_mhz").rows() == of_plan * ITERATIONS
    reductions = rows.filter(direction="gradient-reduction")
    assert reductions["time_s"].min() >= found["replicas"]["reduction_s"]


def test_another_order_sets_no_clock(found: Found, rank: int) -> None:
    refused = found["refused"]["gpipe"]
    differs = "backward of microbatch 0 on stage 0: the plan has forward of microbatch 2 on stage 0 here"
    if rank:
        differs = "backward of microbatch 0 on stage 1: the plan has forward of microbatch 1 on stage 1 here"
    assert refused["message"].startswith(differs)
    assert refused["calls"] == []


def test_another_number_of_chunks_sets_no_clock(found: Found) -> None:
    refused = found["refused"]["1f1b"]
    assert refused["message"].startswith("plan 'fastest' of made-up: is of 1 chunks a stage, this job has 2;")
    assert refused["calls"] == []


def test_a_microbatch_too_many_is_named(found: Found) -> None:
    assert found["too many"]["message"].startswith("forward 5 of an iteration: the plan has 4;")
    assert found["too many"]["calls"][-1] == "reset"


def test_an_iteration_that_failed_is_run_again(found: Found) -> None:
    assert found["failed"]["steps"] == 1
    assert found["failed"]["calls"][-1] == "reset"


@pytest.mark.parametrize("name", ["core", "bridge"])
def test_a_loop_and_megatron_bridge_obey_too(found: Found, folder: Path, rank: int, name: str) -> None:
    assert found[name]["ran"] == planned("1f1b", rank) * ITERATIONS
    assert found[name]["calls"][-1] == "reset"
    tokens = TOKENS if name == "bridge" else None  # a loop of one's own says how many
    assert table(folder, name, STEPS, rank).select("iteration", "tokens").rows() == [
        (n, tokens) for n in range(ITERATIONS)
    ]


def test_examples_of_docstrings_run_as_printed(found: Found) -> None:
    assert found["examples"] == {"callbacks": 1, "calls": []}


def test_everything_else_is_left_to_the_real_timers(found: Found) -> None:
    assert found["timers"] == {"log": True, "elapses": True, "copies": True}


def test_the_tables_are_read_as_the_page_reads_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(folder / "results/workloads.parquet", WORKLOADS.frame([]), WORKLOADS, Provenance(config_hash=""))
    monkeypatch.chdir(folder)
    run_block(python_blocks("howto/megatron.md")[-1])
    printed = capsys.readouterr().out
    assert "first" in printed
    assert "j_per_token" in printed


def table(folder: Path, name: str, schema: TableSchema, rank: int) -> pl.DataFrame:
    """A table of one rank of a job."""
    return read_table(table_path(folder / "results/mine/adapters" / OUTPUT[name], schema, rank), schema)


def _run(rank: int, folder: Path) -> None:
    from helpers.megatron_ranks import run_rank  # noqa: PLC0415 - importing Megatron takes seconds, and warns

    run_rank(rank, folder)
