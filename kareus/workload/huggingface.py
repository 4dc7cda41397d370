"""Models from Hugging Face: the `config.json` of an architecture, without the transformers library.

What a key means is in the table `kareus.workload.architectures`, by `model_type`. A key that is left out has the
default of its type. Keys that change an architecture and are none of the type's have to have a value that changes
nothing; other keys that are not read are listed for the user.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kareus.artifacts.files import read_bytes
from kareus.artifacts.names import shortened
from kareus.artifacts.records import unique_keys
from kareus.errors import ConfigError
from kareus.model.config import Model, PositionKind
from kareus.workload.architectures import GATED_ACTIVATIONS, LLAMA_KEYS, PLAIN_ACTIVATIONS, Architecture
from kareus.workload.expert_architectures import ALL_ARCHITECTURES, WITH_EXPERTS
from kareus.workload.huggingface_refusals import (
    FURTHER,
    NEUTRAL,
    QUANTISED,
    check_class,
    check_fixed,
    left_out,
    missing_features,
    refusal,
)
from kareus.workload.huggingface_rotation import rotation, window
from kareus.workload.huggingface_values import ModelFile, boolean, check_values, integer, number

MOST_MODEL_NAME = 64
"""Characters of a model's name; a hash of the model is added to it, and to that the rest of a workload's name."""
MOST_BYTES = 10_000_000
"""Largest size of a file in bytes; those on Hugging Face have thousands."""
COMMON_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
"""Of Llama's class, and of most."""
SENSES = ("vision_config", "audio_config")
"""Keys of what is beside the language model."""
SIZES = ("hidden_size", "num_layers", "num_attention_heads")
"""Fields whose keys transformers also takes under the names of most types."""
TEXT = "text_config"
"""Key of the language model of a model with pictures or sounds."""
CLASS_SIZES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"intermediate_size": 11008, "vocab_size": 32000},
    "mistral": {"intermediate_size": 14336, "vocab_size": 32000},
    "qwen2": {"intermediate_size": 22016, "vocab_size": 151936},
    "qwen3": {"intermediate_size": 22016, "vocab_size": 151936},
}
"""Sizes of the classes of transformers, which files of models with pictures leave out of `text_config`."""
SIZES_OF_ALL: Mapping[str, Any] = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
"""Those that are the same in all of these."""
SAME_BLOCK: Mapping[str, str] = {
    **dict.fromkeys(("aquila", "skywork", "xverse"), "llama"),
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"), "qwen2"),
    "ministral3": "mistral",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "stablelm_epoch": "stablelm",
}
"""Types whose blocks are those of another: forks of Llama, and the language models of models with pictures."""


class ReadModel(NamedTuple):
    """A model that was read from a file."""

    model: Model
    notes: tuple[str, ...]
    """What was left out of the file, in one line each."""


def read_architecture(path: Path) -> ReadModel:
    """Read a model from a Hugging Face `config.json`, or from the folder that holds it, and what was left out of it.

    Raises:
        ConfigError: the file is missing or corrupt, or the architecture is none that Kareus can build.
    """
    file = path / "config.json" if path.is_dir() else path
    content = _load(file)
    try:
        return _read(_name(file, content), content)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _read(name: str, content: Mapping[str, Any]) -> ReadModel:
    content, notes = _of_language(content)
    kind = str(content.get("model_type"))
    like = SAME_BLOCK.get(kind, kind)
    if like not in ALL_ARCHITECTURES or missing_features(content, ALL_ARCHITECTURES[like]):
        raise ConfigError(refusal(kind, content))
    row = ALL_ARCHITECTURES[like]
    content = _renamed(content, row)
    config = ModelFile(content, {**COMMON_DEFAULTS, **row.defaults})
    model = _model(name, kind, config, row)
    check_fixed(config, row)
    passed = config.read | row.defaults.keys() | {QUANTISED} | ({*FURTHER} if like in WITH_EXPERTS else set())
    check_values({key: value for key, value in content.items() if key not in passed}, NEUTRAL)
    return ReadModel(model, (*notes, *left_out(config, row)))


def _of_language(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return the keys of the language model of a file, and what is said of the rest."""
    kind, seen = content["model_type"], [key for key in SENSES if content.get(key)]
    if kind not in ALL_ARCHITECTURES and isinstance(content.get(TEXT), Mapping):
        inner = content[TEXT]
        of_text = inner.get("model_type")
        sizes = CLASS_SIZES.get(SAME_BLOCK.get(str(of_text), of_text), {})
        usual = {**SIZES_OF_ALL, **sizes} if sizes else {}
        return {**usual, **inner}, [f"{kind}: its language model alone, of the key {TEXT}"]
    if kind in SAME_BLOCK and seen:
        rest = {key: value for key, value in content.items() if key not in seen}
        return rest, [f"{kind}: its language model alone, without {', '.join(seen)}"]
    check_class(content)
    return content, []


def _renamed(content: Mapping[str, Any], row: Architecture) -> Mapping[str, Any]:
    """Return the keys of a file by the names of its type, where it has those of most types, as transformers reads."""
    of_sizes = {key: LLAMA_KEYS[size] for size in SIZES if (key := row.keys.get(size)) is not None}
    others = {**of_sizes, **row.other}
    names = {key: other for key, other in others.items() if content.get(key) is None and content.get(other) is not None}
    rest = {key: value for key, value in content.items() if key not in names.values()}
    return {**rest, **{key: content[other] for key, other in names.items()}}


def _model(name: str, kind: str, config: ModelFile, row: Architecture) -> Model:
    """Build the record out of the rules of a type and of the keys that it shares with others."""
    fields = {field: rule(config) if callable(rule) else rule for field, rule in row.model.items()}
    keys = {field: key for field, key in {**LLAMA_KEYS, **row.keys}.items() if key and field not in fields}
    for field in ("hidden_size", "num_layers", "num_attention_heads", "vocab_size", "max_positions"):
        if field in keys:
            fields[field] = integer(config, keys[field])
    heads = fields["num_attention_heads"]
    if "num_key_value_heads" in keys:
        shared = keys["num_key_value_heads"]
        fields["num_key_value_heads"] = heads if config.get(shared) is None else integer(config, shared)
    if "intermediate_size" in keys:
        inner = keys["intermediate_size"]
        is_wide = config.get(inner) is None and not row.gated
        fields["intermediate_size"] = 4 * fields["hidden_size"] if is_wide else integer(config, inner)
    if "norm_epsilon" in keys:
        fields["norm_epsilon"] = number(config, keys["norm_epsilon"])
    if "activation" in keys:
        fields["activation"] = _activation(config, keys["activation"], row)
    rotates = fields.get("positions", PositionKind.ROPE) is PositionKind.ROPE
    fields["head_dim"] = _head_dim(config, fields, keys.get("head_dim"), rotates=rotates)
    fields["tie_embeddings"] = boolean(config, keys["tie_embeddings"])
    fields = {"qk_norm": False, "qkv_bias": False, "rotary_base": 10_000.0, "rotary_scaling": None} | fields
    if rotates:
        fields |= rotation(config, row, fields)
    if "window_tokens" not in fields:
        fields |= window(config, row, fields["num_layers"])
    if fields.get("window_tokens") is None:
        fields.pop("window_rotary_base", None)
    fields = {field: value for field, value in fields.items() if not _is_usual(field, value, fields)}
    checkpoint = None if kind in ("llama", "mistral", "qwen2", "qwen3", "gpt2", "mpt") else kind
    mtp_layers = _mtp_layers(config) if kind in WITH_EXPERTS else 0
    return Model(name=name, layers_per_stage={}, checkpoint=checkpoint, mtp_layers=mtp_layers, **fields)


def _mtp_layers(config: ModelFile) -> int:
    further = next((key for key in FURTHER if config.given.get(key) not in (None, 0)), None)
    return 0 if further is None else integer(config, further)


def _is_usual(field: str, value: Any, fields: Mapping[str, Any]) -> bool:
    """Whether null means this value of a field, so that equal models are equal."""
    if field in ("norm_bias", "projection_bias", "mlp_bias"):
        return bool(value) is bool(fields.get("biases", False))
    return field == "attention_scale" and value is not None and math.isclose(value, fields["head_dim"] ** -0.5)


def _activation(config: Mapping[str, Any], key: str, row: Architecture) -> Any:
    named, said = (GATED_ACTIVATIONS if row.gated else PLAIN_ACTIVATIONS), str(config.get(key))
    if said not in named:
        raise ConfigError(f"{key}={said}: not supported; expected {', '.join(named)}.")
    return named[said]


def _head_dim(config: Mapping[str, Any], fields: Mapping[str, Any], key: str | None, *, rotates: bool) -> int:
    hidden_size, heads = fields["hidden_size"], fields["num_attention_heads"]
    if "head_dim" in fields:
        dim = int(fields["head_dim"])
    elif key is not None and config.get(key) is not None:
        dim = integer(config, key)
    elif hidden_size % heads:
        raise ConfigError(
            f"hidden_size={hidden_size}: must be a multiple of num_attention_heads ({heads}); else give head_dim."
        )
    else:
        dim = hidden_size // heads
    if dim % 2:
        why = "for rotary position embeddings turn pairs" if rotates else "as attention's kernels want"
        raise ConfigError(f"head_dim={dim}: must be even, {why}.")
    return dim


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
    inner = config.get(TEXT)
    for kind in (config["model_type"], *([inner.get("model_type", "")] if isinstance(inner, Mapping) else [])):
        if not isinstance(kind, str):
            raise ConfigError(f"{file}: model_type={kind!r}: expected a name, such as 'llama'.")
    return config


def _name(file: Path, config: Mapping[str, Any]) -> str:
    """Return the name of the model: that in the file, else its repository's, else its folder's, else its file's."""
    said, place = Path(str(config.get("_name_or_path") or "")), file.resolve()
    names = (_repository(said), said.name, _repository(place))
    name = next(filter(None, names), place.parent.name if place.name == "config.json" else place.stem)
    return shortened(re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-."), MOST_MODEL_NAME) or "model"


def _repository(path: Path) -> str:
    """Return the name of the repository whose copy in the cache of Hugging Face has a path; empty for other paths.

    Example:
        >>> _repository(Path("hub/models--meta-llama--Llama-3.1-8B/snapshots/d04e592b/config.json"))
        'Llama-3.1-8B'
    """
    return next((part.split("--")[-1] for part in path.parts if part.startswith("models--")), "")
