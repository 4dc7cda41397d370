"""Where published checkpoints of GPT-2 and MPT have the weights that Llama has by other names, fused or transposed.

Names of whole weights are Llama's everywhere else: in training's checkpoints too.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from kareus.model.config import Model, PositionKind

PREFIX = "transformer."
"""Begins all names of GPT-2 and MPT, and is left out in older checkpoints."""
_ENDS = {"model.embed_tokens": "transformer.wte", "model.embed_positions": "transformer.wpe"}
_GPT2 = {
    **_ENDS,
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.h",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
_MPT = {
    **_ENDS,
    "model.norm": "transformer.norm_f",
    "model.layers": "transformer.blocks",
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_2",
    "self_attn.o_proj": "attn.out_proj",
    "mlp.up_proj": "ffn.up_proj",
    "mlp.down_proj": "ffn.down_proj",
}
_FUSED = {PositionKind.LEARNED: "attn.c_attn", PositionKind.ALIBI: "attn.Wqkv"}
"""The product of queries, keys and values."""
_HEADS = re.compile(r"self_attn\.([qkv])_proj")


class Published(NamedTuple):
    """Where a published checkpoint has a whole weight."""

    name: str
    first_row: int = 0
    """Row of the published tensor at which the weight begins."""
    rows: int | None = None
    """Rows of the published tensor; None if it is the weight alone."""
    transposed: bool = False
    """Whether rows and columns are exchanged there."""


def published(model: Model, name: str) -> Published:
    """Return where the checkpoints of such a model have the weight that Llama names `name`."""
    if model.positions is PositionKind.ROPE:
        return Published(name)
    learned = model.positions is PositionKind.LEARNED
    transposed = learned and "_proj.weight" in name
    head = _HEADS.search(name)
    for ours, theirs in (_GPT2 if learned else _MPT).items():
        name = name.replace(ours, theirs)
    if head is None:
        return Published(name, transposed=transposed)
    query, shared = model.query_width, model.key_value_width
    first = {"q": 0, "k": query, "v": query + shared}[head[1]]
    return Published(_HEADS.sub(_FUSED[model.positions], name), first, query + 2 * shared, transposed)


def as_published(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole weights, of whole blocks, as published checkpoints have them."""
    parts: dict[str, list[tuple[int, Tensor]]] = {}
    for name, weight in weights.items():
        place = published(model, name)
        parts.setdefault(place.name, []).append((place.first_row, weight.t() if place.transposed else weight))
    merged = {}
    for name, own in parts.items():
        tensors = [tensor for _, tensor in sorted(own, key=lambda part: part[0])]
        transposed = len(own) > 1 and model.positions is PositionKind.LEARNED and tensors[0].dim() > 1
        merged[name] = torch.cat(tensors, dim=1 if transposed else 0).contiguous()
    return merged


def from_published(model: Model, name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the whole weight that Llama names `name`, of this shape, out of published tensors."""
    place = published(model, name)
    tensor = tensors[place.name].t() if place.transposed else tensors[place.name]
    return tensor[place.first_row : place.first_row + shape[0]]
