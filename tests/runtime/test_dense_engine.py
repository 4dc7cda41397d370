"""Loss and every gradient of dense architectures are those of transformers' own models, in fp32."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers.builders import read_model, small_model
from helpers.hugging_face import save_gradients
from helpers.numerics import Case, Reference, case, microbatches
from helpers.trainings import tiny_workload
from helpers.worlds import spawn
from runtime.test_pipeline_numerics import check_cases
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from kareus.errors import EngineError
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.features import QkNormScope
from kareus.model.published import published, whole_weight
from kareus.model.shards import shard_of
from kareus.model.trainable import untrained
from kareus.model.weights import load_weights, pieces
from kareus.partition.extract import extract
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.engine_checks import check_runs, check_trains
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import StageModel

LAYERS, BATCH, TOKENS = 2, 3, 16
SIZES = {
    "vocab_size": 56,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
GPTJ = {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 32, "rotary_dim": 4, "vocab_size": 56}
WIDE = {"num_key_value_heads": 4}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("arcee", {"mlp_bias": True}),
    ("cohere", {"logit_scale": 0.25}),
    ("cwm", {"sliding_window": TOKENS}),
    ("ernie4_5", {"use_bias": True}),
    ("falcon", {"ffn_hidden_size": 48}),
    ("falcon", {"ffn_hidden_size": 48, "parallel_attn": False, "bias": True}),
    ("gemma", {}),
    ("glm", {}),
    ("glm4", {}),
    ("gpt_neox", {"rotary_pct": 0.5}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("gptj", GPTJ),
    (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
            "mlp_bias": True,
            "attention_bias": True,
        },
    ),
    ("helium", {}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}}),
    ("llama", {"hidden_act": "gelu", "attention_bias": True, "mlp_bias": True}),
    ("mistral", {"sliding_window": TOKENS}),
    ("nemotron", {}),
    ("olmo", {}),
    ("olmo2", {}),
    ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}),
    ("phi", WIDE),
    ("phi3", {}),
    ("seed_oss", {"attention_dropout": 0.0, "residual_dropout": 0.0}),
    ("stablelm", {"use_qkv_bias": True}),
    ("stablelm", {"use_parallel_residual": True}),
    ("starcoder2", {"sliding_window": None}),
]
TOLERANCE = 1e-5
PADDING = 0
"""A token that no sequence has, whose row transformers does not train."""
HALVED = MicrobatchSchedule(Schedule(Execution.NANOBATCHING), Schedule(Execution.NANOBATCHING))


def saved(kind: str, changes: dict[str, Any], folder: Path, padding: int | None = PADDING) -> torch.nn.Module:
    """A checkpoint of random weights of transformers' own model of a type; norms and biases show mistakes, too."""
    transformers.logging.set_verbosity_error()
    sizes = changes if "n_embd" in changes else {k: v for k, v in SIZES.items() if kind != "falcon" or k != "head_dim"}
    config = CONFIG_MAPPING[kind](**(sizes | changes), bos_token_id=1, eos_token_id=2, pad_token_id=padding)
    config._attn_implementation = "eager"
    theirs = AutoModelForCausalLM.from_config(config).float()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in theirs.named_parameters():
        spread = 0.2 if parameter.dim() > 1 else 0.4
        drawn = spread * torch.randn(parameter.shape, generator=generator)
        parameter.data = drawn + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
    theirs.save_pretrained(folder)
    return theirs  # type: ignore[no-any-return]


def gradients_of_theirs(theirs: torch.nn.Module, ids: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = theirs.train()(input_ids=ids, labels=labels, shift_labels=labels).loss
    loss.backward()
    saved_as = {"lm_head.weight": "embed_out.weight"} if theirs.config.model_type == "gpt_neox" else {}
    own = {saved_as.get(name, name): p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    return loss.detach(), own


def engine(model: Model, folder: Path, recomputation: Recomputation) -> StageModel:
    workload = tiny_workload(model=model, sequence_length=TOKENS)
    shape = StageShape(layers=LAYERS, first=True, last=True)
    shard = shard_of(model, workload.parallelism, TOKENS)
    graph = extract(model, workload.parallelism, 2, TOKENS)[Batch.NANOBATCH]
    stage = StageModel(model, shard, Mesh(), shape, torch.float32, recomputation=recomputation, graph=graph)
    load_weights(stage, model, folder, 0)
    return stage


def departure(stage: StageModel, model: Model, theirs: dict[str, Tensor]) -> dict[str, float]:
    """Largest departure of each gradient of the engine, over the largest value of transformers'."""
    buffers, found = dict(stage.named_buffers()), {}
    for name, parameter in stage.named_parameters():
        parts = [
            whole_weight(place := published(model, p.name), p.shape, theirs[place.name]) for p in pieces(model, name, 0)
        ]
        expected = torch.cat([part.reshape(-1) for part in parts])
        owner, _, own = name.rpartition(".")
        gradient = buffers[f"{owner}.{own}_gradient"].reshape(-1)
        assert gradient.shape == parameter.reshape(-1).shape
        found[name] = float((gradient - expected).abs().max() / expected.abs().max())
    return found


@pytest.mark.parametrize(
    ("kind", "changes"), CASES, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_the_engine_computes_what_transformers_does(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = saved(kind, changes, tmp_path)
    model = read_model(tmp_path)
    assert untrained(model, TOKENS) == ()
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(PADDING + 1, 56, (2, BATCH, TOKENS), generator=generator)
    expected, gradients = gradients_of_theirs(theirs, ids, labels)
    for recomputation, schedule in zip(Recomputation, [MicrobatchSchedule(), HALVED] * 2, strict=True):
        stage = engine(model, tmp_path, recomputation)
        loss = stage(ids, labels, schedule)
        loss.backward()
        assert float((loss.detach() - expected).abs()) <= TOLERANCE * float(expected)
        worst = departure(stage, model, gradients)
        assert max(worst.values()) <= TOLERANCE, {name: value for name, value in worst.items() if value > TOLERANCE}


@pytest.mark.parametrize(
    ("kind", "tokens", "features"),
    [
        ("mistral", 4096, ()),
        ("mistral", 4097, ("window_tokens=4096",)),
        ("gemma2", 512, ("attention_softcap=50", "logit_softcap=30")),
        ("gemma3_text", 512, ("window_rotary_base=10000",)),
        ("smollm3", 512, ("unrotated_layers",)),
        ("bloom", 512, ("embedding_norm=True",)),
    ],
)
def test_what_the_engine_lacks_is_named(kind: str, tokens: int, features: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    model = read_model(tmp_path)
    assert untrained(model, tokens) == features
    if not features:
        check_trains(model, tokens, "cpu")
        return
    with pytest.raises(EngineError, match=re.escape(f"the engine does not train {', '.join(features)}; it is planned")):
        check_trains(model, tokens, "cpu")


def test_norms_of_all_heads_are_not_trained_on_parts_of_them() -> None:
    model = small_model(qk_norm=True, qk_norm_scope=QkNormScope.TOKEN)
    check_runs(tiny_workload(model=model))
    with pytest.raises(EngineError, match=r"model.qk_norm_scope=token\) would have to be summed over the GPUs"):
        check_runs(tiny_workload(tp=2, model=model))


LAYOUTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("glm4", {}, {"tp": 2}),
    ("glm4", {}, {"tp": 2, "sequence_parallel": True, "recomputation": Recomputation.NONE}),
    ("glm4", {}, {"tp": 2, "recomputation": Recomputation.FULL}),
    ("granite", {"residual_multiplier": 0.3, "mlp_bias": True}, {"tp": 2, "sequence_parallel": True}),
    ("phi", WIDE, {"tp": 2, "recomputation": Recomputation.FULL}),
    ("phi", WIDE, {"tp": 2, "sequence_parallel": True, "recomputation": Recomputation.SELECTIVE}),
    ("starcoder2", {"sliding_window": None}, {"cp": 2, "recomputation": Recomputation.NONE}),
    ("olmo2", {}, {"pp": 2}),
    ("nemotron", {}, {"dp": 2, "recomputation": Recomputation.FULL}),
]


def test_two_ranks_compute_what_dense_architectures_do(tmp_path: Path) -> None:
    cases = [prepared(kind, changes, layout, tmp_path / f"{n}") for n, (kind, changes, layout) in enumerate(LAYOUTS)]
    spawn(2, check_cases, tmp_path, cases)


def prepared(kind: str, changes: dict[str, Any], layout: dict[str, Any], folder: Path) -> tuple[Case, Reference]:
    """A layout, and what transformers computes of the same batch."""
    saved(kind, changes, folder, None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))  # not that of the class
    model = dataclasses.replace(read_model(folder), name=kind)
    of = case(model=model, sequence_length=TOKENS, **layout)
    gradients = folder.with_suffix(".safetensors")
    replicas = range(of.workload.parallelism.dp)
    everything = [one for replica in replicas for one in microbatches(of.workload, replica, 0, 1)]
    save_gradients(folder, everything, torch.float32, gradients)
    return of, Reference(folder, gradients)
