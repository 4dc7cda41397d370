"""One transformer block of the Llama/Qwen family: the definition that is traced and that training runs.

Hidden states are [batch, tokens, hidden]; a nanobatch is a slice of the batch. Each leaf module is one operator.
"""

import torch
from torch import Tensor, nn

from kareus.model.communication import Mesh
from kareus.model.layers import (
    CausalAttention,
    ColumnParallelLinear,
    Norm,
    QueryKeyNorm,
    Residual,
    Rotary,
    RotaryTable,
    RowParallelLinear,
    SwiGlu,
)
from kareus.model.shards import Shard
from kareus.workload.config import Model


class AttentionLayer(nn.Module):
    """Norm, attention and residual addition."""

    def __init__(self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = shard.head_dim
        self.heads = [shard.query_heads, shard.key_value_heads, shard.key_value_heads]
        width = shard.query_heads * shard.head_dim
        self.norm = Norm(shard.hidden_size, dtype)
        self.qkv = ColumnParallelLinear(
            shard.hidden_size, sum(self.heads) * shard.head_dim, dtype, mesh.tp, bias=model.qkv_bias
        )
        self.qk_norm = QueryKeyNorm(shard.head_dim, dtype) if model.qk_norm else None
        self.rope = Rotary()
        self.attention = CausalAttention(mesh.cp)
        self.projection = RowParallelLinear(width, shard.hidden_size, dtype, mesh.tp)
        self.residual = Residual()

    def forward(self, hidden: Tensor, table: RotaryTable) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        heads = self.qkv(self.norm(hidden)).unflatten(-1, (-1, self.head_dim))
        query, key, value = heads.split(self.heads, dim=2)
        if self.qk_norm is not None:
            query, key = self.qk_norm(query, key)
        query, key = self.rope(query, key, table)
        update: Tensor = self.projection(self.attention(query, key, value))
        summed: Tensor = self.residual(hidden, update)
        return summed


class Mlp(nn.Module):
    """Norm, SwiGLU feed-forward and residual addition."""

    def __init__(self, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = Norm(shard.hidden_size, dtype)
        self.gate_up = ColumnParallelLinear(shard.hidden_size, 2 * shard.intermediate_size, dtype, mesh.tp)
        self.activation = SwiGlu()
        self.down = RowParallelLinear(shard.intermediate_size, shard.hidden_size, dtype, mesh.tp)
        self.residual = Residual()

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        summed: Tensor = self.residual(hidden, self.down(self.activation(self.gate_up(self.norm(hidden)))))
        return summed


class Block(nn.Module):
    """Attention, then MLP.

    Weights are this GPU's shards: `qkv` holds rows of its queries, keys and values in this order, `gate_up` its
    gate rows before its up rows.
    """

    def __init__(self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention = AttentionLayer(model, shard, mesh, dtype)
        self.mlp = Mlp(shard, mesh, dtype)

    def forward(self, hidden: Tensor, table: RotaryTable) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        out: Tensor = self.mlp(self.attention(hidden, table))
        return out
