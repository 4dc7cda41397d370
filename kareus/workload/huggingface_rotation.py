"""Rotary embeddings and windows of attention that a Hugging Face `config.json` says."""

import math
from collections.abc import Mapping
from typing import Any

from kareus.artifacts.records import suggest
from kareus.errors import ConfigError
from kareus.model.config import RotaryScaling
from kareus.model.features import AngleScaling, AngleStretch
from kareus.workload.architectures import Architecture
from kareus.workload.huggingface_values import ModelFile, boolean, integer, listed, mapping, number

ROTARY_BASES = ("rope_theta", "rotary_emb_base")
ROTARY_SHARES = ("partial_rotary_factor", "rotary_pct", "rope_pct")
"""Names of one thing."""
ROTARY_NEWER, ROTARY_OLDER = "rope_parameters", "rope_scaling"
BY_WINDOW = ("full_attention", "sliding_attention")
"""Values of `layer_types`, and keys of rotary embeddings that differ between blocks."""
STRETCHES: Mapping[str, AngleStretch] = {
    **{str(stretch): stretch for stretch in AngleStretch},
    "su": AngleStretch.LONGROPE,
    "ntk": AngleStretch.DYNAMIC,
}
"""Ways of stretching rotary embeddings by what files call them."""


def rotation(config: ModelFile, row: Architecture, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of rotary embeddings: of one mapping, or of one for each kind of block."""
    newer, older = (mapping(config, key) for key in (ROTARY_NEWER, ROTARY_OLDER))
    rotary = dict(newer or older)
    windowed: Mapping[str, Any] = {}
    if any(isinstance(rotary.get(kind), Mapping) for kind in BY_WINDOW):
        windowed = mapping(rotary, BY_WINDOW[1])
        rotary = dict(mapping(rotary, BY_WINDOW[0]) or windowed)
    outer = {key: config[key] for key in (*ROTARY_BASES, *ROTARY_SHARES) if config.get(key) is not None}
    rotary = {**outer, **rotary}
    rotation: dict[str, Any] = {
        "rotary_base": number(rotary, next((key for key in ROTARY_BASES if key in rotary), ROTARY_BASES[0]), 10_000.0),
        "rotary_scaling": _stretching(rotary, config),
    }
    share = next((key for key in ROTARY_SHARES if rotary.get(key) is not None), None)
    if share is not None and "rotary_share" not in fields:
        rotation["rotary_share"] = number(rotary, share)
        if rotation["rotary_share"] != 1 and not any(key in row.defaults for key in ROTARY_SHARES):
            raise ConfigError(
                f"{share}={rotary[share]!r}: changes the architecture; heads of this type rotate as a whole."
            )
    local = windowed.get("rope_theta", config.get("rope_local_base_freq"))
    if local is not None and local != rotation["rotary_base"]:
        rotation["window_rotary_base"] = float(local)
    return rotation


def _stretching(rotary: Mapping[str, Any], config: ModelFile) -> RotaryScaling | AngleScaling | None:
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind in ("default", "mrope", None):  # the latter: of pictures, whose parts of a head turn by place
        return None
    if kind == "llama3":
        return RotaryScaling(
            factor=number(rotary, "factor"),
            low_frequency_factor=number(rotary, "low_freq_factor"),
            high_frequency_factor=number(rotary, "high_freq_factor"),
            original_sequence_length=integer(rotary, "original_max_position_embeddings"),
        )
    if kind not in STRETCHES:
        raise ConfigError(f"rope_type {kind!r}: not known; {suggest(str(kind), ['default', 'llama3', *STRETCHES])}.")
    stretch = STRETCHES[kind]
    if stretch is AngleStretch.YARN:
        return _yarn(rotary, config)
    needed = stretch is AngleStretch.LINEAR
    return AngleScaling(stretch=stretch, stretch_factor=number(rotary, "factor", None if needed else 1.0))


def _yarn(rotary: Mapping[str, Any], config: ModelFile) -> AngleScaling:
    """Return YaRN as transformers has it (`modeling_rope_utils.py`); scores of latent attention grow as well."""
    rotary = {key: value for key, value in rotary.items() if value or key == "truncate"}  # 0 is what is not given
    lengths = "original_max_position_embeddings", "max_position_embeddings"
    places = (rotary, lengths[0]), (config, lengths[0]), (config, lengths[1])
    before = next((integer(place, key) for place, key in places if place.get(key)), None)
    if "factor" not in rotary and before is not None and config.get(lengths[1]):
        rotary["factor"] = integer(config, lengths[1]) / before
    factor = number(rotary, "factor", 1.0)

    def growth(of: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * of * math.log(factor) + 1

    turning, scoring = (number(rotary, key) if key in rotary else 0.0 for key in ("mscale", "mscale_all_dim"))
    usual = growth(turning) / growth(scoring) if turning and scoring else growth(1)
    return AngleScaling(
        stretch=AngleStretch.YARN,
        stretch_factor=factor,
        original_sequence_length=before,
        fast_turns=number(rotary, "beta_fast", 32.0),
        slow_turns=number(rotary, "beta_slow", 1.0),
        whole_bounds=boolean(rotary, "truncate", default=True),
        turned_scale=number(rotary, "attention_factor", usual),
        score_scale=growth(scoring) ** 2 if config.get("kv_lora_rank") and scoring else 1.0,
    )


def window(config: ModelFile, row: Architecture, layers: int) -> dict[str, Any]:
    """Return the fields of a window, whose size one key has, and whose blocks another one or the type has."""
    kinds = listed(config, "layer_types") if "layer_types" in config.given else []
    others = [kind for kind in kinds if kind not in BY_WINDOW]
    if others:
        raise ConfigError(f"layer_types: {others[0]!r} is not supported; expected {' or '.join(BY_WINDOW)}.")
    if kinds and len(kinds) != layers:
        raise ConfigError(f"layer_types: has {len(kinds)} entries; expected one for each of num_hidden_layers.")
    if row.window is None or ("use_sliding_window" in row.defaults and not boolean(config, "use_sliding_window")):
        return {}
    window = config.get("sliding_window")
    if window is not None and (type(window) is not int or window < 0):
        raise ConfigError(f"sliding_window={window!r}: expected a whole number or null.")
    windowed = tuple(n for n, kind in enumerate(kinds) if kind == BY_WINDOW[1]) if kinds else row.window(config)
    if not window or not windowed:
        return {}
    return {"window_tokens": window, "windowed_layers": None if len(windowed) == layers else windowed}
