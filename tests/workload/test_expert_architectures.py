"""Mixtures of experts of Hugging Face: parameters of transformers' own models, and of what their makers published."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from helpers.builders import config_json, read_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from kareus.errors import ConfigError
from kareus.model.experts import RouterScore
from kareus.model.features import QkNormScope
from kareus.model.parameters import ALONE, active_parameters, embedding_parameters, mtp_parameters, total_parameters
from kareus.workload.expert_architectures import WITH_EXPERTS
from kareus.workload.huggingface import read_architecture
from kareus.workload.model_flops import forward_flops_per_sequence

LAYERS, TOKENS = 5, 256
NEEDED: dict[str, dict[str, Any]] = {  # what a class leaves out and files have
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dbrx": {"attn_config": {"kv_n_heads": 4, "rope_theta": 10_000.0}},
    "dots1": {"n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 4},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": [2] * 5, "head_dim": 128},
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("deepseek_v2", {"first_k_dense_replace": 2, "q_lora_rank": None, "attention_bias": True}),
    ("deepseek_v3", {"attention_bias": True, "n_shared_experts": 3}),
    ("ernie4_5_moe", {"moe_layer_interval": 2, "moe_layer_end_index": 3}),
    ("granitemoeshared", {"shared_intermediate_size": 512}),
    ("minicpm3", {"q_lora_rank": None, "v_head_dim": 32, "attention_bias": True}),
    ("minimax_m2", {"num_local_experts": 16}),
    ("phimoe", {"attention_bias": True, "lm_head_bias": True}),
    ("glm4_moe", {"use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 3}),
    ("gpt_oss", {"attention_bias": False}),
    ("llama4_text", {"interleave_moe_layer_step": 2, "use_qk_norm": False}),
    ("llama4_text", {"moe_layers": [0, 3]}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1], "shared_expert_intermediate_size": 512}),
    ("qwen3_moe", {"decoder_sparse_step": 2, "attention_bias": True, "tie_word_embeddings": True}),
]


def of_class(kind: str, changes: dict[str, Any], folder: Path) -> tuple[Any, Path]:
    """The configuration of a type with few blocks, as transformers has it and as a file."""
    config = CONFIG_MAPPING[kind](num_hidden_layers=LAYERS, **NEEDED.get(kind, {}), **changes)
    return config, config_json(folder, json.loads(config.to_json_string(use_diff=False)) | {"architectures": None})


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, {}) for kind in WITH_EXPERTS if kind in CONFIG_MAPPING), *VARIANTS],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_parameters_are_those_of_transformers(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config, file = of_class(kind, changes, tmp_path)
    read = read_architecture(file)
    transformers.logging.set_verbosity_error()
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config)
    assert total_parameters(read.model) == sum(p.numel() for p in theirs.parameters() if p.requires_grad)
    assert not [note for note in read.notes if "not read" in note]
    experts = read.model.experts
    if experts is None:  # latent attention alone
        assert active_parameters(read.model) == total_parameters(read.model)
        return
    # Each expert's weights are a slice of a tensor of three dimensions, or rows of one of two; a token uses some.
    rows = experts.count, experts.count * experts.width
    stacked = [p for name, p in theirs.named_parameters() if ".experts." in name and p.shape[0] in rows]
    unused = sum(p.numel() for p in stacked) * (experts.count - experts.per_token) // experts.count
    assert active_parameters(read.model) == total_parameters(read.model) - unused


class Published(NamedTuple):
    """A model as its maker describes it."""

    config: dict[str, Any]
    """Keys of its `config.json` that sizes follow from."""
    total: str
    active: str | None
    """In billions; as many digits as were published. None: what is published is no number of parameters."""
    tables_of_active: int = 0
    """Tables of embedding and head that do not count as active."""
    tables_of_total: int = 0
    """Likewise of the total."""
    further: bool = False
    """Whether the block that predicts a token after the next counts."""
    beside: int = 0
    """Parameters of an encoder of pictures."""


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "num_nextn_predict_layers": 1, "rope_theta": 10000,
    "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
QWEN3_30B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936, "mlp_only_layers": [], "decoder_sparse_step": 1,
}  # fmt: skip
GPT_OSS_120B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
    "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 201088,
}  # fmt: skip
GLM_45 = {
    "model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
    "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5, "vocab_size": 151552,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
MAVERICK = {
    "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "use_qk_norm": False,
    "attention_chunk_size": 8192, "no_rope_layers": [], "vocab_size": 202048,
}  # fmt: skip
ENCODER = 34 * (4 * 1408**2 + 2 * 1408 * 5632)
"""Blocks of the vision model of Llama 4: the class's 34 of 1,408 values, with MLPs of 5,632 by the files of
both models."""
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "sliding_window": None,
}  # fmt: skip
PUBLISHED = {
    # Jiang et al., "Mixtral of Experts" (2024), and mistral.ai/news/mixtral-8x22b
    "mixtral-8x7b": Published(MIXTRAL, "46.7", "12.9"),
    "mixtral-8x22b": Published(
        MIXTRAL
        | {"hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48}
        | {"vocab_size": 32768},
        "141",
        "39",
    ),
    # Qwen team: model cards on Hugging Face, "Number of Parameters", "Activated"
    "qwen3-30b-a3b": Published(QWEN3_30B, "30.5", "3.3"),
    "qwen3-235b-a22b": Published(
        QWEN3_30B
        | {"hidden_size": 4096, "moe_intermediate_size": 1536, "num_hidden_layers": 94, "num_attention_heads": 64},
        "235",
        "22",
    ),
    "qwen1.5-moe-a2.7b": Published(
        {
            "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936,
        },
        "14.3",
        "2.7",
    ),
    # Muennighoff et al., "OLMoE" (2024)
    "olmoe-1b-7b": Published(
        {
            "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
            "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
            "vocab_size": 50304,
        },
        "6.9",
        "1.3",
    ),
    # IBM: model card of granite-3.0-3b-a800m-base
    "granite-3.0-3b-a800m": Published(
        {
            "model_type": "granitemoe", "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 32,
            "num_attention_heads": 24, "num_key_value_heads": 8, "num_local_experts": 40, "num_experts_per_tok": 8,
            "vocab_size": 49155, "tie_word_embeddings": True,
        },
        "3.3",
        "0.8",
    ),
    # OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025), table 1: active without the embedding
    "gpt-oss-120b": Published(GPT_OSS_120B, "116.83", "5.13", tables_of_active=1),
    "gpt-oss-20b": Published(
        GPT_OSS_120B | {"num_hidden_layers": 24, "num_local_experts": 32}, "20.91", "3.61", tables_of_active=1
    ),
    # DeepSeek-AI: the technical reports of both, of 2024
    "deepseek-v2": Published(
        DEEPSEEK_V3
        | {"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536}
        | {"num_hidden_layers": 60, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6}
        | {"n_group": 8, "topk_group": 3, "first_k_dense_replace": 1, "vocab_size": 102400},
        "236",
        "21",
    ),
    "deepseek-v3": Published(DEEPSEEK_V3, "671", "37"),
    # Moonshot AI: model card of Kimi-K2-Base
    "kimi-k2": Published(
        DEEPSEEK_V3
        | {"model_type": "kimi_k2", "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64}
        | {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "vocab_size": 163840},
        "1000",
        "32",
    ),
    # Zhipu AI, "GLM-4.5" (2025), table 1. Active parameters are those without tables; the
    # total of the larger one is met with the block of multi-token prediction and without tables
    "glm-4.5": Published(GLM_45, "355", "32", tables_of_active=2, tables_of_total=2, further=True),
    "glm-4.5-air": Published(
        GLM_45
        | {"hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 46}
        | {"n_routed_experts": 128, "first_k_dense_replace": 1, "use_qk_norm": False},
        "106",
        "12",
        tables_of_active=2,
    ),
    # Meta: model card of Llama 4
    "llama-4-maverick": Published(MAVERICK, "400", "17", beside=ENCODER),
    "llama-4-scout": Published(
        MAVERICK | {"num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": True}, "109", "17",
        beside=ENCODER,
    ),
    # xAI, github.com/xai-org/grok-1: 314 billion with matrices of blocks alone; "25% of the weights active"
    "grok-1": Published(
        {
            "model_type": "grok-1", "hidden_size": 6144, "intermediate_size": 32768, "num_hidden_layers": 64,
            "num_attention_heads": 48, "num_key_value_heads": 8, "num_experts": 8, "num_experts_per_tok": 2,
            "vocab_size": 131072,
        },
        "314",
        None,
        tables_of_total=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]
    model = read_model(config_json(tmp_path, published.config))
    table = embedding_parameters(model, ALONE)
    total = total_parameters(model) - published.tables_of_total * table
    if published.further:
        total += mtp_parameters(model)
    close(total + published.beside, published.total)
    if published.active is not None:
        close(active_parameters(model) - published.tables_of_active * table, published.active)


def test_what_predicts_further_tokens_is_as_published(tmp_path: Path) -> None:
    """DeepSeek-AI, README of DeepSeek-V3: 685 billion, 671 of the model and 14 that predict, with both tables again."""
    model = read_model(config_json(tmp_path, DEEPSEEK_V3))
    further = mtp_parameters(model) + 2 * embedding_parameters(model, ALONE)
    close(further, "14")
    close(total_parameters(model) + further, "685")


def close(parameters: int, billions: str) -> None:
    """Check that a published number has been rounded, or cut off, from these parameters."""
    unit = (
        10 ** -len(billions.partition(".")[2]) if "." in billions else 10 ** (len(billions) - len(billions.rstrip("0")))
    )
    assert abs(parameters / 1e9 - float(billions)) < unit


def test_flops_are_of_the_matrices_that_a_token_passes(tmp_path: Path) -> None:
    for kind, changes, pairs in (
        ("gpt_oss", {}, 3 * 128 * (2 * TOKENS - 128) + 2 * TOKENS**2),
        ("deepseek_v3", {}, LAYERS * TOKENS**2),
        ("llama4_text", {"attention_chunk_size": 64}, 4 * 4 * 64**2 + TOKENS**2),
    ):
        config, file = of_class(kind, changes, tmp_path / kind)
        model = read_model(file)
        with torch.device("meta"):
            theirs = AutoModelForCausalLM.from_config(config)
        matrices = 0
        for name, parameter in theirs.named_parameters():
            if parameter.ndim == 3:  # of all experts
                matrices += parameter.numel() * config.num_experts_per_tok // parameter.shape[0]
            elif parameter.ndim == 2 and "embed_tokens" not in name and not name.endswith("bias"):
                matrices += parameter.numel()
        heads = config.num_attention_heads
        widths = (192 + 128) * heads if kind == "deepseek_v3" else 2 * config.head_dim * heads
        published = replace(model, mtp_layers=0)  # the class leaves out what predicts further tokens
        assert forward_flops_per_sequence(published, TOKENS) == 2 * TOKENS * matrices + widths * pairs


def test_what_a_router_and_attention_do_is_read(tmp_path: Path) -> None:
    def read(name: str, **changes: Any) -> Any:
        return read_model(config_json(tmp_path / name, PUBLISHED[name].config | changes))

    deepseek = read("deepseek-v3").experts
    assert (deepseek.score, deepseek.groups, deepseek.groups_per_token) == (RouterScore.SIGMOID, 8, 4)
    assert (deepseek.dense_layers, deepseek.shared_width) == ((0, 1, 2), 2048)
    assert read("deepseek-v3").intermediate_size == 18432
    assert read("qwen3-30b-a3b").intermediate_size == 768  # no block has another MLP
    assert read("qwen1.5-moe-a2.7b").experts.shared_gate
    maverick = read("llama-4-maverick")
    assert maverick.experts.dense_layers == tuple(range(0, 48, 2))
    assert maverick.unrotated_layers == tuple(range(3, 48, 4))
    assert (maverick.window_tokens, maverick.chunked_windows, maverick.qk_norm) == (8192, True, False)
    assert set(maverick.windowed_layers or ()) == set(range(48)) - set(maverick.unrotated_layers)
    assert read("llama-4-scout").qk_norm_scope is QkNormScope.UNWEIGHTED
    gpt_oss = read("gpt-oss-120b")
    assert (gpt_oss.window_tokens, gpt_oss.windowed_layers, gpt_oss.attention_sinks) == (
        128,
        tuple(range(0, 36, 2)),
        True,
    )


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    notes = read_architecture(config_json(tmp_path, DEEPSEEK_V3)).notes
    assert notes == ("planned with weights of 16 bits, not as published: fp8",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 129}, "per_token=129: must be at most count (128), the experts there are."),
        ({"num_experts": 0}, "num_experts=0: expected a whole number greater than 0."),
        ({"mlp_only_layers": list(range(48))}, "experts.dense_layers: has all blocks; set experts=null for a dense"),
        ({"mlp_only_layers": 3}, "mlp_only_layers=3: expected a list."),
        ({"decoder_sparse_step": -1}, "decoder_sparse_step=-1: expected a whole number, 0 or more."),
        ({"kv_lora_rank": 512}, "latent attention (kv_lora_rank=512) not supported"),
    ],
)
def test_what_no_model_has_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_model(config_json(tmp_path, QWEN3_30B | change))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
