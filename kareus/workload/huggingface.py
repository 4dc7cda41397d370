"""Models from and for Hugging Face: the `config.json` of an architecture, without the transformers library.

Field names and their defaults are those of the `LlamaConfig`, `MistralConfig`, `Qwen2Config` and `Qwen3Config` classes
of transformers, which leave a field out of the file where it has its class's default.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kareus.artifacts.files import read_bytes
from kareus.artifacts.names import shortened
from kareus.artifacts.records import unique_keys
from kareus.errors import ConfigError
from kareus.model.config import ActivationKind, Model, NormKind, PositionKind, RotaryScaling
from kareus.workload.huggingface_gpt import gpt_config, read_gpt2, read_mpt
from kareus.workload.huggingface_values import boolean, check_values, integer, number

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` whose block has RMSNorm, RoPE and SwiGLU."""
READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Model]] = {"gpt2": read_gpt2, "mpt": read_mpt}
"""What reads models of other types that the model room builds."""
IGNORED = ("auto_map",)
"""Keys of them that need not be read: code that a model brings along, where transformers has its own."""
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Ends of names of models that predict the next token."""
MOST_MODEL_NAME = 64
"""Characters of a model's name; a hash of the model is added to it, and to that the rest of a workload's name."""
MOST_BYTES = 10_000_000
"""Largest size of a file in bytes; those on Hugging Face have thousands."""
ROTARY_KEYS = (
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
)
"""Keys of `rope_parameters` and `rope_scaling` that the types default and llama3 have."""
NO: tuple[Any, ...] = (False,)
NONE: tuple[Any, ...] = (0, 0.0, False)
ONE: tuple[Any, ...] = (1, 1.0)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # experts, and heads that predict more than the next token
    **dict.fromkeys(("num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "moe_num_experts"), NONE),
    **dict.fromkeys(("shared_expert_intermediate_size", "num_nextn_predict_layers", "mtp_num_hidden_layers"), NONE),
    # other attention
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "attention_chunk_size", "num_kv_shared_layers"), NONE),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"), NONE),
    **dict.fromkeys(("alibi", "parallel_attn", "use_parallel_residual", "attn_temperature_tuning"), NO),
    **dict.fromkeys(("no_rope_layers", "no_rope_layer_interval"), ([], 0)),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "rope_pct"), ONE),
    # dropout and scales that our functions leave out
    **dict.fromkeys(("attention_dropout", "attn_pdrop", "resid_pdrop", "hidden_dropout", "hidden_dropout_prob"), NONE),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"), ONE),
    # another model around the blocks, blocks that differ, weights of another kind, code of its own
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention", "use_bias", "layer_norm_bias"), NO),
    **dict.fromkeys(("block_configs", "mlp_only_layers", "cross_attention_layers"), ([],)),
    **dict.fromkeys(("quantization_config", "compression_config", "vision_config", "audio_config", "auto_map"), ({},)),
}
"""Values other than null that change nothing, for each key that changes the architecture. The keys are those of other
architectures of transformers (such as Mixtral, DeepSeek, Gemma, Granite, GPT-NeoX) in a file of the type Llama."""
LLAMA_BLOCK: Mapping[str, Any] = {
    "norm": NormKind.RMSNORM,
    "activation": ActivationKind.SWIGLU,
    "biases": False,
}
"""Keys of a model with RoPE whose block is Llama's, and Qwen's and Mistral's."""
QWEN3_HEAD_DIM = 128
"""Default of `Qwen3Config.head_dim`; elsewhere it is the hidden size over the heads."""


def read_model(path: Path) -> Model:
    """Read the architecture from a Hugging Face `config.json`, or from the folder that holds it.

    Raises:
        ConfigError: the file is missing or corrupt, or the architecture is none that Kareus can build.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _load(file)
    try:
        reader = READERS.get(config["model_type"])
        if reader is not None:
            model = reader(_name(file, config), config)
            _check_neutral({key: value for key, value in config.items() if key not in IGNORED})
            return model
        _check_architecture(config)
        _check_neutral(config)
        return _model(_name(file, config), config)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def huggingface_config(model: Model, sequence_length: int, dtype: str) -> dict[str, Any]:
    """Return the content of a `config.json` from which `read_model` reads the same architecture.

    Args:
        model: the architecture.
        sequence_length: tokens that it was trained on.
        dtype: of its weights, as PyTorch names it.

    Raises:
        ConfigError: transformers has no such architecture.
    """
    if model.qk_norm and model.qkv_bias:
        raise ConfigError(
            f"{model.name}: qk_norm=true and qkv_bias=true: no architecture of transformers has both; set one to false."
        )
    if model.positions is not PositionKind.ROPE:
        return gpt_config(model, sequence_length, dtype)
    for key, llama in LLAMA_BLOCK.items():
        if getattr(model, key) != llama:
            raise ConfigError(
                f"{model.name}: {key}={getattr(model, key)}: with positions=rope no architecture that is exported has "
                f"it; expected {llama}."
            )
    kind = "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else "llama"
    scaling = model.rotary_scaling
    stretched = (
        {}
        if scaling is None
        else {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
                "original_max_position_embeddings": scaling.original_sequence_length,
            }
        }
    )
    return {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_embeddings,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rotary_base,
        "max_position_embeddings": _most_positions(scaling, sequence_length),
        "hidden_act": "silu",
        "torch_dtype": dtype,
    } | stretched


def _most_positions(scaling: RotaryScaling | None, sequence_length: int) -> int:
    """Tokens that a model may be asked to attend over: as many as it was trained on, or as its rotation is made for."""
    stretched = 0 if scaling is None else round(scaling.factor * scaling.original_sequence_length)
    return max(sequence_length, stretched)


def _load(file: Path) -> Mapping[str, Any]:
    if file.exists() and not file.is_dir() and not (file.is_file() and file.stat().st_size <= MOST_BYTES):
        raise ConfigError(f"{file}: no configuration of a model (not a file of at most {MOST_BYTES:,} bytes).")
    try:
        config = json.loads(read_bytes(file).decode(), object_pairs_hook=unique_keys)
    except FileNotFoundError:
        raise ConfigError(
            f"{file}: no such file; 'model' takes an option of config/model, or the path of a Hugging Face config.json "
            "on this machine."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"{file}: cannot be read ({reason}).") from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{file}: not valid JSON (line {error.lineno}, {error.msg}); download it from Hugging Face again."
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}; keep one of them.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or as many brackets
        raise ConfigError(
            f"{file}: no configuration of a model (numbers too long, or lists in lists too deep); download it from "
            "Hugging Face again."
        ) from error
    if not isinstance(config, Mapping) or "model_type" not in config:
        raise ConfigError(f"{file}: has no 'model_type'; expected the config.json of a Hugging Face model.")
    return config


def _check_architecture(config: Mapping[str, Any]) -> None:
    """Refuse what would need another block than the one that Kareus builds."""
    kind = config["model_type"]
    if kind not in SUPPORTED:
        raise ConfigError(
            f"model_type '{kind}' is not supported; supported are the dense models {', '.join((*SUPPORTED, *READERS))} "
            "(any network can be planned from a job profiled in place: docs/howto/inplace.md)."
        )
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(key):
            raise ConfigError(f"{key}={config[key]}: mixtures of experts are not supported; give a dense model.")
    if _slides(config):
        raise ConfigError(
            f"sliding_window={config.get('sliding_window')}: sliding-window attention is not supported, only "
            "full causal attention."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act={config['hidden_act']}: not supported; expected silu.")
    if boolean(config, "mlp_bias"):
        raise ConfigError("mlp_bias=True: not supported; expected False.")
    if boolean(config, "attention_bias"):
        raise ConfigError(
            "attention_bias=True: a bias on the output projection is not supported; of the biases, only that "
            "of Qwen 2 on queries, keys and values is."
        )


def _check_neutral(config: Mapping[str, Any]) -> None:
    """Refuse keys of other architectures, unless their values switch the feature off."""
    for name in _list(config, "architectures") if "architectures" in config else []:
        if not str(name).endswith(CAUSAL):
            raise ConfigError(f"architectures: {name!r} is not supported, only models that end in ForCausalLM.")
    check_values(config, NEUTRAL)


def _slides(config: Mapping[str, Any]) -> bool:
    """Return whether any layer uses a sliding window: Qwen has a key for it, Mistral gives a window's size."""
    kinds = _list(config, "layer_types") if "layer_types" in config else []
    others = [kind for kind in kinds if kind != "full_attention"]
    if "sliding_attention" in others:
        return True
    if others:
        raise ConfigError(f"layer_types: {others[0]!r} is not supported; only full_attention is.")
    if kinds and len(kinds) != config.get("num_hidden_layers"):
        raise ConfigError(f"layer_types: has {len(kinds)} entries; expected one for each of num_hidden_layers.")
    window = config.get("sliding_window")
    if window is not None and type(window) is not int:
        raise ConfigError(f"sliding_window={window!r}: expected a whole number or null.")
    if kinds:
        return False
    said = boolean(config, "use_sliding_window", default=config["model_type"] == "mistral")
    return said and bool(window)


def _model(name: str, config: Mapping[str, Any]) -> Model:
    kind, heads = config["model_type"], integer(config, "num_attention_heads")
    one_each = kind == "llama" and config.get("num_key_value_heads") is None  # multi-head attention, as in Llama 1
    return Model(
        name=name,
        hidden_size=integer(config, "hidden_size"),
        intermediate_size=integer(config, "intermediate_size"),
        num_layers=integer(config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads if one_each else integer(config, "num_key_value_heads"),
        head_dim=_head_dim(config),
        vocab_size=integer(config, "vocab_size"),
        tie_embeddings=boolean(config, "tie_word_embeddings"),
        qk_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2",
        norm_epsilon=number(config, "rms_norm_eps", 1e-6),
        rotary_base=number(_rotary(config), "rope_theta", 10_000.0),
        rotary_scaling=_rotary_scaling(_rotary(config)),
        layers_per_stage={},
    )


def _rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of rotary embeddings: `rope_parameters`, or before transformers 5 two keys."""
    newer, older = (_checked_rotary(key, config.get(key)) for key in ("rope_parameters", "rope_scaling"))
    return {**_given(config, "rope_theta"), **newer} if newer else {**older, **_given(config, "rope_theta")}


def _checked_rotary(key: str, rotary: Any) -> Mapping[str, Any]:
    """Return what one key defines of rotary embeddings; refuse what is not supported."""
    if rotary is None:
        return {}
    if not isinstance(rotary, Mapping):
        raise ConfigError(f"{key}={rotary!r}: expected keys and values.")
    kind = _rotary_kind(rotary)
    if kind not in ("default", "llama3"):
        raise ConfigError(f"rope_type '{kind}' is not supported; supported are default and llama3.")
    unknown = sorted(str(name) for name in rotary if name not in ROTARY_KEYS)
    if unknown:
        raise ConfigError(f"{key}.{unknown[0]}: not supported; supported are {', '.join(ROTARY_KEYS)}.")
    if rotary.get("partial_rotary_factor", 1) not in (None, 1):
        share = rotary["partial_rotary_factor"]
        raise ConfigError(f"{key}.partial_rotary_factor={share!r}: not supported, heads rotate as a whole.")
    return rotary


def _rotary_kind(rotary: Mapping[str, Any]) -> Any:
    return rotary.get("rope_type", rotary.get("type", "default"))


def _rotary_scaling(rotary: Mapping[str, Any]) -> RotaryScaling | None:
    if _rotary_kind(rotary) == "default":
        return None
    return RotaryScaling(
        factor=number(rotary, "factor"),
        low_frequency_factor=number(rotary, "low_freq_factor"),
        high_frequency_factor=number(rotary, "high_freq_factor"),
        original_sequence_length=integer(rotary, "original_max_position_embeddings"),
    )


def _given(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {key: config[key]} if config.get(key) is not None else {}


def _head_dim(config: Mapping[str, Any]) -> int:
    dim = _said_head_dim(config)
    if dim % 2:
        raise ConfigError(f"head_dim={dim}: must be even, for rotary position embeddings turn pairs.")
    return dim


def _said_head_dim(config: Mapping[str, Any]) -> int:
    if config.get("head_dim") is not None:
        return integer(config, "head_dim")
    if config["model_type"] == "qwen3":
        return QWEN3_HEAD_DIM
    hidden_size, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    if hidden_size % heads:
        raise ConfigError(
            f"hidden_size={hidden_size}: must be a multiple of num_attention_heads ({heads}), or head_dim be given."
        )
    return hidden_size // heads


def _list(config: Mapping[str, Any], key: str) -> list[Any]:
    value = config[key]
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{key}={value!r}: expected a list.")
    return value


def _name(file: Path, config: Mapping[str, Any]) -> str:
    """Return the name of the model: that in the file, else its folder, else its file."""
    file = file.resolve()
    said = str(config.get("_name_or_path") or "").rstrip("/")
    name = said or (file.parent.name if file.name == "config.json" else file.stem)
    return shortened(re.sub(r"[^a-z0-9.-]+", "-", Path(name).name.lower()).strip("-."), MOST_MODEL_NAME) or "model"
