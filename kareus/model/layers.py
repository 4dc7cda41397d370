"""The operators of a block as modules: each leaf module is one operator, named by the attribute that holds it."""

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from kareus.model import attention, functions
from kareus.model.communication import copy_to_region, reduce_from_region

INITIAL_STD = 0.02
"""Of every weight matrix, as in GPT-2 and Megatron-LM's default."""
ROTARY_BASE = 500_000.0
"""Base of the rotary frequencies (Llama 3)."""

RotaryTable = tuple[Tensor, Tensor]
"""Cosines and sines of a rank's tokens, each [tokens, 1, head_dim / 2], fp32."""


def add_weight(module: nn.Module, name: str, value: Tensor) -> None:
    """Give `module` the parameter `name` and the fp32 buffer `<name>_gradient` that backward adds to."""
    module.register_parameter(name, nn.Parameter(value))
    module.register_buffer(f"{name}_gradient", torch.zeros_like(value, dtype=torch.float32), persistent=False)


class Linear(nn.Module):
    """A matrix product with the weight [outputs, inputs] that this GPU holds."""

    weight: Tensor
    weight_gradient: Tensor
    bias: Tensor
    bias_gradient: Tensor

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool = False) -> None:
        super().__init__()
        self.has_bias = bias
        add_weight(self, "weight", torch.empty(outputs, inputs, dtype=dtype).normal_(std=INITIAL_STD))
        if bias:
            add_weight(self, "bias", torch.zeros(outputs, dtype=dtype))

    def product(self, x: Tensor) -> Tensor:
        """Return x weight^T + bias, of this GPU's weight alone."""
        bias = (self.bias, self.bias_gradient) if self.has_bias else ()
        return functions.linear(x, self.weight, self.weight_gradient, *bias)


class ColumnParallelLinear(Linear):
    """Outputs are divided over the group, inputs are whole on every GPU."""

    def __init__(
        self, inputs: int, outputs: int, dtype: torch.dtype, group: ProcessGroup | None, *, bias: bool = False
    ) -> None:
        super().__init__(inputs, outputs, dtype, bias=bias)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]; backward all-reduces the gradient of x."""
        return self.product(copy_to_region(x, self.group))


class RowParallelLinear(Linear):
    """Inputs are divided over the group, outputs are summed over it."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, group: ProcessGroup | None) -> None:
        super().__init__(inputs, outputs, dtype)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs], all-reduced."""
        return reduce_from_region(self.product(x), self.group)


class Norm(nn.Module):
    """RMSNorm over the last dimension."""

    weight: Tensor
    weight_gradient: Tensor

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        add_weight(self, "weight", torch.ones(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, [..., size]."""
        return functions.rms_norm(x, self.weight, self.weight_gradient)


class QueryKeyNorm(nn.Module):
    """RMSNorm of every query and key head (Qwen 3).

    A GPU sees its own heads only: the gradients of both weights have to be summed over the tensor-parallel group
    before the optimizer steps.
    """

    query_weight: Tensor
    query_weight_gradient: Tensor
    key_weight: Tensor
    key_weight_gradient: Tensor

    def __init__(self, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        add_weight(self, "query_weight", torch.ones(head_dim, dtype=dtype))
        add_weight(self, "key_weight", torch.ones(head_dim, dtype=dtype))

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise both, [batch, tokens, heads, head_dim]."""
        return (
            functions.rms_norm(query, self.query_weight, self.query_weight_gradient),
            functions.rms_norm(key, self.key_weight, self.key_weight_gradient),
        )


class Rotary(nn.Module):
    """Rotary position embedding of queries and keys."""

    def forward(self, query: Tensor, key: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
        """Rotate both, [batch, tokens, heads, head_dim]."""
        return functions.rotate(query, *table), functions.rotate(key, *table)


class CausalAttention(nn.Module):
    """Grouped-query attention; gathers keys and values over the ranks that share a sequence."""

    def __init__(self, group: ProcessGroup | None) -> None:
        super().__init__()
        self.group = group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[batch, tokens, heads, head_dim] to [batch, tokens, query heads * head_dim]."""
        return attention.attention(query, key, value, self.group).flatten(2)


class SwiGlu(nn.Module):
    """The gated activation."""

    def forward(self, gate_up: Tensor) -> Tensor:
        """[..., 2 n], gate first, to [..., n]."""
        return functions.swiglu(gate_up)


class Residual(nn.Module):
    """Addition to the residual stream."""

    def forward(self, stream: Tensor, update: Tensor) -> Tensor:
        """Return their sum, [batch, tokens, hidden]."""
        return stream + update


def rotary_table(tokens: int, head_dim: int, group: ProcessGroup | None) -> RotaryTable:
    """Angles of the tokens that this rank holds of each sequence."""
    frequencies = ROTARY_BASE ** -(torch.arange(0, head_dim, 2) / head_dim)
    angles = (attention.positions(tokens, group)[:, None] * frequencies)[:, None, :]
    return angles.cos(), angles.sin()
