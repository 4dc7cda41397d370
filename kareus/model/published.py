"""Names and places of weights in published checkpoints: by other names than Llama's, fused, transposed or reordered.

Names of whole weights are Llama's everywhere else: in training's checkpoints too. Norms after attention and after the
MLP, which Llama lacks, have the names of GLM 4, routers and experts those of Qwen 3, shared experts those of
DeepSeek-V3. Another architecture is a row of `WEIGHT_NAMES`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from kareus.model.config import Model, PositionKind
from kareus.model.experts import LatentAttention

PREFIX = "transformer."
"""Begins all names of GPT-2 and MPT, and is left out in older checkpoints."""


class HeadOrder(StrEnum):
    """Order of the rows of a product of queries, keys and values."""

    APART = "apart"
    """All queries, all keys, all values."""
    BY_HEAD = "by-head"
    """Query, key and value of each head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """How checkpoints of one architecture differ from Llama's."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Parts of names and what stands for them, in the order in which they are replaced."""
    heads: str | None = None
    """Name of the product of queries, keys and values in an attention layer; None where each is a weight."""
    order: HeadOrder = HeadOrder.APART
    """Of that product."""
    gate_up: str | None = None
    """Name of the product of gate and up; None where each is a weight."""
    transposed: bool = False
    """Whether matrices of the blocks have rows and columns exchanged."""
    offset_norms: bool = False
    """Whether norms multiply by one more than their weight."""
    adjacent: bool = False
    """Whether values that rotate together are beside each other in a head, not half a head apart."""


_ENDS = {"model.embed_tokens": "transformer.wte", "model.embed_positions": "transformer.wpe"}
_GPTJ = WeightNames(
    names={
        **_ENDS,
        "model.norm": "transformer.ln_f",
        "model.layers": "transformer.h",
        "input_layernorm": "ln_1",
        "self_attn.o_proj": "attn.out_proj",
        "self_attn": "attn",
        "mlp.up_proj": "mlp.fc_in",
        "mlp.down_proj": "mlp.fc_out",
    },
    adjacent=True,
)
WEIGHT_NAMES: Mapping[str, WeightNames] = {
    "gpt2": WeightNames(
        names={
            **_ENDS,
            "model.norm": "transformer.ln_f",
            "model.layers": "transformer.h",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.o_proj": "attn.c_proj",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        },
        heads="attn.c_attn",
        transposed=True,
    ),
    "mpt": WeightNames(
        names={
            **_ENDS,
            "model.norm": "transformer.norm_f",
            "model.layers": "transformer.blocks",
            "input_layernorm": "norm_1",
            "post_attention_layernorm": "norm_2",
            "self_attn.o_proj": "attn.out_proj",
            "mlp.up_proj": "ffn.up_proj",
            "mlp.down_proj": "ffn.down_proj",
        },
        heads="attn.Wqkv",
    ),
    "cohere": WeightNames(adjacent=True),
    "ernie4_5": WeightNames(adjacent=True),
    "falcon": WeightNames(
        names={
            "model.embed_tokens": "transformer.word_embeddings",
            "model.norm": "transformer.ln_f",
            "model.layers": "transformer.h",
            "self_attn.o_proj": "self_attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        heads="self_attention.query_key_value",
    ),
    "gemma": WeightNames(offset_norms=True),
    "glm": WeightNames(gate_up="mlp.gate_up_proj", adjacent=True),
    "glm4": WeightNames(gate_up="mlp.gate_up_proj", adjacent=True),
    "gpt_neox": WeightNames(
        names={
            "model.embed_tokens": "gpt_neox.embed_in",
            "model.norm": "gpt_neox.final_layer_norm",
            "model.layers": "gpt_neox.layers",
            "lm_head": "embed_out",
            "self_attn.o_proj": "attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        heads="attention.query_key_value",
        order=HeadOrder.BY_HEAD,
    ),
    "gptj": _GPTJ,
    "mixtral": WeightNames(
        names={
            "mlp.gate.": "block_sparse_moe.gate.",
            "mlp.experts.": "block_sparse_moe.experts.",
            "gate_proj": "w1",
            "up_proj": "w3",
            "down_proj": "w2",
        }
    ),
    "helium": WeightNames(adjacent=True),
    "nemotron": WeightNames(offset_norms=True),
    "olmo2": WeightNames(
        names={
            "post_self_attn_layernorm": "post_attention_layernorm",
            "post_mlp_layernorm": "post_feedforward_layernorm",
        }
    ),
    "opt": WeightNames(
        names={
            "model.norm": "model.decoder.final_layer_norm",
            "model.": "model.decoder.",
            "model.decoder.decoder.": "model.decoder.",
            "input_layernorm": "self_attn_layer_norm",
            "post_attention_layernorm": "final_layer_norm",
            "self_attn.o_proj": "self_attn.out_proj",
            "mlp.up_proj": "fc1",
            "mlp.down_proj": "fc2",
        }
    ),
    "phi": WeightNames(
        names={
            "model.norm": "model.final_layernorm",
            "self_attn.o_proj": "self_attn.dense",
            "mlp.up_proj": "mlp.fc1",
            "mlp.down_proj": "mlp.fc2",
        }
    ),
    "phi3": WeightNames(heads="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"),
    "qwen2_moe": WeightNames(names={"mlp.shared_experts.": "mlp.shared_expert."}),
    "starcoder2": WeightNames(names={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}),
}
"""By `model_type`; the others have Llama's names."""
_LLAMA = WeightNames()
_HEADS = re.compile(r"self_attn\.([qkv])_proj")
_GATE_UP = re.compile(r"mlp\.(gate|up)_proj")


class Picked(NamedTuple):
    """Rows of a tensor that are a weight: of each of `groups` equal groups, part `first` of `parts`."""

    groups: int
    parts: int
    first: int


class Published(NamedTuple):
    """Where a published checkpoint has a whole weight."""

    name: str
    first_row: int = 0
    """Row of the published tensor at which the weight begins."""
    rows: int | None = None
    """Rows of the published tensor; None if it is the weight alone."""
    transposed: bool = False
    """Whether rows and columns are exchanged there."""
    picked: Picked | None = None
    """Rows of the weight, where they are not one after the other."""
    turning: tuple[int, int, int] | None = None
    """Rows of a head, and the first and the end of those that rotate in adjacent pairs; None where pairs are half of
    them apart."""
    less: float = 0.0
    """What the published weight is less than ours."""

    @property
    def is_plain(self) -> bool:
        """Whether the weight is a slice of the tensor."""
        return self.picked is None and self.turning is None and self.less == 0


def weight_names_of(model: Model) -> WeightNames:
    """Return how the checkpoints of such a model differ from Llama's."""
    if model.checkpoint is not None:
        return WEIGHT_NAMES.get(model.checkpoint, _LLAMA)
    return WEIGHT_NAMES[{PositionKind.LEARNED: "gpt2", PositionKind.ALIBI: "mpt"}[model.positions]]


def published(model: Model, name: str) -> Published:
    """Return where the checkpoints of such a model have the weight that Llama names `name`."""
    if model.positions is PositionKind.ROPE and model.checkpoint is None:
        return Published(name)
    kind, head, gate = weight_names_of(model), _HEADS.search(name), _GATE_UP.search(name)
    transposed = kind.transposed and "_proj.weight" in name
    is_norm = name.endswith("norm.weight")
    turning = None
    if kind.adjacent and head is not None and head[1] in "qk":
        turning = (model.head_dim, 0, model.rotary_dim)
    if model.latent_attention is not None:
        turning = _turning_latents(model, model.latent_attention, name)
    renamed = name
    for ours, theirs in kind.names.items():
        renamed = renamed.replace(ours, theirs)
    place = Published(renamed, transposed=transposed, turning=turning, less=float(kind.offset_norms and is_norm))
    if head is not None and kind.heads is not None:
        return _of_heads(model, kind, place._replace(name=_with(name, kind, _HEADS, kind.heads)), "qkv".index(head[1]))
    if gate is not None and kind.gate_up is not None:
        first = 0 if gate[1] == "gate" else model.intermediate_size
        fused = _with(name, kind, _GATE_UP, kind.gate_up)
        return place._replace(name=fused, first_row=first, rows=model.mlp_input_width)
    return place


def _turning_latents(model: Model, latent: LatentAttention, name: str) -> tuple[int, int, int] | None:
    """Return what rotates of the rows of a weight of latent attention: the last of each head, or of the latents."""
    if name.endswith("kv_a_proj_with_mqa.weight"):
        size = latent.key_value_rank + latent.rotary_dim
    elif name.endswith(("self_attn.q_proj.weight", "q_b_proj.weight")):
        size = model.head_dim
    else:
        return None
    return size, size - latent.rotary_dim, size


def _with(name: str, kind: WeightNames, part: re.Pattern[str], fused: str) -> str:
    """Return the name of the product that a weight is fused in."""
    before, after = name[: (match := next(part.finditer(name))).start()], name[match.end() :]
    for ours, theirs in kind.names.items():
        before = before.replace(ours, theirs)
    return f"{before}{fused}{after}"


def _of_heads(model: Model, kind: WeightNames, place: Published, number: int) -> Published:
    """Return the rows of queries (0), keys (1) or values (2) of the product of all."""
    query, shared = model.query_width, model.key_value_width
    if kind.order is HeadOrder.BY_HEAD:
        return place._replace(rows=query + 2 * shared, picked=Picked(model.num_attention_heads, 3, number))
    return place._replace(first_row=(0, query, query + shared)[number], rows=query + 2 * shared)


def as_published(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole weights, of whole blocks, as published checkpoints have them."""
    parts: dict[str, list[tuple[int, Tensor]]] = {}
    for name, weight in weights.items():
        place = published(model, name)
        parts.setdefault(place.name, []).append((place.first_row, weight.t() if place.transposed else weight))
    merged = {}
    for name, tensors_of in parts.items():
        tensors = [tensor for _, tensor in sorted(tensors_of, key=lambda part: part[0])]
        transposed = len(tensors_of) > 1 and model.positions is PositionKind.LEARNED and tensors[0].dim() > 1
        merged[name] = torch.cat(tensors, dim=1 if transposed else 0).contiguous()
    return merged


def whole_weight(place: Published, shape: tuple[int, ...], tensor: Tensor) -> Tensor:
    """Return the whole weight of this shape, or its gradient, out of the tensor that holds it."""
    tensor = tensor.t() if place.transposed else tensor
    if place.picked is not None:
        groups, parts, first = place.picked
        rows = tensor.view(groups, parts, -1, *tensor.shape[1:])[:, first].flatten(0, 1)
    else:
        rows = tensor[place.first_row : place.first_row + shape[0]]
    if place.turning is None:
        return rows
    size, first, end = place.turning
    heads = rows.reshape(-1, size, *rows.shape[1:])
    pairs = (heads[:, first:end:2], heads[:, first + 1 : end : 2])
    return torch.cat((heads[:, :first], *pairs, heads[:, end:]), dim=1).flatten(0, 1)
