"""Files that a training reads, checked before its ranks are started."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from kareus.errors import KareusError
from kareus.training.settings import LearningRateSchedule, OptimizerSettings, TrainingSettings
from kareus.training.stage import check_inputs


def settings(folder: Path, **changes: object) -> TrainingSettings:
    whole = TrainingSettings(
        iterations=1,
        data="synthetic",
        tokenizer="bytes",
        output=folder / "run",
        weights=None,
        seed=None,
        checkpoint_every=0,
        keep=2,
        export=None,
        optimizer=OptimizerSettings(),
        learning_rate=LearningRateSchedule(peak=1e-3, final=1e-4, warmup_iterations=0, decay_iterations=1),
    )
    return dataclasses.replace(whole, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": "none.bin"}, r"none\.bin\.json: cannot be read"),
        ({"data": "none"}, "none: no such file; name text files"),
        ({"data": ".", "tokenizer": "none.json"}, r"tokenizer=none\.json: no such file"),
        ({"weights": Path("none")}, r"none/model\.safetensors: no such file"),
    ],
)
def test_a_missing_file_is_refused(
    changes: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("some text")
    with pytest.raises(KareusError, match=said):
        check_inputs(settings(tmp_path, **changes))


def test_a_training_that_goes_on_needs_no_first_weights(tmp_path: Path) -> None:
    (tmp_path / "run/checkpoints/iteration-00000001").mkdir(parents=True)
    check_inputs(settings(tmp_path, weights=tmp_path / "gone"))


def test_files_are_checked_without_pytorch() -> None:
    line = "import sys, kareus.training.stage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
