"""Checkpoints are written while the training goes on, one at a time, and their errors reach the user."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from helpers.trainings import here, losses, weights_of
from helpers.worlds import fork

from kareus.errors import ArtifactError
from kareus.model import weights
from kareus.training import checkpoint_writer
from kareus.training.batches import DataPosition
from kareus.training.checkpoint import Checkpoint, RankCheckpoints, StateSlice, load, save
from kareus.training.checkpoint_files import header_file, read_header
from kareus.training.checkpoint_writer import CheckpointWriter
from kareus.training.trainer import Trainer
from kareus.training.weight_slices import Box

PART = StateSlice("weight", "model.norm.weight", Box((0,), (3,)))


def checkpoint(iteration: int, tensor: torch.Tensor) -> Checkpoint:
    return Checkpoint(
        iteration=iteration,
        tensors={PART: tensor},
        random={"cpu": torch.get_rng_state()},
        data=DataPosition(samples=0, source="none"),
    )


def files_in(folder: Path) -> RankCheckpoints:
    return RankCheckpoints(folder=folder, rank=0, ranks=1, run="a", subject="model")


def test_what_changes_after_the_start_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, weight = threading.Event(), torch.ones(3)

    def save_later(files: RankCheckpoints, state: Checkpoint) -> None:
        assert changed.wait(30)
        save(files, state)

    monkeypatch.setattr(checkpoint_writer, "save", save_later)
    writer = CheckpointWriter(files_in(tmp_path))
    for iteration in (1, 2):
        weight.fill_(iteration)
        changed.clear()
        writer.start(checkpoint(iteration, weight))
        weight.fill_(torch.nan)
        assert writer.is_busy
        assert not header_file(tmp_path, iteration, 0).exists()
        changed.set()
        writer.wait()
        assert not writer.is_busy
        found = torch.zeros(3)
        load(files_in(tmp_path), read_header(header_file(tmp_path, iteration, 0)), {PART: found})
        assert found.tolist() == [iteration] * 3


def test_what_writing_raises_is_raised_at_the_next_look(tmp_path: Path) -> None:
    blocked = tmp_path / "iteration-00000001"
    blocked.write_text("a file where the folder should be")
    writer = CheckpointWriter(files_in(tmp_path))
    writer.start(checkpoint(1, torch.ones(3)))
    with pytest.raises((ArtifactError, OSError), match="iteration-00000001"):
        writer.wait()
    with pytest.raises((ArtifactError, OSError), match="iteration-00000001"):
        writer.check()


def test_training_goes_on_while_a_checkpoint_is_written(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first checkpoint, of iteration 2, is held up until iteration 4 has begun; the second one waits for it."""
    iterate, second_due = Trainer._iterate, threading.Event()
    written: list[int] = []

    def note(self: Trainer) -> object:
        if self.iteration == 3:
            assert written == []
        return iterate(self)

    def save_slowly(files: RankCheckpoints, state: Checkpoint) -> None:
        assert second_due.wait(60)
        save(files, state)
        written.append(state.iteration)

    def warned(message: str, *arguments: object) -> None:
        warnings.append(message % arguments)
        second_due.set()

    warnings: list[str] = []
    monkeypatch.setattr(Trainer, "_iterate", note)
    monkeypatch.setattr(checkpoint_writer, "save", save_slowly)
    monkeypatch.setattr("kareus.training.trainer.logger.warning", warned)
    options = ("--iterations", 6, "--checkpoint-every", 2, "--keep", 2)
    assert here(alone / "plan/fastest.json", *options, "--output", tmp_path / "slow") == 0
    assert written == [2, 4, 6]
    assert warnings[0] == (
        "the checkpoint of iteration 4 waits, since that of iteration 2 is still being written; raise "
        "--checkpoint-every, or write to a faster disk."
    )
    kept = sorted(path.name for path in (tmp_path / "slow/checkpoints").iterdir())
    assert kept == ["iteration-00000004", "iteration-00000006"]
    assert len(losses(tmp_path / "slow")) == 6


def test_a_checkpoint_that_cannot_be_written_ends_the_training_soon(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = threading.Event()

    def refuse(files: RankCheckpoints, state: Checkpoint) -> None:
        failed.set()
        raise ArtifactError(f"{files.folder}: cannot be written (No space left on device).")

    iterate = Trainer._iterate

    def wait(self: Trainer) -> object:
        if self.iteration == 1:
            assert failed.wait(30)
        return iterate(self)

    monkeypatch.setattr(Trainer, "_iterate", wait)
    monkeypatch.setattr(checkpoint_writer, "save", refuse)
    options = ("--iterations", 50, "--checkpoint-every", 1, "--output", tmp_path)
    assert here(alone / "plan/fastest.json", *options) == 2
    assert capsys.readouterr().err == (
        f"kareus train: {tmp_path / 'checkpoints'}: cannot be written (No space left on device).\n"
    )
    assert len(losses(tmp_path)) <= 2


def train_until_killed(arguments: tuple[object, ...]) -> None:
    """`kareus train`, which dies while it writes its second checkpoint."""
    whole = weights._save

    def save_and_die(tensors: dict[str, torch.Tensor], path: Path) -> None:
        whole(tensors, path)
        if "iteration-00000004" in str(path):
            path.write_bytes(path.read_bytes()[:-100])
            os.kill(os.getpid(), signal.SIGKILL)

    weights._save = save_and_die
    here(*arguments)


def test_a_kill_amid_writing_leaves_the_checkpoint_before(alone: Path, tmp_path: Path) -> None:
    plan, rate = alone / "plan/fastest.json", ("--learning-rate", 0.001, "--final-rate", 0.001)
    options = (*rate, "--checkpoint-every", 2, "--output", tmp_path)
    killed = fork(train_until_killed, (plan, "--iterations", 50, *options))
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert list((tmp_path / "checkpoints/iteration-00000004").glob("rank*")) == []
    assert here(plan, "--iterations", 5, *options) == 0
    assert here(plan, "--iterations", 5, *rate, "--output", tmp_path / "whole") == 0
    assert losses(tmp_path) == losses(tmp_path / "whole")
    assert weights_of(tmp_path, 5) == weights_of(tmp_path / "whole", 5)
