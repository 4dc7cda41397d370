"""Ranks that fail: killed, diverging, out of memory or disk. All end, in one line, and the next start goes on."""

import math
import re
import resource
import shutil
from pathlib import Path

import pytest
import torch
from helpers.killing import kill_a_rank
from helpers.trainings import FAST, end_in_ranks, here, losses, train, weights_of

from kareus.artifacts.tables import read_provenance, read_table
from kareus.runtime.follower import planned_steps
from kareus.runtime.stage_model import StageModel
from kareus.training import setup, trainer
from kareus.training.optimizer import Optimizer
from kareus.training.tables import ITERATIONS

pytestmark = pytest.mark.slow

DIVERGING = ("--learning-rate", 100, "--weight-decay", 100, "--clip", 1e30)
"""Every iteration multiplies the weights by nearly -10,000."""


@pytest.mark.acceptance  # resuming exactly is in test_optimizer_sharding.py too, killed ranks are below
@pytest.mark.parametrize(("workload", "microbatches"), [("two_stages", 3), ("interleaved", 4)])
def test_after_a_killed_rank_the_next_start_gives_equal_weights(
    request: pytest.FixtureRequest, tmp_path: Path, workload: str, microbatches: int
) -> None:
    plan, output = request.getfixturevalue(workload) / "plan/fastest.json", tmp_path / "killed"
    options = ("--iterations", 30, "--checkpoint-every", 5, *FAST)
    said, code = kill_a_rank(1, output, plan, *options)
    assert (said.startswith("kareus train: rank 1 died"), said.count("\n")) == (True, 1)
    assert code == 2
    resumed = train(plan, *options, "--output", output)
    assert re.search(r"resumed after iteration \d+ of", resumed.stdout), resumed.stderr
    whole = train(plan, *options, "--output", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    assert weights_of(output, 30) == weights_of(tmp_path / "whole", 30)
    assert len(weights_of(output, 30)) == 2
    assert losses(output) == losses(tmp_path / "whole")
    check_records(tmp_path / "whole", microbatches)


def check_records(output: Path, microbatches: int) -> None:
    """What each rank took, and that no GPU ran it."""
    for rank in range(2):
        path = output / f"rank-{rank:05d}.parquet"
        for row in read_table(path, ITERATIONS).to_dicts():
            assert (row["method"], row["selector"], row["rank"], row["stage"]) == ("kareus", "fastest", rank, rank)
            assert row["tokens"] == microbatches * 2 * 16
            assert 0 < row["pipeline_time_s"] < row["time_s"]
            assert row["energy_j"] is None
        assert read_provenance(path, ITERATIONS).testbed.label == "measured on CPU"


def test_a_killed_rank_0_ends_the_others_with_one_message(two_stages: Path, tmp_path: Path) -> None:
    options = ("--iterations", 2000, "--checkpoint-every", 5, "--keep", 400)
    said, code = kill_a_rank(0, tmp_path, two_stages / "plan/fastest.json", *options)
    assert (said.startswith("kareus train: rank 0 died"), said.count("\n")) == (True, 1)
    assert code == 2
    assert len(weights_of(tmp_path, 5)) == 2


def test_a_training_that_diverges_ends_on_all_ranks_in_one_line(two_stages: Path, tmp_path: Path) -> None:
    options = ("--iterations", 50, "--output", tmp_path, *DIVERGING)
    done = end_in_ranks(2, two_stages / "plan/fastest.json", *options)
    assert max(done.codes) == 2
    assert re.fullmatch(r"kareus train: (iteration \d+: the loss|gradient: its norm) is (nan|inf).*\n", done.stderr)


def test_a_diverging_training_leaves_a_usable_checkpoint(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    plan, diverged, resumed = alone / "plan/fastest.json", tmp_path / "diverged", tmp_path / "resumed"
    assert here(plan, "--iterations", 3, "--output", tmp_path / "begun") == 0
    shutil.copytree(tmp_path / "begun", diverged)  # a folder stays locked until this process ends
    assert here(plan, "--iterations", 50, *DIVERGING, "--output", diverged) == 2
    assert re.search(r"(the loss|its norm) is (nan|inf).*\n$", capsys.readouterr().err)
    assert weights_of(diverged, 3) == weights_of(tmp_path / "begun", 3)
    shutil.copytree(diverged, resumed)
    caplog.set_level("INFO")
    assert here(plan, "--iterations", 4, "--output", resumed) == 0
    assert "resumed after iteration 3 of" in caplog.text
    assert all(math.isfinite(loss) for loss in losses(resumed))


def test_weights_without_a_finite_loss_are_not_laid_to_the_learning_rate(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(module: torch.nn.Module, *_: object) -> None:
        with torch.no_grad():
            next(module.parameters()).fill_(torch.nan)

    monkeypatch.setattr(trainer, "draw_weights", spoil)
    assert here(alone / "plan/fastest.json", "--iterations", 2, "--output", tmp_path) == 2
    assert capsys.readouterr().err == (
        "kareus train: iteration 0: the loss is nan; nothing was updated before it; the drawn weights give no finite "
        "loss or gradient, so begin with others.\n"
    )


def test_weights_that_are_not_finite_are_never_saved(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Optimizer.step

    def overflow(self: Optimizer, norm: torch.Tensor, rate: float) -> None:
        step(self, norm, rate)
        steps.append(rate)
        if len(steps) == 4:
            next(iter(self.weights().values()))[0] = torch.inf

    steps: list[float] = []
    monkeypatch.setattr(Optimizer, "step", overflow)
    options = ("--iterations", 9, "--checkpoint-every", 2, "--output", tmp_path)
    assert here(alone / "plan/fastest.json", *options) == 2
    assert capsys.readouterr().err == (
        "kareus train: iteration 3: weights or their moments are infinite or not a number, no checkpoint is written; "
        "lower --learning-rate, --weight-decay or --clip and start it again (it goes on after iteration 2).\n"
    )
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["iteration-00000002"]


def test_a_file_refused_by_the_system_ends_all_in_one_line(two_stages: Path, tmp_path: Path) -> None:
    table = tmp_path / "rank-00001.parquet"
    table.mkdir()
    done = end_in_ranks(2, two_stages / "plan/fastest.json", "--iterations", 1, "--output", tmp_path)
    assert max(done.codes) == 2
    assert done.stderr == (
        f"kareus train: rank 1: {table}: is no regular file, and stays as it is; move what is there away, or "
        "give another path.\n"
    )


def test_a_full_disk_ends_the_training_in_one_line(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        code = here("--workload", alone / "config/workload.yaml", "--iterations", 1, "--output", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    tensors = tmp_path / "checkpoints/iteration-00000001/rank-00000.safetensors"
    said = capsys.readouterr().err
    assert said.startswith(f"kareus train: {tensors}: cannot be written (")
    assert said.endswith("check the path, its permissions and the space on its disk.\n")
    assert said.count("\n") == 1
    assert list(tensors.parent.iterdir()) == []


@pytest.mark.parametrize(
    "place",
    [(StageModel, "__init__"), (StageModel, "run_forward"), (StageModel, "run_backward"), (Optimizer, "step")],
    ids=lambda place: f"{place[0].__name__}.{place[1]}",
)
def test_out_of_memory_ends_the_training_in_one_line(
    place: tuple[type, str],
    alone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_out(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation.")

    monkeypatch.setattr(*place, run_out)
    assert here("--workload", alone / "config/workload.yaml", "--iterations", 1, "--output", tmp_path) == 2
    assert capsys.readouterr().err == (
        "kareus train: rank 0: the training does not fit into the memory of its GPU; end what else runs on it, or "
        "plan a smaller microbatch.\n"
    )


def test_a_departure_from_the_order_ends_in_one_line(
    alone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(setup, "planned_steps", lambda *of: tuple(reversed(planned_steps(*of))))
    assert here(alone / "plan/fastest.json", "--iterations", 1, "--output", tmp_path) == 2
    assert capsys.readouterr().err == (
        "kareus train: forward of microbatch 0 on stage 0: the plan has update of stage 0 here; run a plan of this "
        "pipeline schedule.\n"
    )
    assert all(record.name.startswith("kareus") for record in caplog.records)
