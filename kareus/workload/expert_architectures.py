"""Types of Hugging Face models with experts, as `kareus.workload.architectures` has the dense ones.

Sizes of experts have other names in each type. Blocks without experts are the first ones, all but every so manieth, or
those of a list. DeepSeek's models, and Moonshot's which follow them, have latent attention.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kareus.errors import ConfigError
from kareus.model.config import ActivationKind, NormKind
from kareus.model.experts import Experts, LatentAttention, RouterScore
from kareus.model.features import NormPlacement, QkNormScope
from kareus.workload.architecture_rules import (
    Config,
    Rule,
    all_but_every,
    every_block,
    flag,
    layers_of,
    past,
    real,
    unrotated,
)
from kareus.workload.architectures import (
    ARCHITECTURES,
    ATTENTION_BIASES,
    GRANITE_DEFAULTS,
    GRANITE_SCALES,
    HUNYUAN,
    HUNYUAN_FIXED,
    MINICPM,
    QWEN_WINDOW,
    Architecture,
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
        value_dim=integer(config, "v_head_dim") if config.get("v_head_dim") is not None else _even_head(config),
    )


def _even_head(config: Config) -> int:
    return integer(config, "hidden_size") // integer(config, "num_attention_heads")


def _chunked_layers(config: Config) -> tuple[int, ...] | None:
    """Llama 4: only blocks that rotate have chunks."""
    still = set(unrotated(config))
    return tuple(layer for layer in every_block(config) if layer not in still) if still else None


_BALANCED: Mapping[str, Any] = {"balance_loss": _balanced}
_SCALED: Mapping[str, Any] = {
    "normalised": flag("norm_topk_prob"),
    "share_scale": lambda config: number(config, "routed_scaling_factor"),
}
_NORMALISED: Mapping[str, Any] = {"normalised": flag("norm_topk_prob"), **_BALANCED}
_ROUTED: Mapping[str, Any] = {"norm_topk_prob": False, "router_aux_loss_coef": 0.001}
_GROUPS: Mapping[str, Any] = {"groups": _ranked("n_group"), "groups_per_token": _ranked("topk_group")}


_LATENT: Mapping[str, Any] = {
    "latent_attention": _latent,
    "head_dim": lambda config: integer(config, "qk_nope_head_dim") + integer(config, "qk_rope_head_dim"),
    "num_key_value_heads": lambda config: integer(config, "num_attention_heads"),
    "qkv_bias": flag("attention_bias"),
    "projection_bias": flag("attention_bias"),
}


def _after_dense(**others: Any) -> dict[str, Any]:
    """Return the fields of experts after a number of dense blocks, as DeepSeek names them; `others` as `experts_of`."""
    return {
        "intermediate_size": dense_width(_first, "intermediate_size", "moe_intermediate_size"),
        EXPERTS: experts_of("n_routed_experts", "moe_intermediate_size", dense=_first, shared=_shared, **others),
    }


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
            "norm_topk_prob": score is RouterScore.SIGMOID,
            "routed_scaling_factor": 1.0,
            **defaults,
        },
        model={
            **_LATENT,
            **_after_dense(score=score, **_GROUPS, **_SCALED),
        },
        fixed={"moe_layer_freq": (1,), "mlp_bias": (False,)},
    )


def _granite(shared: Rule) -> Architecture:
    """Return the row of a type with Granite's scales."""
    return Architecture(
        defaults={
            **GRANITE_DEFAULTS,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "router_aux_loss_coef": 0.001,
        },
        model={
            **ATTENTION_BIASES,
            **GRANITE_SCALES,
            EXPERTS: experts_of("num_local_experts", "intermediate_size", shared=shared, **_BALANCED),
        },
    )


def _ernie_dense(config: Config) -> tuple[int, ...]:
    """ERNIE 4.5: blocks before the first, past the last (-1: that of the model), and between those of an interval."""
    first, every = _whole(config, "moe_layer_start_index"), integer(config, "moe_layer_interval")
    said = config.get("moe_layer_end_index")
    last = layers_of(config) - 1 if said in (None, -1) else _whole(config, "moe_layer_end_index")
    return tuple(n for n in every_block(config) if (n + 1) % every or not first <= n <= last)


def _alike(config: Config, key: str) -> int:
    """Return a number that is given once, or for each block and the same in all."""
    value = config.get(key)
    if isinstance(value, list) and value and value.count(value[0]) == len(value):
        value = value[0]
    if type(value) is not int or value < 0:
        raise ConfigError(f"{key}={value!r}: expected a whole number, or a list of one for each block, all the same.")
    return value


def _hunyuan(config: Config) -> Experts:
    width = "moe_intermediate_size" if config.get("moe_intermediate_size") is not None else "intermediate_size"
    shared = _alike(config, "num_shared_expert") * _alike(config, width)
    count, per_token = integer(config, "num_experts"), _alike(config, "moe_topk")
    return Experts(count=count, per_token=per_token, width=_alike(config, width), shared_width=shared)


def _dbrx(config: Config) -> Experts:
    inner = _inner(config, "ffn_config", DBRX_EXPERTS)
    names = ("moe_num_experts", "moe_top_k", "ffn_hidden_size")
    count, per_token, width = (integer(inner, name) for name in names)
    return Experts(count=count, per_token=per_token, width=width, balance_loss=float(inner.get("moe_loss_weight") or 0))


def _inner(config: Config, key: str, defaults: Mapping[str, Any]) -> Config:
    """Return the keys and values that a key has."""
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}={value!r}: expected keys and values.")
    return {**defaults, **value}


DBRX_EXPERTS: Mapping[str, Any] = {"moe_num_experts": 4, "moe_top_k": 1, "ffn_hidden_size": 3584}
"""Defaults of its class."""
_DEEPSEEK_V3 = _deepseek(
    RouterScore.SIGMOID,
    first_k_dense_replace=3,
    moe_intermediate_size=2048,
    n_group=8,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    routed_scaling_factor=2.5,
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
        unused=("intermediate_size", "max_window_layers"),
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
            **ATTENTION_BIASES,
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
            **ATTENTION_BIASES,
            EXPERTS: experts_of("num_experts", "intermediate_size", **_NORMALISED),
        },
    ),
    "granitemoe": _granite(lambda config: 0),
    "granitemoeshared": _granite(lambda config: _whole(config, "shared_intermediate_size")),
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
            **ATTENTION_BIASES,
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
    "deepseek": Architecture(
        unused=("intermediate_size",),
        defaults={"first_k_dense_replace": 0, "moe_layer_freq": 1},
        model={
            **ATTENTION_BIASES,
            **_after_dense(),
        },
        fixed={"moe_layer_freq": (1,)},
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
            "norm_topk_prob": True,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-5,
            "routed_scaling_factor": 1.0,
            "topk_group": 1,
            "use_qk_norm": False,
        },
        model={
            "qk_norm": flag("use_qk_norm"),
            "qkv_bias": flag("attention_bias"),
            **_after_dense(score=RouterScore.SIGMOID, **_GROUPS, **_SCALED),
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
            **ATTENTION_BIASES,
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
    "dbrx": Architecture(
        keys={
            "hidden_size": "d_model",
            "num_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "num_key_value_heads": None,
            "intermediate_size": None,
            "norm_epsilon": None,
            "activation": None,
        },
        unused=("num_key_value_heads",),
        model={
            "norm": NormKind.LAYERNORM,
            "norm_epsilon": 1e-5,
            "activation": ActivationKind.SWIGLU,
            "num_key_value_heads": lambda config: integer(
                _inner(config, "attn_config", {"kv_n_heads": 1}), "kv_n_heads"
            ),
            "rotary_base": lambda config: number(_inner(config, "attn_config", {"rope_theta": 10_000.0}), "rope_theta"),
            "intermediate_size": lambda config: _dbrx(config).width,
            EXPERTS: _dbrx,
        },
    ),
    "dots1": Architecture(
        unused=("intermediate_size",),
        defaults={
            "first_k_dense_replace": 0,
            "max_window_layers": 62,
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "num_key_value_heads": 32,
            "sliding_window": 4096,
            "topk_group": 1,
        },
        model={
            "qk_norm": True,
            **ATTENTION_BIASES,
            **_after_dense(score=RouterScore.SIGMOID, **_GROUPS),
        },
        fixed={"moe_layer_freq": (1,)},
        window=past("max_window_layers"),
    ),
    "ernie4_5_moe": Architecture(
        unused=("intermediate_size", "moe_gate", "moe_use_aux_free", "moe_capacity", "moe_norm_min"),
        defaults={
            "moe_intermediate_size": 1536,
            "moe_k": 6,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
            "moe_layer_start_index": 1,
            "moe_num_experts": 64,
            "moe_num_shared_experts": 2,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "router_aux_loss_coef": 0.001,
            "tie_word_embeddings": True,
        },
        model={
            "intermediate_size": dense_width(_ernie_dense, "intermediate_size", "moe_intermediate_size"),
            EXPERTS: experts_of(
                "moe_num_experts",
                "moe_intermediate_size",
                per_token="moe_k",
                dense=_ernie_dense,
                shared=lambda config: (
                    _whole(config, "moe_num_shared_experts") * integer(config, "moe_intermediate_size")
                ),
                **_BALANCED,
            ),
        },
        fixed={"use_bias": (False,)},
    ),
    "hunyuan_v1_moe": Architecture(
        unused=("intermediate_size", "moe_intermediate_size", "attention_head_dim", "cla_share_factor"),
        defaults={"rms_norm_eps": 1e-5, "moe_topk": 1, "num_shared_expert": 1},
        model={
            **HUNYUAN,
            "intermediate_size": lambda config: _hunyuan(config).width,
            EXPERTS: _hunyuan,
        },
        fixed={**HUNYUAN_FIXED, "moe_layer_num_skipped": (0,), "use_mixed_mlp_moe": (True,)},
    ),
    "minicpm3": Architecture(
        unused=("head_dim", "num_key_value_heads", "v_head_dim"),
        defaults={
            "dim_model_base": 256,
            "kv_lora_rank": 256,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "rms_norm_eps": 1e-5,
            "scale_depth": 1.4,
            "scale_emb": 12,
            "tie_word_embeddings": True,
        },
        model={**_LATENT, **MINICPM, "mlp_bias": flag("mlp_bias")},
    ),
    "minimax_m2": Architecture(
        unused=("attn_type_list", "mtp_transformer_layers", "num_mtp_modules", "use_mtp", "use_routing_bias"),
        defaults={
            "head_dim": 128,
            "num_experts_per_tok": 8,
            "num_key_value_heads": 8,
            "num_local_experts": 256,
            "qk_norm_type": "per_layer",
            "rotary_dim": 64,
            "rope_theta": 5_000_000.0,
            "use_qk_norm": True,
        },
        model={
            "qk_norm": flag("use_qk_norm"),
            "qk_norm_scope": QkNormScope.TOKEN,
            "rotary_share": lambda config: integer(config, "rotary_dim") / integer(config, "head_dim"),
            EXPERTS: experts_of("num_local_experts", "intermediate_size", score=RouterScore.SIGMOID),
        },
        fixed={"qk_norm_type": ("per_layer",), "shared_intermediate_size": (0,)},
    ),
    "phimoe": Architecture(
        defaults={
            "num_experts_per_tok": 2,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "router_aux_loss_coef": 0.001,
            "sliding_window": None,
        },
        model={
            **ATTENTION_BIASES,
            "norm": NormKind.LAYERNORM,
            "norm_bias": True,
            "head_bias": flag("lm_head_bias"),
            EXPERTS: experts_of("num_local_experts", "intermediate_size", normalised=False, **_BALANCED),
        },
        window=every_block,
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
ALL_ARCHITECTURES: Mapping[str, Architecture] = {**ARCHITECTURES, **WITH_EXPERTS}
"""Of dense models and of those with experts, all that are read."""
