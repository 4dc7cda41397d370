"""One transformer block of the Llama/Qwen family: the definition that is traced and that training runs.

Hidden states are [batch, tokens, hidden]; a nanobatch is a slice of the batch. A block is two layers, and a layer is a
straight line of operators over named values: called, it runs them one after the other; an engine may run each apart.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.layers import (
    CausalAttention,
    ColumnParallelLinear,
    HeadSplit,
    Norm,
    OperatorModule,
    QueryKeyNorm,
    Residual,
    Rotary,
    RotaryTable,
    RowParallelLinear,
    SwiGlu,
)
from kareus.model.shards import Shard

INPUT, TABLE, OUTPUT = "hidden", "table", "output"
"""Values that every layer starts with and ends with."""


class Wire(NamedTuple):
    """One operator of a layer, and the values that it reads and writes."""

    name: str
    operator: OperatorModule | HeadSplit
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Layer(nn.Module):
    """A straight line of operators; every value is written once."""

    wires: tuple[Wire, ...]

    def forward(self, hidden: Tensor, table: RotaryTable) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        values: dict[str, Any] = {INPUT: hidden, TABLE: table}
        for wire in self.wires:
            written = wire.operator(*(values[name] for name in wire.reads))
            values.update(zip(wire.writes, written if isinstance(written, tuple) else (written,), strict=True))
        output: Tensor = values[OUTPUT]
        return output


class AttentionLayer(Layer):
    """Norm, attention and residual addition."""

    def __init__(self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        heads = [shard.query_heads, shard.key_value_heads, shard.key_value_heads]
        width = shard.query_heads * shard.head_dim
        self.norm = Norm(shard.hidden_size, dtype, model.norm_epsilon)
        self.qkv = ColumnParallelLinear(
            shard.hidden_size, sum(heads) * shard.head_dim, dtype, mesh.tp, bias=model.qkv_bias
        )
        self.qk_norm = QueryKeyNorm(shard.head_dim, dtype, model.norm_epsilon) if model.qk_norm else None
        self.rope = Rotary()
        self.attention = CausalAttention(mesh.cp)
        self.projection = RowParallelLinear(width, shard.hidden_size, dtype, mesh.tp)
        self.residual = Residual()
        qk_norm = [Wire("qk_norm", self.qk_norm, ("q", "k"), ("normed_q", "normed_k"))] if self.qk_norm else []
        plain = ("normed_q", "normed_k") if self.qk_norm else ("q", "k")
        self.wires = (
            Wire("norm", self.norm, (INPUT,), ("normed",)),
            Wire("qkv", self.qkv, ("normed",), ("qkv",)),
            Wire("split", HeadSplit(shard.head_dim, heads), ("qkv",), ("q", "k", "v")),
            *qk_norm,
            Wire("rope", self.rope, (*plain, TABLE), ("rotated_q", "rotated_k")),
            Wire("attention", self.attention, ("rotated_q", "rotated_k", "v"), ("mixed",)),
            Wire("projection", self.projection, ("mixed",), ("update",)),
            Wire("residual", self.residual, (INPUT, "update"), (OUTPUT,)),
        )


class Mlp(Layer):
    """Norm, SwiGLU feed-forward and residual addition."""

    def __init__(self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = Norm(shard.hidden_size, dtype, model.norm_epsilon)
        self.gate_up = ColumnParallelLinear(shard.hidden_size, 2 * shard.intermediate_size, dtype, mesh.tp)
        self.activation = SwiGlu()
        self.down = RowParallelLinear(shard.intermediate_size, shard.hidden_size, dtype, mesh.tp)
        self.residual = Residual()
        self.wires = (
            Wire("norm", self.norm, (INPUT,), ("normed",)),
            Wire("gate_up", self.gate_up, ("normed",), ("gate_up",)),
            Wire("activation", self.activation, ("gate_up",), ("gated",)),
            Wire("down", self.down, ("gated",), ("update",)),
            Wire("residual", self.residual, (INPUT, "update"), (OUTPUT,)),
        )


class Block(nn.Module):
    """Attention, then MLP.

    Weights are this GPU's shards: `qkv` holds rows of its queries, keys and values in this order, `gate_up` its
    gate rows before its up rows.
    """

    def __init__(self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention = AttentionLayer(model, shard, mesh, dtype)
        self.mlp = Mlp(model, shard, mesh, dtype)

    def forward(self, hidden: Tensor, table: RotaryTable) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        out: Tensor = self.mlp(self.attention(hidden, table), table)
        return out
