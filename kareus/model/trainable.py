"""Models that the engine trains: those whose features it was shown to compute as transformers does.

Plans and predictions serve all models. Nothing here imports torch.
"""

from collections.abc import Iterator
from typing import Any

from kareus.artifacts.records import added_fields
from kareus.model.config import Model, NormKind
from kareus.model.experts import Experts, LatentAttention, RouterScore
from kareus.model.features import AngleScaling, QkNormScope

TRAINED = frozenset(
    {
        "norm_placement",
        "branches",
        "norm_weight",
        "norm_bias",
        "projection_bias",
        "mlp_bias",
        "head_bias",
        "rotary_share",
        "attention_scale",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
        "position_offset",
        "qk_norm_scope",
        "checkpoint",
        "experts",
        "latent_attention",
    }
)
"""Fields with the metadata `ADDED` that the engine computes, whatever they are."""
TRAINED_OF_EXPERTS = frozenset(
    {
        "balance_loss",
        "bias_step",
        "dense_layers",
        "groups",
        "groups_per_token",
        "normalised",
        "score",
        "share_scale",
        "shared_gate",
        "shared_width",
    }
)
"""Likewise fields of experts."""
BESIDE_SHARED = frozenset({None, "deepseek_v3", "glm4_moe", "kimi_k2", "qwen2_moe"})
"""Checkpoints whose shared experts and sigmoid routers it computes: others choose or scale otherwise."""
UNMEASURED = frozenset({"experts", "latent_attention", "norm_placement", "branches", "rotary_share", "qk_norm_scope"})
"""Fields of those with which a block has operators that the profiler does not run by themselves."""
OF_WINDOWS = ("window_tokens", "windowed_layers")
"""Fields that mean nothing where the window is as long as the sequence."""


def untrained(model: Model, sequence_length: int) -> tuple[str, ...]:
    """Return the features of a model that the engine does not compute; none if it trains it on such sequences."""
    return tuple(_untrained(model, sequence_length))


def unmeasured(model: Model, sequence_length: int) -> tuple[str, ...]:
    """Return the features of a model whose operators are not measured on GPUs: those that are not trained, and some."""
    others = [name for name in added_fields(model) if name in UNMEASURED]
    return *untrained(model, sequence_length), *(_named(name, getattr(model, name)) for name in others)


def _untrained(model: Model, sequence_length: int) -> Iterator[str]:
    masks = min(model.layer_windows(sequence_length)) < sequence_length
    for name in added_fields(model):
        if name not in TRAINED and (masks or name not in OF_WINDOWS):
            yield _named(name, getattr(model, name))
    if model.experts is not None:
        yield from _untrained_experts(model, model.experts)
    if (latent := model.latent_attention) is not None:
        if model.has_qkv_bias or model.has_projection_bias:
            yield "latent attention with biases"
        if model.checkpoint not in BESIDE_SHARED or latent.value_dim > model.head_dim:
            yield f"latent attention of {model.checkpoint}, with values of {latent.value_dim}"
    if model.qk_norm and (model.norm is NormKind.LAYERNORM or model.qk_norm_scope is QkNormScope.OWN_HEAD):
        yield f"qk_norm with norm={model.norm}"
    scaling = model.rotary_scaling
    if isinstance(scaling, AngleScaling) and not scaling.has_angles:
        yield f"rotary_scaling.stretch={scaling.stretch}"


def _untrained_experts(model: Model, experts: Experts) -> Iterator[str]:
    for name in added_fields(experts):
        if name not in TRAINED_OF_EXPERTS:
            yield f"experts.{_named(name, getattr(experts, name))}"
    if (experts.shared_width or experts.score is RouterScore.SIGMOID) and model.checkpoint not in BESIDE_SHARED:
        yield f"shared experts or sigmoid routers of {model.checkpoint}"
    if experts.balance_loss and experts.score is RouterScore.SIGMOID:
        yield f"experts.balance_loss with experts.score={experts.score}"
    if experts.dense_layers != tuple(range(len(experts.dense_layers))):
        yield "experts.dense_layers that are not the first"
    if model.branches.parallel:
        yield f"experts with branches={model.branches}"


def _named(name: str, value: Any) -> str:
    """Return a field and its value; the name alone where the value is long."""
    if isinstance(value, Experts | LatentAttention):
        return name.replace("_", " ")
    if isinstance(value, tuple):
        return name
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
