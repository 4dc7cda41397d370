"""Models for Hugging Face: a `config.json` that `kareus.workload.huggingface` reads as the same model."""

from typing import Any

from kareus.artifacts.records import added_fields
from kareus.errors import ConfigError
from kareus.model.config import ActivationKind, Model, NormKind, PositionKind, RotaryScaling
from kareus.model.features import AngleScaling
from kareus.workload.architectures import LLAMA_KEYS, PLAIN_ACTIVATIONS

LLAMA_BLOCK: dict[str, Any] = {
    "norm": NormKind.RMSNORM,
    "activation": ActivationKind.SWIGLU,
    "biases": False,
}
"""Keys of a model with RoPE whose block is Llama's, and Qwen's and Mistral's."""


def huggingface_config(model: Model, sequence_length: int, dtype: str) -> dict[str, Any]:
    """Return the content of a `config.json` from which `read_architecture` reads the same architecture.

    Args:
        model: the architecture.
        sequence_length: tokens that it was trained on.
        dtype: of its weights, as PyTorch names it.

    Raises:
        ConfigError: transformers has no such architecture.
    """
    for key in added_fields(model):
        raise ConfigError(
            f"{model.name}: {key}={getattr(model, key)}: no config.json is written of such a model; keep the one that "
            "it was read from."
        )
    if model.qk_norm and model.qkv_bias:
        raise ConfigError(
            f"{model.name}: qk_norm=true and qkv_bias=true: no architecture of transformers has both; set one to false."
        )
    if model.positions is not PositionKind.ROPE:
        return _gpt_config(model, sequence_length, dtype)
    for key, llama in LLAMA_BLOCK.items():
        if getattr(model, key) != llama:
            raise ConfigError(
                f"{model.name}: {key}={getattr(model, key)}: with positions=rope no architecture that is exported has "
                f"it; expected {llama}."
            )
    kind = "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else "llama"
    scaling = model.rotary_scaling
    return {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        **{key: getattr(model, field) for field, key in LLAMA_KEYS.items() if field != "activation"},
        "rope_theta": model.rotary_base,
        "max_position_embeddings": _most_positions(scaling, sequence_length),
        "hidden_act": "silu",
        "torch_dtype": dtype,
    } | ({} if scaling is None else {"rope_scaling": _stretching(model.name, scaling)})


def _stretching(name: str, scaling: RotaryScaling | AngleScaling) -> dict[str, Any]:
    if isinstance(scaling, AngleScaling):
        if not scaling.has_angles or scaling.score_scale != 1:  # what more they follow from is nowhere in the record
            raise ConfigError(
                f"{name}: rotary_scaling.stretch={scaling.stretch}: no config.json is written of such angles; keep the "
                "one that it was read from."
            )
        usual = {"rope_type": str(scaling.stretch), "factor": scaling.stretch_factor}
        return usual | ({} if scaling.original_sequence_length is None else _yarn(scaling))
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_sequence_length,
    }


def _yarn(scaling: AngleScaling) -> dict[str, Any]:
    return {
        "original_max_position_embeddings": scaling.original_sequence_length,
        "beta_fast": scaling.fast_turns,
        "beta_slow": scaling.slow_turns,
        "truncate": scaling.whole_bounds,
        "attention_factor": scaling.turned_scale,
    }


def _most_positions(scaling: RotaryScaling | AngleScaling | None, sequence_length: int) -> int:
    """Tokens that a model may be asked to attend over: as many as it was trained on, or as its rotation is made for."""
    stretched = 0
    if isinstance(scaling, RotaryScaling):
        stretched = round(scaling.factor * scaling.original_sequence_length)
    return max(sequence_length, stretched)


def _gpt_config(model: Model, sequence_length: int, dtype: str) -> dict[str, Any]:
    """Return the content of a `config.json` of the type `gpt2` or `mpt`.

    Args:
        model: with learned positions or ALiBi.
        sequence_length: tokens that it was trained on.
        dtype: of its weights, as PyTorch names it.

    Raises:
        ConfigError: transformers has no such architecture.
    """
    learned = model.positions is PositionKind.LEARNED
    needed: dict[str, Any] = {
        "norm": NormKind.LAYERNORM,
        "biases": learned,
        "num_key_value_heads": model.num_attention_heads,
        "hidden_size": model.query_width,
    }
    if not learned:
        needed |= {"activation": ActivationKind.GELU, "intermediate_size": 4 * model.hidden_size}
    for key, value in needed.items():
        if getattr(model, key) != value:
            raise ConfigError(
                f"{model.name}: {key}={getattr(model, key)}: with positions={model.positions} no architecture of "
                f"transformers has it; expected {value}."
            )
    common = {
        "vocab_size": model.vocab_size,
        "layer_norm_epsilon": model.norm_epsilon,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": dtype,
    }
    return common | (_gpt2(model) if learned else _mpt(model, sequence_length))


def _gpt2(model: Model) -> dict[str, Any]:
    names = {kind: name for name, kind in reversed(list(PLAIN_ACTIVATIONS.items()))}
    if model.activation not in names:
        raise ConfigError(
            f"{model.name}: activation={model.activation}: with positions=learned no architecture of transformers has "
            f"it; expected {', '.join(names)}."
        )
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": model.hidden_size,
        "n_inner": model.intermediate_size,
        "n_layer": model.num_layers,
        "n_head": model.num_attention_heads,
        "n_positions": model.max_positions,
        "activation_function": names[model.activation],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }


def _mpt(model: Model, sequence_length: int) -> dict[str, Any]:
    return {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "d_model": model.hidden_size,
        "n_heads": model.num_attention_heads,
        "n_layers": model.num_layers,
        "expansion_ratio": 4,
        "max_seq_len": sequence_length,
        "no_bias": True,
        "attn_config": {"alibi": True},
    }
