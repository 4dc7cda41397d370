"""What the progress line and the event files of a training say of an iteration."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from helpers.trainings import here, losses, tiny_workload

from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.tables import read_table
from kareus.plans.throughput import throughput
from kareus.training.tables import ITERATIONS
from kareus.workload.model_flops import mfu, tokens_per_iteration

WORKLOAD = tiny_workload()


def trained(folder: Path, iterations: int, *options: object) -> int:
    """Train into `folder` up to `iterations`; returns the exit code."""
    workload = folder.parent / "workload.yaml"
    workload.write_text(to_yaml(WORKLOAD))
    begin = ("--workload", workload, "--iterations", iterations, "--checkpoint-every", 2)
    return here(*begin, "--output", folder, *options)


def test_joules_per_token_are_said_where_energy_is_measured() -> None:
    workload = tiny_workload(dp=2)
    reached = throughput(workload, 0.5, 300.0)
    assert str(reached) == (
        f"384 tokens/s  0.500 s  MFU {100 * mfu(workload, 0.5):.3g} % of A100-SXM4-40GB  300.0 J  1.56 J/token"
    )
    assert "J" not in str(throughput(workload, 0.5, None))


def test_the_progress_line_has_tokens_and_mfu(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert trained(tmp_path / "run", 1) == 0
    said = re.search(r"  ([\d,]+) tokens/s  [\d.]+ s  MFU (\S+) % of A100-SXM4-40GB$", caplog.text, re.MULTILINE)
    assert said is not None
    (time_s,) = read_table(tmp_path / "run/rank-00000.parquet", ITERATIONS)["time_s"]
    assert said[1] == f"{tokens_per_iteration(WORKLOAD) / time_s:,.0f}"
    assert said[2] == f"{100 * mfu(WORKLOAD, time_s):.3g}"


def test_a_training_ends_with_where_its_checkpoint_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert trained(tmp_path / "run", 1) == 0
    first, *_, last = caplog.messages
    assert first == "CPU: memory-bound operators run one PyTorch operation at a time, not fused."
    written = tmp_path / "run/checkpoints/iteration-00000001"
    assert last == f"checkpoint {written} (after iteration 1)"
    assert (written / "rank-00000.json").exists()


def test_without_tensorboard_metrics_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "tensorboard" else find(name))
    assert trained(tmp_path / "run", 1, "--metrics", tmp_path / "events") == 2
    assert capsys.readouterr().err == (
        f"kareus train: --metrics {tmp_path / 'events'}: needs the package tensorboard, which is not installed; pip "
        "install tensorboard, or leave --metrics out (the Parquet tables have time, energy and loss).\n"
    )
    assert not (tmp_path / "run").exists()


def test_event_files_have_what_the_table_has_after_a_resumption(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events, run, again = tmp_path / "events", tmp_path / "run", tmp_path / "again"
    assert trained(run, 3, "--metrics", events) == 0
    shutil.copytree(run, again)  # a folder stays locked until this process ends
    shutil.rmtree(again / "checkpoints/iteration-00000003")  # so that the next start repeats an iteration
    assert trained(again, 4, "--metrics", events) == 0
    read = accumulators.EventAccumulator(str(events)).Reload()
    assert sorted(read.Tags()["scalars"]) == [
        "iteration/time_s",
        "throughput/mfu",
        "throughput/tokens_per_s",
        "train/gradient_norm",
        "train/learning_rate",
        "train/loss",
    ]
    found = [(event.step, event.value) for event in read.Scalars("train/loss")]
    assert found == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in enumerate(losses(again))]
    times_s = read_table(again / "rank-00000.parquet", ITERATIONS).sort("iteration")["time_s"]
    shares = [event.value for event in read.Scalars("throughput/mfu")]
    assert shares == pytest.approx([mfu(WORKLOAD, time_s) for time_s in times_s], rel=1e-6)
