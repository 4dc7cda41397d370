"""Trained weights as a checkpoint that transformers reads, which replaces no other by accident."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.trainings import here, tiny_workload, train_in_ranks, weights_of
from safetensors.torch import load
from transformers import AutoModelForCausalLM

from kareus.errors import ConfigError
from kareus.training.exporting import check_exportable


def test_exported_weights_replace_others_and_load_in_transformers(two_stages: Path, tmp_path: Path) -> None:
    plan, exported = two_stages / "plan/fastest.json", tmp_path / "exported"
    exported.mkdir()
    for name in ("model.safetensors.index.json", "model-00001-of-00003.safetensors", "config.json"):
        (exported / name).write_text("{}")  # an export of three stages, to be replaced whole
    train_in_ranks(2, plan, "--iterations", 2, "--output", tmp_path / "run", "--export", exported, "--force")
    index = json.loads((exported / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    first, last = (load(rank) for rank in weights_of(tmp_path / "run", 2).values())
    theirs = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    assert torch.equal(theirs.model.embed_tokens.weight, first["weight/model.embed_tokens.weight@0,0"])
    assert torch.equal(theirs.lm_head.weight, last["weight/lm_head.weight@0,0"])
    down = last["weight/model.layers.1.mlp.down_proj.weight@0,0"]
    assert torch.equal(theirs.model.layers[1].mlp.down_proj.weight, down)
    assert (exported / "model-00001-of-00002.safetensors").stat().st_mode == (exported / "config.json").stat().st_mode
    text = theirs.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert text.shape == (1, 5)


def test_a_finished_training_is_exported_again_only_by_force(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, exported = alone / "plan/fastest.json", tmp_path / "exported"

    def train_again(name: str, *options: object) -> int:
        """In a copy, since a folder stays locked until this process ends."""
        output = shutil.copytree(tmp_path / "first", tmp_path / name)
        return here(plan, "--iterations", 1, "--output", output, "--export", exported, *options)

    assert here(plan, "--iterations", 1, "--output", tmp_path / "first") == 0
    assert train_again("finished") == 0
    (whole,) = exported.glob("*.safetensors")
    expected = whole.read_bytes()
    whole.write_bytes(expected[:9])
    assert train_again("refused") == 2
    assert f"--export {exported}: has files of a checkpoint" in capsys.readouterr().err
    assert train_again("forced", "--force") == 0
    assert whole.read_bytes() == expected


def test_weights_are_not_exported_beside_a_preferred_checkpoint(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"another")
    assert here(alone / "plan/fastest.json", "--iterations", 1, "--output", tmp_path / "run", "--export", tmp_path) == 2
    assert "has a checkpoint (model.safetensors), which transformers would read" in capsys.readouterr().err
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "model-00001-of-00003.safetensors", "config.json"])
def test_an_export_replaces_other_checkpoints_only_by_force(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("another")
    model = tiny_workload().model
    with pytest.raises(ConfigError) as refused:
        check_exportable(model, tmp_path)
    assert str(refused.value) == (
        f"--export {tmp_path}: has files of a checkpoint ({name}); give another folder, or --force to replace them."
    )
    check_exportable(model, tmp_path, replace=True)


def test_an_export_never_replaces_the_first_weights(tmp_path: Path) -> None:
    weights, linked = tmp_path / "weights", tmp_path / "linked"
    weights.mkdir()
    linked.symlink_to(weights)
    for export in (weights, linked, weights / ".." / "weights"):
        with pytest.raises(ConfigError, match="is the folder of --weights; give another folder"):
            check_exportable(tiny_workload().model, export, weights, replace=True)
