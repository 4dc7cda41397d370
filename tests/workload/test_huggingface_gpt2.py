"""Configurations of GPT-2 and MPT, which have no rotary embeddings, are read and written like those of Llama."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from helpers.builders import CONFIG, config_json, read_model

from kareus.errors import ConfigError
from kareus.workload.compose import compose
from kareus.workload.huggingface import read_architecture
from kareus.workload.huggingface_export import huggingface_config

GPT2_XL = {  # of openai-community/gpt2-xl, without its dropout
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 1600,
    "n_head": 25,
    "n_layer": 48,
    "n_positions": 1024,
    "resid_pdrop": 0.0,
    "vocab_size": 50257,
}
MPT_7B = {  # of mosaicml/mpt-7b
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True,
        "alibi_bias_max": 8,
        "attn_impl": "torch",
        "attn_pdrop": 0,
        "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False,
        "clip_qkv": None,
        "prefix_lm": False,
        "qk_ln": False,
        "softmax_scale": None,
    },
    "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"},
    "d_model": 4096,
    "emb_pdrop": 0,
    "expansion_ratio": 4,
    "learned_pos_emb": True,
    "logit_scale": None,
    "max_seq_len": 2048,
    "model_type": "mpt",
    "n_heads": 32,
    "n_layers": 32,
    "no_bias": True,
    "norm_type": "low_precision_layernorm",
    "resid_pdrop": 0,
    "vocab_size": 50432,
}


@pytest.mark.parametrize(("option", "config"), [("gpt2-xl", GPT2_XL), ("mpt-7b", MPT_7B)])
def test_gpt2_and_mpt_are_read_as_our_options(option: str, config: dict[str, Any], tmp_path: Path) -> None:
    ours = compose([f"model={option}"], CONFIG)[0].workload.model
    assert dataclasses.replace(read_model(config_json(tmp_path, config)), name=ours.name) == ours
    written = huggingface_config(ours, 1024, "bfloat16")
    assert dataclasses.replace(read_model(config_json(tmp_path / "again", written)), name=ours.name) == ours


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2_XL | {"activation_function": "tanh"}, "activation_function=tanh: not supported; expected gelu_new,"),
        (GPT2_XL | {"scale_attn_weights": False}, "scale_attn_weights=False: changes the architecture"),
        (GPT2_XL | {"n_head": 24}, r"hidden_size=1600: must be a multiple of num_attention_heads \(24\)"),
        (MPT_7B | {"attn_config": {"alibi": False}}, "alibi=False: changes the architecture"),
        (
            MPT_7B | {"attn_config": {"clip_qkv": 8}},
            "clip_qkv=8: changes the architecture and is not supported; expected null",
        ),
        (
            MPT_7B | {"logit_scale": "inv_sqrt_d_model"},
            "logit_scale='inv_sqrt_d_model': changes the architecture and is not supported; expected null",
        ),
        (MPT_7B | {"attn_config": [1]}, r"attn_config=\[1\]: expected keys and values"),
        (MPT_7B | {"no_bias": False}, "no_bias=False: changes the architecture"),
    ],
)
def test_gpt2_and_mpt_of_another_kind_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_model(config_json(tmp_path, config))


def test_dropout_is_left_out_and_said(tmp_path: Path) -> None:
    published = {key: value for key, value in GPT2_XL.items() if key != "resid_pdrop"} | {"attn_pdrop": 0.2}
    read = read_architecture(config_json(tmp_path, published))
    assert read.model == read_model(config_json(tmp_path, GPT2_XL))
    assert read.notes == ("planned and trained without dropout: attn_pdrop=0.2, resid_pdrop=0.1",)


@pytest.mark.parametrize(
    ("option", "changes", "message"),
    [
        ("gpt2-xl", {"biases": False}, "biases=False: with positions=learned no architecture .* expected True"),
        ("gpt2-xl", {"num_key_value_heads": 5}, "num_key_value_heads=5: with positions=learned"),
        ("mpt-7b", {"intermediate_size": 64}, "intermediate_size=64: with positions=alibi .* expected 16384"),
        ("nemotron4-15b", {"norm_bias": None}, "norm=layernorm: with positions=rope no architecture"),
    ],
)
def test_what_transformers_has_not_is_not_exported(option: str, changes: dict[str, Any], message: str) -> None:
    model = dataclasses.replace(compose([f"model={option}"], CONFIG)[0].workload.model, **changes)
    with pytest.raises(ConfigError, match=message):
        huggingface_config(model, 1024, "bfloat16")
