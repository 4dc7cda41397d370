"""Weights from Hugging Face, against the implementation that they were made with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.builders import read_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kareus.errors import ArtifactError
from kareus.model.block import Block
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.ends import Embedding, Head
from kareus.model.layers import rotary_table
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.shards import shard_of
from kareus.model.weight_files import INDEX, SINGLE
from kareus.model.weights import load_weights, save_index, save_weights

TOKENS = 24
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "attn_implementation": "eager",
}
GPT_SIZES = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 40,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "attn_implementation": "eager",
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=SCALED, tie_word_embeddings=True))


def qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=False))


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True))


def gpt2() -> PreTrainedModel:
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**GPT_SIZES, n_inner=48, n_positions=30, **dropout))


def mpt() -> PreTrainedModel:
    return MptForCausalLM(MptConfig(d_model=32, n_layers=2, n_heads=4, vocab_size=40, max_seq_len=30))


class Whole(nn.Module):
    """All of a model on one GPU, or its first or last part."""

    def __init__(self, model: Model, layers: int, *, first: bool = True, last: bool = True) -> None:
        super().__init__()
        alone = Parallelism(
            dp=1, pp=1, tp=1, cp=1, layers_per_stage=(layers,), sharding=Sharding.NONE, sequence_parallel=False
        )
        shard = shard_of(model, alone, TOKENS)
        self.embedding = Embedding(model, shard, Mesh(), torch.float32) if first else None
        self.blocks = nn.ModuleList(Block(model, shard, Mesh(), torch.float32) for _ in range(layers))
        self.head = Head(model, shard, Mesh(), torch.float32) if last else None
        self.table = rotary_table(model, TOKENS, None)


@pytest.fixture(params=[llama, qwen2, qwen3, gpt2, mpt], ids=lambda make: make.__name__)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    make: Callable[[], PreTrainedModel] = request.param
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = make().eval()
        for parameter in theirs.parameters():
            parameter.data = torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 1.0)
    theirs.save_pretrained(tmp_path / "theirs")
    return theirs, tmp_path / "theirs"


def test_logits_equal_those_of_hugging_face(checkpoint: tuple[PreTrainedModel, Path]) -> None:
    theirs, folder = checkpoint
    model = read_model(folder)
    ours = Whole(model, model.num_layers)
    load_weights(ours, model, folder, first_layer=0)
    ids = torch.randint(40, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden = ours.embedding(ids)
        for block in ours.blocks:
            hidden = block(hidden, ours.table)
        logits = ours.head.logits(hidden)
        expected = theirs(ids).logits
    assert logits.std() > 0.5, "the weights make a difference"
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_what_is_saved_is_what_was_loaded(checkpoint: tuple[PreTrainedModel, Path], tmp_path: Path) -> None:
    _, folder = checkpoint
    model = read_model(folder)
    ours = tmp_path / "ours"
    ours.mkdir()
    files = ["0.safetensors", "1.safetensors"]
    for number, (first, last) in enumerate(((True, False), (False, True))):
        stage = Whole(model, 1, first=first, last=last)
        load_weights(stage, model, folder, first_layer=number)
        save_weights(stage, model, ours / files[number], first_layer=number)
    save_index(ours, files)
    expected = load_file(folder / SINGLE)
    saved = load_file(ours / "0.safetensors") | load_file(ours / "1.safetensors")
    assert saved.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(saved[name], tensor), name
    again = Whole(model, model.num_layers)
    load_weights(again, model, ours, first_layer=0)  # by the index of both files


def spoil_shape(folder: Path) -> None:
    weights = load_file(folder / SINGLE)
    weights["model.norm.weight"] = torch.zeros(3)
    save_file(weights, folder / SINGLE)


def spoil_names(folder: Path) -> None:
    weights = load_file(folder / SINGLE)
    del weights["model.norm.weight"]
    save_file(weights, folder / SINGLE)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_shape, r"model.norm.weight has the shape \(3,\), the model \(32,\)"),
        (spoil_names, "has no weight 'model.norm.weight'"),
        (lambda folder: (folder / SINGLE).write_bytes(b"no"), "not a safetensors file"),
        (lambda folder: (folder / SINGLE).unlink(), "no such file"),
        (lambda folder: (folder / INDEX).write_text("[]"), "has no 'weight_map'"),
        (lambda folder: (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "../x"}})), "no such file"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(
    spoil: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    qwen3().save_pretrained(tmp_path)
    model = read_model(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ArtifactError, match=message) as refusal:
        load_weights(Whole(model, 2), model, tmp_path, first_layer=0)
    assert "\n" not in str(refusal.value)
