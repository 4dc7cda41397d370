"""Types of Hugging Face models with experts, as `kareus.workload.architectures` has the dense ones.

Sizes of experts have other names in each type. Blocks without experts are the first ones, all but every so manieth, or
those of a list. DeepSeek's models, and Moonshot's which follow them, have latent attention.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kareus.errors import ConfigError
from kareus.model.config import ActivationKind
from kareus.model.experts import Experts, LatentAttention, RouterScore
from kareus.model.features import NormPlacement, QkNormScope
from kareus.workload.architectures import (
    QWEN_WINDOW,
    Architecture,
    Config,
    Rule,
    all_but_every,
    every_block,
    flag,
    layers_of,
    over,
    past,
    real,
    unrotated,
)
from kareus.workload.huggingface_values import boolean, integer, listed, number

Dense = Callable[[Config], tuple[int, ...]]
"""Gives the blocks without experts."""
EXPERTS = "experts"
"""Field of a model that these types have."""


def experts_of(
    count: str,
    width: str,
    *,
    per_token: str = "num_experts_per_tok",
    dense: Dense = lambda config: (),
    shared: Rule = lambda config: 0,
    score: RouterScore = RouterScore.SOFTMAX,
    later: str | None = None,
    **others: Any,
) -> Rule:
    """Return a rule that gives a model's experts.

    Args:
        count: key of the number of experts.
        width: key of the width of one.
        per_token: key of the number that a token is sent to.
        dense: the blocks without experts.
        shared: width of what all tokens pass.
        score: of the router.
        later: key that later files have in the place of `count`.
        **others: further fields of the experts, each a value or a rule.
    """

    def rule(config: Config) -> Experts:
        further = {name: value(config) if callable(value) else value for name, value in others.items()}
        return Experts(
            count=integer(config, later if later is not None and later in config else count),
            per_token=integer(config, per_token),
            width=integer(config, width),
            shared_width=shared(config),
            dense_layers=dense(config),
            score=score,
            **further,
        )

    return rule


def dense_width(dense: Dense, of_dense: str, of_experts: str) -> Rule:
    """Return a rule that gives the width of blocks without experts; where there are none, that of an expert."""
    return lambda config: integer(config, of_dense) if dense(config) else integer(config, of_experts)


def _first(config: Config) -> tuple[int, ...]:
    """DeepSeek: so many blocks at the beginning."""
    count = _whole(config, "first_k_dense_replace")
    return tuple(range(min(count, layers_of(config))))


def _between(config: Config) -> tuple[int, ...]:
    """Qwen: blocks of a list, and all but the last of each period."""
    period = max(_whole(config, "decoder_sparse_step"), 1)
    named = listed(config, "mlp_only_layers")
    return tuple(layer for layer in every_block(config) if layer in named or (layer + 1) % period)


def _interleaved(config: Config) -> tuple[int, ...]:
    """Llama 4: blocks that are not in a list, or all but the last of each period."""
    named = config.get("moe_layers")
    if named is None:
        return tuple(all_but_every(1, "interleave_moe_layer_step")(config))
    return tuple(layer for layer in every_block(config) if layer not in listed(config, "moe_layers"))


def _shared(config: Config) -> int:
    """DeepSeek: as wide as so many experts."""
    return _whole(config, "n_shared_experts") * integer(config, "moe_intermediate_size")


def _whole(config: Config, key: str) -> int:
    value = config.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise ConfigError(f"{key}={value!r}: expected a whole number, 0 or more.")
    return value or 0


def _balanced(config: Config) -> float:
    """What a balancing loss is multiplied by; 0 where there is none."""
    key = "router_aux_loss_coef"
    return number(config, key) if config.get(key) else 0.0


def _ranked(key: str) -> Rule:
    """Groups of a router, where it has more than one."""
    return lambda config: integer(config, key) if config.get(key) is not None else 1


def _latent(config: Config) -> LatentAttention:
    rank = config.get("q_lora_rank")
    return LatentAttention(
        query_rank=None if rank is None else integer(config, "q_lora_rank"),
        key_value_rank=integer(config, "kv_lora_rank"),
        rotary_dim=integer(config, "qk_rope_head_dim"),
        value_dim=integer(config, "v_head_dim"),
    )


def _chunked_layers(config: Config) -> tuple[int, ...] | None:
    """Llama 4: only blocks that rotate have chunks."""
    still = set(unrotated(config))
    return tuple(layer for layer in every_block(config) if layer not in still) if still else None


_BALANCED: Mapping[str, Any] = {"balance_loss": _balanced}
_NORMALISED: Mapping[str, Any] = {"normalised": flag("norm_topk_prob"), **_BALANCED}
_ROUTED: Mapping[str, Any] = {"norm_topk_prob": False, "router_aux_loss_coef": 0.001}
_GROUPS: Mapping[str, Any] = {"groups": _ranked("n_group"), "groups_per_token": _ranked("topk_group")}


def _deepseek(score: RouterScore, **defaults: Any) -> Architecture:
    """Return the row of a type with DeepSeek's block."""
    return Architecture(
        unused=("head_dim", "intermediate_size", "num_key_value_heads"),
        defaults={
            "attention_bias": False,
            "first_k_dense_replace": 0,
            "moe_layer_freq": 1,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "v_head_dim": 128,
            **defaults,
        },
        model={
            "latent_attention": _latent,
            "head_dim": lambda config: integer(config, "qk_nope_head_dim") + integer(config, "qk_rope_head_dim"),
            "num_key_value_heads": lambda config: integer(config, "num_attention_heads"),
            "qkv_bias": flag("attention_bias"),
            "projection_bias": flag("attention_bias"),
            "intermediate_size": dense_width(_first, "intermediate_size", "moe_intermediate_size"),
            EXPERTS: experts_of(
                "n_routed_experts", "moe_intermediate_size", dense=_first, shared=_shared, score=score, **_GROUPS
            ),
        },
        fixed={"moe_layer_freq": (1,), "mlp_bias": (False,)},
    )


_BIASES: Mapping[str, Any] = {"qkv_bias": flag("attention_bias"), "projection_bias": flag("attention_bias")}
_DEEPSEEK_V3 = _deepseek(
    RouterScore.SIGMOID,
    first_k_dense_replace=3,
    moe_intermediate_size=2048,
    n_group=8,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    topk_group=4,
)

WITH_EXPERTS: Mapping[str, Architecture] = {
    "mixtral": Architecture(
        defaults={
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5,
            "router_aux_loss_coef": 0.001,
        },
        model={EXPERTS: experts_of("num_local_experts", "intermediate_size", **_BALANCED)},
        window=every_block,
    ),
    "qwen2_moe": Architecture(
        unused=("intermediate_size",),
        defaults={
            **QWEN_WINDOW,
            **_ROUTED,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 1408,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "qkv_bias": True,
            "shared_expert_intermediate_size": 5632,
        },
        model={
            "qkv_bias": flag("qkv_bias"),
            "intermediate_size": dense_width(_between, "intermediate_size", "moe_intermediate_size"),
            EXPERTS: experts_of(
                "num_experts",
                "moe_intermediate_size",
                dense=_between,
                shared=lambda config: integer(config, "shared_expert_intermediate_size"),
                shared_gate=True,
                **_NORMALISED,
            ),
        },
        window=past("max_window_layers"),
    ),
    "qwen3_moe": Architecture(
        unused=("intermediate_size",),
        defaults={
            **_ROUTED,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "use_sliding_window": False,
        },
        model={
            "qk_norm": True,
            **_BIASES,
            "intermediate_size": dense_width(_between, "intermediate_size", "moe_intermediate_size"),
            EXPERTS: experts_of(
                "num_experts", "moe_intermediate_size", dense=_between, later="num_local_experts", **_NORMALISED
            ),
        },
        window=every_block,
    ),
    "olmoe": Architecture(
        defaults={
            **_ROUTED,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "rms_norm_eps": 1e-5,
            "router_aux_loss_coef": 0.01,
        },
        model={
            "qk_norm": True,
            "qk_norm_scope": QkNormScope.TOKEN,
            **_BIASES,
            EXPERTS: experts_of("num_experts", "intermediate_size", **_NORMALISED),
        },
        fixed={"clip_qkv": ()},
    ),
    "granitemoe": Architecture(
        defaults={
            "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "residual_multiplier": 1.0,
            "router_aux_loss_coef": 0.001,
        },
        model={
            **_BIASES,
            "attention_scale": real("attention_multiplier"),
            "embedding_scale": real("embedding_multiplier"),
            "logit_scale": over("logits_scaling"),
            "residual_scale": real("residual_multiplier"),
            EXPERTS: experts_of("num_local_experts", "intermediate_size", **_BALANCED),
        },
    ),
    "gpt_oss": Architecture(
        defaults={
            "attention_bias": True,
            "head_dim": 64,
            "num_experts_per_tok": 4,
            "num_key_value_heads": 8,
            "num_local_experts": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "sliding_window": 128,
        },
        model={
            **_BIASES,
            "attention_sinks": True,
            EXPERTS: experts_of("num_local_experts", "intermediate_size", biases=True),
        },
        window=all_but_every(2, ""),
    ),
    "deepseek_v2": _deepseek(
        RouterScore.SOFTMAX,
        moe_intermediate_size=1407,
        n_routed_experts=64,
        n_shared_experts=2,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": Architecture(
        unused=("intermediate_size",),
        defaults={
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-5,
            "topk_group": 1,
            "use_qk_norm": False,
        },
        model={
            "qk_norm": flag("use_qk_norm"),
            "qkv_bias": flag("attention_bias"),
            "intermediate_size": dense_width(_first, "intermediate_size", "moe_intermediate_size"),
            EXPERTS: experts_of(
                "n_routed_experts",
                "moe_intermediate_size",
                dense=_first,
                shared=_shared,
                score=RouterScore.SIGMOID,
                **_GROUPS,
            ),
        },
    ),
    "llama4_text": Architecture(
        unused=("intermediate_size_mlp",),
        defaults={
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "attn_scale": 0.1,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "head_dim": 128,
            "hidden_size": 5120,
            "interleave_moe_layer_step": 1,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "no_rope_layer_interval": 4,
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "use_qk_norm": True,
            "vocab_size": 202048,
        },
        model={
            "qk_norm": flag("use_qk_norm"),
            "qk_norm_scope": lambda config: (
                QkNormScope.UNWEIGHTED if boolean(config, "use_qk_norm") else QkNormScope.HEAD
            ),
            **_BIASES,
            "unrotated_layers": unrotated,
            "window_tokens": lambda config: _whole(config, "attention_chunk_size") or None,
            "windowed_layers": _chunked_layers,
            "chunked_windows": lambda config: bool(_whole(config, "attention_chunk_size")),
            "intermediate_size": dense_width(_interleaved, "intermediate_size_mlp", "intermediate_size"),
            EXPERTS: experts_of(
                "num_local_experts",
                "intermediate_size",
                dense=_interleaved,
                shared=lambda config: integer(config, "intermediate_size"),
                score=RouterScore.SIGMOID,
            ),
        },
    ),
    # Without a class in transformers; values of the code that the model brings along.
    "grok-1": Architecture(
        keys={"activation": None},
        defaults={
            "attn_output_multiplier": 1.0,
            "embedding_multiplier_scale": 1.0,
            "max_attn_value": 30.0,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "output_multiplier_scale": 1.0,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
        model={
            "activation": ActivationKind.GEGLU,
            "norm_placement": NormPlacement.AROUND,
            "attention_softcap": real("max_attn_value"),
            "attention_scale": real("attn_output_multiplier"),
            "embedding_scale": real("embedding_multiplier_scale"),
            "logit_scale": real("output_multiplier_scale"),
            EXPERTS: experts_of("num_experts", "intermediate_size"),
        },
    ),
}
"""By `model_type`."""
