"""SMs of the dispatch of tokens to experts: searched, said beside plans, and set by exports."""

import dataclasses

import pytest
from helpers.builders import CONFIG

from kareus.artifacts.records import leaves, to_plain
from kareus.cli import main
from kareus.export.layouts import MODEL_FIELDS
from kareus.interchange.table import trainer_named
from kareus.interchange.writing import layout_said, written
from kareus.plans.exchanges import (
    WORTH,
    dispatch_lines,
    exchange_lines,
    exchange_overrides,
    with_best_dispatch,
    with_dispatch_sms,
)
from kareus.prediction.workload_prediction import predict
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve_accepted

JOB = (
    *("model=qwen3-30b-a3b", "model.num_layers=4", "gpu=h100-sxm5-80gb", "parallelism.sharding=optimizer"),
    *("parallelism.tp=1", "parallelism.pp=1", "parallelism.dp=16", "parallelism.ep=16", "microbatch_size=1"),
    *("num_microbatches=2", "software.dispatcher=flex"),
)


def job(*overrides: str) -> Workload:
    given = {text.partition("=")[0] for text in overrides}
    usual = [text for text in JOB if text.partition("=")[0] not in given]
    (workload,) = resolve_accepted([*usual, *overrides], CONFIG).values()
    return workload


@pytest.fixture(scope="module")
def searched() -> tuple[Workload, Workload]:
    workload = job()
    return workload, with_best_dispatch(workload)


def test_the_number_is_the_best_of_all_that_cost_nothing(searched: tuple[Workload, Workload]) -> None:
    workload, best = searched
    usual = predict(workload)
    costs = [predict(with_dispatch_sms(workload, count)) for count in range(4, 33, 4)]
    least = min(
        cost.time_s * cost.energy_j
        for cost in (usual, *costs)
        if cost.time_s <= usual.time_s and cost.energy_j <= usual.energy_j
    )
    found = predict(best)
    assert (found.time_s, found.energy_j) < (usual.time_s, usual.energy_j)
    assert found.time_s * found.energy_j <= (1 + WORTH) * least
    assert predict(with_dispatch_sms(workload, 20)).time_s == usual.time_s  # the dispatcher's own


def test_a_line_says_the_number_until_it_is_planned(searched: tuple[Workload, Workload]) -> None:
    workload, best = searched
    count = best.software.dispatch_sms
    (line,) = exchange_lines(workload)
    assert line.startswith(f"exchanges of tokens on {count} SMs: ")
    assert f"plan with software.dispatch_sms={count}: exports for Megatron set it" in line
    (line,) = dispatch_lines(best)
    assert "counted above" in line
    assert [*dispatch_lines(with_dispatch_sms(workload, 20))] == []


@pytest.mark.parametrize("others", [("software.dispatcher=alltoall",), ("parallelism.ep=1", "parallelism.dp=8")])
def test_nothing_is_said_where_tokens_have_no_dispatcher(others: tuple[str, ...]) -> None:
    workload = job(*others)
    assert with_best_dispatch(workload) == workload
    assert [*dispatch_lines(workload)] == []


def test_overrides_and_exports_give_the_number_back(searched: tuple[Workload, Workload]) -> None:
    _, best = searched
    assert exchange_overrides(best) == [f"software.dispatch_sms={best.software.dispatch_sms}"]
    assert dataclasses.asdict(job(*exchange_overrides(best))) == dataclasses.asdict(best)
    plain = {**MODEL_FIELDS, **dict(leaves(to_plain(best)))}
    text = written(trainer_named("megatron-lm"), plain, 8, "shell").text
    assert f"--moe-flex-dispatcher-num-sms {best.software.dispatch_sms}\n" in text
    said = layout_said(trainer_named("megatron-lm"), text, "shell", 4)
    assert said["software.dispatch_sms"] == best.software.dispatch_sms


def test_the_command_plans_with_the_number_that_is_found(
    searched: tuple[Workload, Workload], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Workload] = []
    monkeypatch.setattr("kareus.cli.plan._plan", lambda _, workload, __: planned.append(workload))
    command = ["plan", *JOB, "--config-dir", str(CONFIG)]
    assert main([*command, "software.dispatch_sms=auto"]) == 0
    assert planned == [searched[1]]
    assert main([*command, "software.dispatch_sms=24", "software.dispatch_sms=auto"]) == 2
