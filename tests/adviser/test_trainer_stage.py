"""The command `calibrate --trainer`: it finds a hidden trainer, asks for runs, and keeps what is typed."""

import contextlib
import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from helpers.builders import CONFIG

import kareus
from kareus.adviser.layouts import Constraints, Layout, layouts_of
from kareus.adviser.runs import LayoutRun, LayoutTimes, RunFailure, read_runs, runnable, runs_text
from kareus.cli import main
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.errors import error_of, error_words
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.resolve import with_split

pytestmark = pytest.mark.slow

TRAINING = [
    "model=llama3.1-8b", "model.num_layers=2", "gpu=h100-sxm5-80gb", "software=nanotron", "sequence_length=512",
]  # fmt: skip
HIDDEN = {"network_slowdown": 5.0, "host_launch_s": 6e-5, "attention_slowdown": 1.6, "hidden_reduction": 0.3}
FEW = Constraints(
    tp=(1, 4), pp=(1, 2), cp=(1,), recomputation=(Recomputation.NONE,), sharding=(Sharding.NONE, Sharding.OPTIMIZER),
    schedule=(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,), microbatch_size=(1,), sequence_parallel=(True,),
)  # fmt: skip


class Calibrated(NamedTuple):
    """What a calibration left."""

    config: Path
    said: str


def hidden_base() -> Workload:
    (composed,) = compose([*TRAINING, "iteration.include_update=true"], CONFIG)
    return composed.workload


@pytest.fixture(scope="module")
def runs() -> list[LayoutRun]:
    """Runs of a hidden trainer on 8 and 16 GPUs, without noise."""
    base = hidden_base()
    layouts = [one for gpus in (8, 16, 32) for one in layouts_of(base, gpus, 32, FEW)]
    candidates = runnable(base, layouts, Path("runs.csv"))
    times_s = LayoutTimes(base, [one.workload for one in candidates]).of(HIDDEN)
    return [LayoutRun(layout=one.layout, time_s=float(time_s)) for one, time_s in zip(candidates, times_s, strict=True)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(CONFIG, tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def calibrated(runs: list[LayoutRun], tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """A folder in which the command chose ten runs of a file."""
    folder = tmp_path_factory.mktemp("trainer")
    shutil.copytree(CONFIG, folder / "config")
    (folder / "runs.csv").write_text(runs_text(runs))
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.chdir(folder)
        assert main(["calibrate", "--trainer", *TRAINING, "--runs", "runs.csv", "--rows", "10"]) == 0
    return Calibrated(folder / "config", said.getvalue())


def composed_by(calibrated: Calibrated, *overrides: str) -> Workload:
    (composed,) = compose([*TRAINING[:2], "software=nanotron-calibrated", *overrides], calibrated.config)
    return composed.workload


def test_the_answer_says_whether_to_rank_by_it(calibrated: Calibrated) -> None:
    assert "rank by it: yes" in calibrated.said
    assert "config/software/nanotron-calibrated.yaml: written" in calibrated.said
    assert len(re.findall(r"^ +[\d.]+ +[+-][\d.]+%  ", calibrated.said, flags=re.MULTILINE)) == 10


def test_the_file_has_numbers_with_intervals_and_keeps_the_rest(calibrated: Calibrated) -> None:
    text = (calibrated.config / "software/nanotron-calibrated.yaml").read_text()
    assert "# [calibrated] 90 %: " in text
    assert "NOT FITTED" not in text
    assert "sums_whole: true # trainer.py" in text


def test_all_runs_are_predicted_as_the_hidden_trainer_takes(calibrated: Calibrated, runs: list[LayoutRun]) -> None:
    found = composed_by(calibrated, TRAINING[2]).software
    assert found.network_slowdown == pytest.approx(HIDDEN["network_slowdown"], rel=0.3)
    base = hidden_base()
    workloads = [one.workload for one in runnable(base, [run.layout for run in runs], Path("runs.csv"))]
    predicted_s = LayoutTimes(replace(base, software=found), workloads).of({})
    assert np.abs(predicted_s / [run.time_s for run in runs] - 1).mean() < 0.03


def test_errors_are_those_of_runs_left_out(calibrated: Calibrated) -> None:
    workload = composed_by(calibrated, TRAINING[2])
    found, pair = workload.software.measured, error_of(workload)
    assert found is not None
    assert pair is not None
    assert (found.runs, found.may_rank) == (10, True)
    assert pair.percent_90 == found.percent_90
    assert "(10 of nanotron-calibrated on this GPU, each left out of the fit)" in error_words(workload)
    assert kareus.predict(with_split(workload)).time_s > 0


@pytest.mark.parametrize("changed", [(TRAINING[2], "software.traffic=2.9"), ("gpu=h200",)])
def test_errors_die_with_the_numbers_that_they_are_of(calibrated: Calibrated, changed: tuple[str, ...]) -> None:
    assert error_of(composed_by(calibrated, *changed)) is None


def test_times_are_asked_for_and_kept(
    folder: Path, runs: list[LayoutRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four are typed, one of them out of memory; then nobody answers, and a second call goes on where that ended."""
    asked = [replace(run, time_s=None) for run in runs[:8]]
    Path("runs.csv").write_text(runs_text(asked))
    answers = iter(["0.5", "fast", "-1", "0.4", "OOM", "0.3"])

    def typed(_: str) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    command = ["calibrate", "--trainer", *TRAINING, "--runs", "runs.csv", "--rows", "5"]
    assert main(command) == 2
    assert "call the command again" in capsys.readouterr().err
    kept = read_runs(Path("runs.csv"))
    assert len(kept) == 8
    assert sorted(run.time_s for run in kept if run.time_s) == [0.3, 0.4, 0.5]
    assert [run.failure for run in kept if run.failure] == [RunFailure.OUT_OF_MEMORY]
    answers = iter(["0.6", "0.7"])
    assert main(command) == 0
    assert "rank by it: no, fewer than 10 runs" in capsys.readouterr().out


def test_layouts_are_enumerated_where_no_file_has_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "0.25")
    narrow = ["tp=1,2", "pp=1", "cp=1", "recompute=none", "microbatch_size=1", "sharding=none,optimizer"]
    batch = ["--gpus", "8", "--global-batch", "32", "--rows", "3"]
    assert main(["calibrate", "--trainer", *TRAINING, *narrow, *batch, "--output", "mine.yaml"]) == 0
    layouts = [run.layout for run in read_runs(Path("trainer-runs.csv"))]
    assert len(set(layouts)) == 3
    assert {one.gpus for one in layouts} == {8}
    assert all(isinstance(one, Layout) for one in layouts)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--runs", "nowhere.csv"], "nowhere.csv"),
        (["--gpus", "8"], "belong together"),
        (["--runs", "runs.csv", "--rows", "2"], "--rows 2: must be from 3 to 100"),
        (["--runs", "runs.csv", "--output", "config/software/nanotron.yaml"], "there is a software file of this name"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    folder: Path, runs: list[LayoutRun], arguments: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs.csv").write_text(runs_text(runs[:4]))
    assert main(["calibrate", "--trainer", *TRAINING, *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert refusal in said
    assert len(said.splitlines()) == 1
