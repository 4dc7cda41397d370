"""Models of the types `gpt2` and `mpt` from and for Hugging Face; see `kareus.workload.huggingface`.

Field names and their defaults are those of transformers' `GPT2Config` and `MptConfig`. GPT-2 has LayerNorm, biases and
learned positions, MPT LayerNorm without an offset and ALiBi; both have as many key-value heads as query heads, and an
MLP without a gate.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kareus.errors import ConfigError
from kareus.model.config import ActivationKind, Model, NormKind, PositionKind
from kareus.workload.huggingface_values import boolean, check_values, integer, number

GPT2_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "tie_word_embeddings": True,
}
MPT_DEFAULTS: Mapping[str, Any] = {
    "d_model": 2048,
    "n_heads": 16,
    "n_layers": 24,
    "expansion_ratio": 4,
    "vocab_size": 50368,
    "layer_norm_epsilon": 1e-5,
    "no_bias": True,
    "tie_word_embeddings": True,
}
NO_DROPOUT: tuple[Any, ...] = (0, 0.0)
GPT2_DROPOUTS, MPT_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop"), ("resid_pdrop", "emb_pdrop")
GPT2_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}
MPT_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "no_bias": (True,),
    "expansion_ratio": (4,),
    "norm_type": ("low_precision_layernorm", "layernorm"),
}
MPT_ATTENTION_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attn_type": ("multihead_attention",),
    "attn_pdrop": NO_DROPOUT,
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "attn_uses_sequence_id": (False,),
    "alibi": (True,),
    "alibi_bias_max": (8,),
}
"""Values that change nothing, for keys that change the architecture; other values are refused."""
ACTIVATIONS = {"gelu_new": ActivationKind.GELU_TANH, "gelu": ActivationKind.GELU, "relu2": ActivationKind.SQUARED_RELU}
"""Names of transformers' activations without a gate."""


def read_gpt2(name: str, config: Mapping[str, Any]) -> Model:
    """Read a model of the type `gpt2`.

    Raises:
        ConfigError: a value is missing or of another type, or asks for what Kareus cannot build.
    """
    config = {**GPT2_DEFAULTS, **config}
    _check_dropouts(config, GPT2_DROPOUTS)
    check_values(config, GPT2_NEUTRAL)
    hidden = integer(config, "n_embd")
    activation = config["activation_function"]
    if activation not in ACTIVATIONS:
        raise ConfigError(f"activation_function={activation!r}: not supported; expected {', '.join(ACTIVATIONS)}.")
    return _model(
        name,
        config,
        heads=integer(config, "n_head"),
        hidden_size=hidden,
        intermediate_size=4 * hidden if config.get("n_inner") is None else integer(config, "n_inner"),
        num_layers=integer(config, "n_layer"),
        activation=ACTIVATIONS[activation],
        positions=PositionKind.LEARNED,
        max_positions=integer(config, "n_positions"),
        biases=True,
    )


def read_mpt(name: str, config: Mapping[str, Any]) -> Model:
    """Read a model of the type `mpt`.

    Raises:
        ConfigError: as `read_gpt2`.
    """
    config = {**MPT_DEFAULTS, **config}
    _check_dropouts(config, MPT_DROPOUTS)
    check_values(config, MPT_NEUTRAL)
    attention = config.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        raise ConfigError(f"attn_config={attention!r}: expected keys and values.")
    check_values(attention, MPT_ATTENTION_NEUTRAL)
    given = [key for key in ("clip_qkv", "softmax_scale") if attention.get(key) is not None]
    if given or config.get("logit_scale") is not None:
        raise ConfigError(f"{[*given, 'logit_scale'][0]}: not supported; expected null.")
    hidden = integer(config, "d_model")
    return _model(
        name,
        config,
        heads=integer(config, "n_heads"),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_layers=integer(config, "n_layers"),
        activation=ActivationKind.GELU,
        positions=PositionKind.ALIBI,
    )


def gpt_config(model: Model, sequence_length: int, dtype: str) -> dict[str, Any]:
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
    names = {kind: name for name, kind in ACTIVATIONS.items()}
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


def _check_dropouts(config: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Check that nothing is dropped; a key that a file of GPT-2 lacks has its default, 0.1.

    Raises:
        ConfigError: something is.
    """
    try:
        check_values(config, dict.fromkeys(keys, NO_DROPOUT))
    except ConfigError as error:
        listed = f"{', '.join(keys[:-1])} and {keys[-1]}"
        raise ConfigError(
            f"{str(error).rstrip('.')}; to train without dropout, write {listed} of 0.0 into it."
        ) from None


def _model(name: str, config: Mapping[str, Any], *, heads: int, hidden_size: int, **values: Any) -> Model:
    """Return a model with what both types have in common."""
    if hidden_size % heads or (hidden_size // heads) % 2:
        raise ConfigError(f"{heads} heads: must divide the hidden size {hidden_size} into heads of an even width.")
    return Model(
        name=name,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden_size // heads,
        vocab_size=integer(config, "vocab_size"),
        tie_embeddings=boolean(config, "tie_word_embeddings"),
        qk_norm=False,
        qkv_bias=False,
        norm_epsilon=number(config, "layer_norm_epsilon"),
        rotary_base=10_000.0,
        rotary_scaling=None,
        layers_per_stage={},
        norm=NormKind.LAYERNORM,
        **values,
    )
