"""Terms that say a model: its sizes, experts and latent attention, as the record that they give, and back.

- `model`: an option of the group `model`, or a file; `model.*`: fields of its record, and `model.expansion`, the width
  of the MLP over the hidden size, `model.grouped`, whether `model.num_key_value_heads` counts, and `model.family` and
  `model.flavor`, by which torchtitan names models.
- `expert_layers`: which blocks have experts, by a list or as every so manieth; `model.latent_attention.used` and
  `latent_head_dim`: whether attention is latent, and the values of a head that do not rotate (Megatron Core).
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kareus.model.config import ActivationKind
from kareus.software.record import Dispatcher

LLAMA: Mapping[str, Any] = {
    "tie_embeddings": False,
    "qk_norm": False,
    "qkv_bias": False,
    "norm_epsilon": 1e-5,
    "rotary_base": 10_000.0,
    "rotary_scaling": None,
    "layers_per_stage": {},
}
"""Fields of a model that a file need not have."""
SIZES = ("hidden_size", "num_layers", "num_attention_heads", "vocab_size")
"""Fields without which there is no model."""
OF_EXPERTS = "experts."
LATENT = "latent_attention."
ANGLES = "rotary_scaling."
"""Begin the fields of a model that are its experts', its latent attention's and its stretched angles'."""
ANGLES_USUAL: Mapping[str, Any] = {
    "low_frequency_factor": 1.0,
    "high_frequency_factor": 4.0,
    "original_sequence_length": 8192,
}
"""What no key gives of angles stretched as Llama 3.1 does (Megatron Core, `rotary_pos_embedding.py`)."""
LATENT_USUAL: Mapping[str, Any] = {"query_rank": None, "key_value_rank": 32, "rotary_dim": 64, "value_dim": 128}
LATENT_HEAD_DIM = 128
"""Sizes of latent attention that no key gives (Megatron-LM, `megatron/training/arguments.py`)."""
RUN = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
"""Part of a text on which blocks have experts."""
TrainerTerms = Mapping[str, Any]
"""What a trainer says, by term."""


def expert_degrees(model: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensor parallelism of experts where nothing says it: that of the rest of a model (Megatron Core)."""
    is_given = "parallelism.etp" in keys or not isinstance(model, Mapping) or "experts" not in model
    return {} if is_given else {"parallelism.etp": keys.get("parallelism.tp", 1)}


def model_of(terms: TrainerTerms) -> Any:
    """Return the record of a model as plain values, the option that is named, or nothing."""
    fields = {key.removeprefix("model."): value for key, value in terms.items() if key.startswith("model.")}
    expansion, grouped = fields.pop("expansion", None), fields.pop("grouped", True)
    family, flavor = fields.pop("family", None), fields.pop("flavor", None)
    if flavor is not None:
        return f"{family or ''} {flavor}".strip()
    if not all(isinstance(fields.get(size), int) for size in SIZES):
        return terms.get("model")
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    if not grouped or fields.get("num_key_value_heads") is None:
        fields["num_key_value_heads"] = heads
    if fields.get("head_dim") is None:
        fields["head_dim"] = hidden // heads if heads else 0
    if fields.get("intermediate_size") is None:
        fields["intermediate_size"] = _width(hidden, expansion, fields.get("activation"))
    if fields.get("positions", "rope") != "learned":
        fields.pop("max_positions", None)
    if fields.get("norm") != "layernorm" or fields.get("norm_bias") == fields.get("biases", False):
        fields.pop("norm_bias", None)
    fields, angles = _part(fields, ANGLES)
    if angles:
        fields["rotary_scaling"] = {**angles, **ANGLES_USUAL}
    fields = _with_experts(_with_latent_attention(fields, terms), terms)
    return {**LLAMA} | {name: value for name, value in fields.items() if value is not None or name in LLAMA}


def _part(fields: Mapping[str, Any], beginning: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that do not begin so, and those that do, without the beginning, where they have a value."""
    part = {name.removeprefix(beginning): value for name, value in fields.items() if name.startswith(beginning)}
    others = {name: value for name, value in fields.items() if not name.startswith(beginning)}
    return others, {name: value for name, value in part.items() if value is not None}


def _with_latent_attention(fields: Mapping[str, Any], terms: TrainerTerms) -> dict[str, Any]:
    """Return the fields with those of latent attention as one, where it is used."""
    others, latent = _part(fields, LATENT)
    if not latent.pop("used", False):
        return others
    latent = {**LATENT_USUAL, **latent}
    others["head_dim"] = (terms.get("latent_head_dim") or LATENT_HEAD_DIM) + latent["rotary_dim"]
    # Norms of the latent vectors are its own: `qk_layernorm` adds none.
    return others | {"latent_attention": latent, "num_key_value_heads": others["num_attention_heads"], "qk_norm": False}


def _with_experts(fields: Mapping[str, Any], terms: TrainerTerms) -> dict[str, Any]:
    """Return the fields with those of experts as one: two for each token, as wide as the MLP (Megatron Core)."""
    others, experts = _part(fields, OF_EXPERTS)
    if experts.get("count", 1) == 1:
        return others
    dense = _dense_layers(terms.get("expert_layers"), others["num_layers"])
    experts = {"per_token": 2, "width": others["intermediate_size"], **experts}
    if dense:
        return others | {"experts": {**experts, "dense_layers": dense}}
    return others | {"experts": experts, "intermediate_size": experts["width"]}


def _dense_layers(said: Any, layers: int) -> list[int]:
    """Return the blocks without experts: those of a 0, by a list or its text, or all but every so manieth.

    Example:
        >>> _dense_layers("([0]*3+[1]*2)", 5), _dense_layers(2, 5), _dense_layers(None, 5)
        ([0, 1, 2], [1, 3], [])
    """
    if isinstance(said, str):
        text = re.sub(r"[\s()]", "", said)
        parts = [RUN.fullmatch(part) for part in text.split("+")]
        said = [bit for part in parts if part for bit in part[1].split(",") * int(part[2] or 1)]
    if isinstance(said, list):
        return [layer for layer, bit in enumerate(said[:layers]) if not int(bit)]
    return [layer for layer in range(layers) if layer % said] if isinstance(said, int) and said > 1 else []


def expert_terms(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what trainers take otherwise of experts where nobody says it, and what says which blocks have them.

    How wide heads of latent attention are, too.
    """
    if "model.experts.count" in workload:  # plain values leave these out at their defaults
        yield "parallelism.etp", workload.get("parallelism.etp", 1)
        yield "software.dispatcher", workload.get("software.dispatcher", str(Dispatcher.ALL_TO_ALL))
    if dense := workload.get("model.experts.dense_layers"):
        bits = [int(layer not in dense) for layer in range(workload["model.num_layers"])]
        runs = [(bit, len(list(run))) for bit, run in itertools.groupby(bits)]
        yield "expert_layers", "(" + "+".join(f"[{bit}]*{length}" for bit, length in runs) + ")"
    if (rotary := workload.get(f"model.{LATENT}rotary_dim")) is not None:
        yield f"model.{LATENT}used", True
        yield "latent_head_dim", workload["model.head_dim"] - rotary
        yield "model.head_dim", None


def _width(hidden: int, expansion: Any, activation: Any) -> int:
    """Width of an MLP that no key gives: four times the hidden size, with a gate two thirds of that (Megatron Core)."""
    if isinstance(expansion, (int, float)):
        return round(hidden * expansion)
    is_gated = activation in tuple(kind for kind in ActivationKind if kind.gated)
    return int(4 * hidden * 2 / 3 / 64) * 64 if is_gated else 4 * hidden
