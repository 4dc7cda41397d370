"""Dense architectures of Hugging Face: what is read has the parameters and FLOPs of transformers' own models."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers.builders import config_json, read_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig

from kareus.model.config import ActivationKind
from kareus.model.features import AngleScaling, AngleStretch, Branches, NormPlacement, QkNormScope
from kareus.model.parameters import total_parameters
from kareus.workload.architectures import ARCHITECTURES
from kareus.workload.huggingface import read_architecture
from kareus.workload.model_flops import forward_flops_per_sequence

FROM_CODE_OF_THEIR_OWN = (
    "baichuan",
    "chatglm",
    "exaone",
    "internlm",
    "internlm2",
    "internlm3",
    "minicpm",
    "orion",
    "qwen",
    "Yi",
)
"""Types that transformers has no class for."""
NEEDED: dict[str, dict[str, Any]] = {  # what a class leaves null and cannot do without
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_v1_dense": {"head_dim": 128},
    "ministral": {"head_dim": 128},
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4, "head_dim": 32, "tie_word_embeddings": True}),
    ("qwen3", {"attention_bias": True}),
    ("cohere", {"use_qk_norm": True, "num_key_value_heads": 8}),
    ("ernie4_5", {"use_bias": True}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 64, "hidden_size": 4096}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 71, "num_ln_in_parallel_attn": 1}),
    ("falcon", {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}),
    ("glm", {"attention_bias": False}),
    ("gpt_bigcode", {"multi_query": False}),
    ("gpt_neox", {"attention_bias": False, "use_parallel_residual": False}),
    ("granite", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 8}),
    ("nemotron", {"num_key_value_heads": 8, "attention_bias": True, "mlp_bias": True}),
    ("opt", {"enable_bias": False}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}),
    ("seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "num_key_value_heads": 8}),
    ("stablelm", {"use_parallel_residual": True}),
    ("starcoder2", {"use_bias": False, "sliding_window": 100}),
]
LAYERS, TOKENS = 7, 256
"""Blocks of the models here, more than any period of windows; and a sequence that is longer than some windows."""


def of_type(kind: str, changes: dict[str, Any], folder: Path) -> tuple[PretrainedConfig, Path]:
    """The configuration of a type with few blocks, as transformers has it and as a file."""
    changes = NEEDED.get(kind, {}) | changes
    own = {"num_layers": LAYERS, "attention_types": [[["global", "local"], 3], [["global"], 1]]}
    config = CONFIG_MAPPING[kind](**(own if kind == "gpt_neo" else {_layers_key(kind): LAYERS}) | changes)
    assert config.num_hidden_layers == LAYERS
    return config, config_json(folder, json.loads(config.to_json_string(use_diff=False)) | {"architectures": None})


def _layers_key(kind: str) -> str:
    return str(CONFIG_MAPPING[kind].attribute_map.get("num_hidden_layers", "num_hidden_layers"))


def built(config: PretrainedConfig) -> torch.nn.Module:
    """Transformers' model without memory."""
    transformers.logging.set_verbosity_error()
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, {}) for kind in ARCHITECTURES if kind not in FROM_CODE_OF_THEIR_OWN), *VARIANTS],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_parameters_and_flops_are_those_of_transformers(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config, file = of_type(kind, changes, tmp_path)
    read = read_architecture(file)
    theirs = built(config)
    assert total_parameters(read.model) == sum(parameter.numel() for parameter in theirs.parameters())
    assert forward_flops_per_sequence(read.model, TOKENS) == flops(theirs, config)
    assert not [note for note in read.notes if "not read" in note]


def flops(theirs: torch.nn.Module, config: PretrainedConfig) -> int:
    """FLOPs of a forward of a sequence: of every matrix but those that are looked up in, and of pairs that attend."""
    products = [m for m in theirs.modules() if isinstance(m, torch.nn.Linear | transformers.pytorch_utils.Conv1D)]
    values = sum(product.weight.numel() for product in products)
    pairs = [sum(min(token, window) for token in range(1, TOKENS + 1)) - window / 2 for window in windows(config)]
    width = config.num_attention_heads * (getattr(config, "head_dim", None) or head_width(config))
    return int(2 * TOKENS * values + 4 * width * sum(pairs))


def head_width(config: PretrainedConfig) -> int:
    return int(config.hidden_size // config.num_attention_heads)


def windows(config: PretrainedConfig) -> list[int]:
    """Tokens that the last one of a sequence attends to in each block, by what transformers makes of its file."""
    if config.model_type == "gpt_neo":
        return [min(config.window_size, TOKENS) if kind == "local" else TOKENS for kind in config.attention_layers]
    window = getattr(config, "sliding_window", None)
    if not window or (config.model_type in ("qwen2", "qwen3", "smollm3") and not config.use_sliding_window):
        return [TOKENS] * LAYERS
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * LAYERS
    return [min(window, TOKENS) if kind == "sliding_attention" else TOKENS for kind in kinds]


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 100,
}


def test_what_transformers_has_no_class_for_is_a_llama_with_its_own_features(tmp_path: Path) -> None:
    def parameters(kind: str, **changes: Any) -> int:
        return total_parameters(read_model(config_json(tmp_path / kind, LLAMA | {"model_type": kind} | changes)))

    llama = parameters("llama")
    heads = 3 * 64 * 4
    assert parameters("internlm2") == parameters("baichuan") == parameters("Yi") == llama
    assert parameters("internlm", bias=True) == llama + heads + 64 * 4
    assert parameters("minicpm") == llama - 100 * 64  # tied
    assert parameters("orion") == llama + 9 * 64  # offsets of norms
    assert parameters("qwen", intermediate_size=256) == llama + heads
    exaone = {"num_layers": 4, "num_hidden_layers": None}
    assert parameters("exaone", **exaone) == llama


CHATGLM3_6B = {
    "architectures": ["ChatGLMModel"], "model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696,
    "num_layers": 28, "num_attention_heads": 32, "multi_query_group_num": 2, "padded_vocab_size": 65024,
    "layernorm_epsilon": 1e-5, "rmsnorm": True, "original_rope": True, "seq_length": 8192,
}  # fmt: skip
LLAMAS = 2 * 100 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
"""Parameters of `LLAMA`."""
SEES = {"vision_config": {"hidden_size": 32}, "architectures": ["AForConditionalGeneration"]}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (CHATGLM3_6B, 6_243_584_000),  # as published with the weights
        ({"model_type": "bloom", "n_embed": 64, "n_layer": 4, "num_attention_heads": 4, "vocab_size": 100}, 206_592),
        (LLAMA | SEES | {"model_type": "qwen2_5_vl", "rope_scaling": {"type": "mrope"}}, LLAMAS + 3 * 4 * 64),
        (
            SEES | {"model_type": "a", "text_config": LLAMA | {"model_type": "qwen3_vl_text", "head_dim": 16}},
            LLAMAS + 2 * 4 * 16,
        ),
        (SEES | {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}, 6_738_939_904),
        (LLAMA | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, LLAMAS),
        (LLAMA | {"model_type": "stablelm_epoch", "norm_eps": 1e-5, "rope_pct": 0.25}, LLAMAS + 9 * 64),
        (LLAMA | {"model_type": "internlm3", "head_dim": 16, "bias": True, "qkv_bias": False}, LLAMAS + 4 * 320),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_models_around_models_and_keys_by_other_names_are_read(
    config: dict[str, Any], parameters: int, tmp_path: Path
) -> None:
    read = read_architecture(config_json(tmp_path, config))
    assert total_parameters(read.model) == parameters
    assert not [note for note in read.notes if "not read" in note]


def test_scales_of_minicpm_are_those_of_its_paper(tmp_path: Path) -> None:
    changes = {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}
    model = read_model(config_json(tmp_path, LLAMA | changes))
    assert (model.embedding_scale, model.residual_scale, model.logit_scale) == (12, 0.7, 0.25)


def test_fields_of_a_block_are_read(tmp_path: Path) -> None:
    def read(kind: str, **changes: Any) -> Any:
        return read_model(of_type(kind, changes, tmp_path / kind)[1])

    assert read("gemma").activation is ActivationKind.GEGLU_TANH
    gemma2 = read("gemma2")
    assert (gemma2.attention_softcap, gemma2.logit_softcap, gemma2.norm_placement) == (50, 30, NormPlacement.AROUND)
    assert gemma2.attention_scale is None  # 256^-0.5, that of its heads
    assert (gemma2.window_tokens, gemma2.windowed_layers) == (4096, (0, 2, 4, 6))
    gemma3 = read("gemma3_text")
    assert (gemma3.rotary_base, gemma3.window_rotary_base, gemma3.windowed_layers) == (1e6, 1e4, (0, 1, 2, 3, 4, 6))
    assert (read("olmo2").norm_placement, read("olmo2").qk_norm_scope) == (NormPlacement.AFTER, QkNormScope.TOKEN)
    assert read("phi").branches is Branches.PARALLEL_ONE_NORM
    assert read("gpt_neox").branches is Branches.PARALLEL
    assert (read("phi").rotary_dim, read("gptj").rotary_dim, read("gpt_neox").rotary_dim) == (32, 64, 24)
    assert read("smollm3").unrotated_layers == (3,)
    assert read("cohere2").unrotated_layers == (3,)
    assert (read("granite", logits_scaling=8.0).logit_scale, read("cohere").logit_scale) == (0.125, 0.0625)


WINDOWS: list[tuple[dict[str, Any], int | None, tuple[int, ...] | None]] = [
    ({"model_type": "mistral"}, 4096, None),
    ({"model_type": "mistral", "sliding_window": None}, None, None),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 4}, None, None),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}, 64, (3,)),
    ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0}, None, None),
    (
        {
            "model_type": "qwen3",
            "use_sliding_window": True,
            "sliding_window": 64,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
        64,
        (1, 3),
    ),
]


@pytest.mark.parametrize(("changes", "window", "layers"), WINDOWS)
def test_windows_are_those_of_the_class(
    changes: dict[str, Any], window: int | None, layers: tuple[int, ...] | None, tmp_path: Path
) -> None:
    model = read_model(config_json(tmp_path, LLAMA | changes))
    assert (model.window_tokens, model.windowed_layers) == (window, layers)


@pytest.mark.parametrize(
    ("scaling", "stretch"),
    [
        ({"type": "linear", "factor": 4.0}, AngleStretch.LINEAR),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, AngleStretch.YARN),
        ({"rope_type": "dynamic", "factor": 4.0}, AngleStretch.DYNAMIC),
        ({"type": "su", "factor": 4.0, "short_factor": [1.0], "long_factor": [2.0]}, AngleStretch.LONGROPE),
    ],
)
def test_stretched_angles_cost_nothing(scaling: dict[str, Any], stretch: AngleStretch, tmp_path: Path) -> None:
    model = read_model(config_json(tmp_path, LLAMA | {"rope_scaling": scaling}))
    assert isinstance(model.rotary_scaling, AngleScaling)
    assert (model.rotary_scaling.stretch, model.rotary_scaling.stretch_factor) == (stretch, 4.0)
    plain = dataclasses.replace(model, rotary_scaling=None)
    assert plain == read_model(config_json(tmp_path, LLAMA))


def test_a_window_as_long_as_the_sequence_masks_nothing(tmp_path: Path) -> None:
    windowed = read_model(config_json(tmp_path / "one", LLAMA | {"model_type": "mistral", "sliding_window": 512}))
    whole = dataclasses.replace(windowed, window_tokens=None)
    assert forward_flops_per_sequence(windowed, 512) == forward_flops_per_sequence(whole, 512)
    assert forward_flops_per_sequence(windowed, 1024) < forward_flops_per_sequence(whole, 1024)


def test_keys_that_were_not_read_are_listed(tmp_path: Path) -> None:
    read = read_architecture(config_json(tmp_path, LLAMA | {"full_attn_mod": 1, "dtype": "bfloat16", "zoom": [1]}))
    assert read.notes == ("keys that were not read: full_attn_mod, zoom",)


def test_a_model_with_pictures_is_its_language_model(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6}
    whole = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    read = read_architecture(config_json(tmp_path / "both", whole | {"vision_config": {"hidden_size": 8}}))
    assert read.notes == ("gemma3: its language model alone, of the key text_config",)
    alone = read_model(config_json(tmp_path / "alone", text))
    assert dataclasses.replace(read.model, name=alone.name) == alone
