"""The yardstick of orders of layouts: what counts as sane, and what an order costs."""

from dataclasses import replace
from pathlib import Path

import pytest

import layouts as yardstick
from kareus.adviser.layouts import Layout
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineSchedule

HEADER = (
    "model,num_gpus,dp,pp,tp,zero,mbs,grad_acc,seq_len,status,mfu_pct,iteration_time_s,gpu_memory_gb,batch_consistent"
)
LAYOUT = Layout(
    dp=4, pp=1, tp=2, cp=1, schedule=PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, chunks=1, microbatch_size=1,
    num_microbatches=8, recomputation=Recomputation.NONE, sharding=Sharding.NONE, sequence_parallel=True,
)  # fmt: skip


def sweep(tmp_path: Path, *lines: str) -> list[yardstick.SweepRow]:
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return yardstick.read_sweep(path)


def ranked(measured: list[float], predicted: list[float], gpus: int = 8) -> list[yardstick.Ranked]:
    """Layouts of one group, ranked as they are predicted."""
    return [
        yardstick.Ranked(
            yardstick.SweepRow(
                model="1B", layout=replace(LAYOUT, dp=gpus // 2, num_microbatches=n + 1), ran=True, mfu_pct=30.0,
                time_s=time_s, memory_gib=20.0,
            ),
            guess_s,
            guess_s,
        )
        for n, (time_s, guess_s) in enumerate(zip(measured, predicted, strict=True))
    ]  # fmt: skip


def test_rows_are_read_as_what_ran(tmp_path: Path) -> None:
    (row,) = sweep(tmp_path, "1B,8,4,1,2,1,1,8,4096,ran,31.0,1.5,20.0,1")
    assert row.layout == replace(LAYOUT, sharding=Sharding.OPTIMIZER)
    assert (row.time_s, row.memory_gib, row.is_sane) == (1.5, 20.0, True)


@pytest.mark.parametrize(
    "line",
    [
        "1B,8,4,1,2,0,1,8,4096,ran,9.9,1.5,20.0,1",
        "1B,16,1,1,16,0,1,8,4096,ran,31.0,1.5,20.0,1",
        "1B,8,4,1,2,0,1,8,4096,crashed_or_oom,,,,1",
    ],
)
def test_what_nobody_would_keep_is_not_sane(tmp_path: Path, line: str) -> None:
    (row,) = sweep(tmp_path, line)
    assert not row.is_sane


def test_rows_of_another_batch_are_left_out(tmp_path: Path) -> None:
    assert sweep(tmp_path, "1B,8,4,1,2,0,1,8,4096,ran,31.0,1.5,20.0,0") == []


def test_a_perfect_order_loses_nothing() -> None:
    found = yardstick.score(ranked([1.0, 2.0, 3.0, 4.0, 5.0], [1.1, 2.2, 3.3, 4.4, 5.5]))
    assert found["tau"] == pytest.approx(1.0)
    assert (found["first_choice_loss_pct"], found["best_of_three_loss_pct"]) == (0.0, 0.0)
    assert found["time_mape_pct"] == pytest.approx(10.0)


def test_an_order_costs_what_its_first_choices_take_more() -> None:
    """Reversed, the first choice takes five times the best, and the best of three three times; groups count alike."""
    wrong = ranked([1.0, 2.0, 3.0, 4.0, 5.0], [5.0, 4.0, 3.0, 2.0, 1.0])
    found = yardstick.score(wrong)
    assert found["tau"] == pytest.approx(-1.0)
    assert (found["first_choice_loss_pct"], found["best_of_three_loss_pct"]) == (400.0, 200.0)
    right = ranked([1.0, 2.0, 3.0, 4.0, 5.0] * 2, [1.0, 2.0, 3.0, 4.0, 5.0] * 2, gpus=16)
    both = yardstick.score([*wrong, *right])
    assert (both["groups"], both["first_choice_loss_pct"]) == (2, 200.0)


def test_groups_of_few_layouts_have_no_order() -> None:
    assert yardstick.score(ranked([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]) + ranked([1.0], [9.0], 64))["groups"] == 1


def test_the_naive_rule_takes_the_least_degrees_and_then_the_largest_microbatch() -> None:
    rows = [
        replace(ranked([1.0], [1.0])[0].row, layout=replace(LAYOUT, tp=tp, microbatch_size=size))
        for tp, size in ((2, 1), (1, 1), (1, 4))
    ]
    one = yardstick.ModelSweep(base=None, rows=rows, candidates=[], left_out=[])  # type: ignore[arg-type]
    order = sorted(yardstick.by_rule([one]), key=lambda found: found.place)
    assert [(found.row.layout.tp, found.row.layout.microbatch_size) for found in order] == [(1, 4), (1, 1), (2, 1)]
