"""The operators of latent attention as modules and functions: the plain form, in which keys and values are whole.

Queries, keys and values come from latent vectors of low rank (DeepSeek-V2, section 2.1). A head's queries and keys have
values that do not rotate, then some that do; those of keys are the same in all heads. Kernels of attention want heads
of one width: values are filled up with zeros to that of keys, and what these give is cut off again.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kareus.model.config import Model
from kareus.model.experts import LatentAttention
from kareus.model.functions import Context, RmsNormFunction
from kareus.model.layers import BlockColumnLinear, OperatorModule, add_weight, weight_of


class LatentNormFunction(Function):
    """Latent vectors of queries and of keys and values, each normalised, and the keys' values that rotate."""

    @staticmethod
    def forward(ctx: Any, latents: Tensor, sizes: tuple[int, int, int], norms: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Return the three, [batch, tokens, size]; a norm is None where queries are projected at once."""
        ctx.parts = [None if norm is None else Context() for norm in norms]
        *vectors, turning = torch.split(latents, list(sizes), dim=-1)
        normed = [
            vector.contiguous() if part is None else RmsNormFunction.forward(part, vector.contiguous(), *norm)
            for vector, part, norm in zip(vectors, ctx.parts, norms, strict=True)
        ]
        return *normed, turning.contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of latent vectors."""
        *vectors, turning = gradients
        parts: list[Any] = [
            vector if part is None else RmsNormFunction.backward(part, vector)[0]
            for vector, part in zip(vectors, ctx.parts, strict=True)
        ]
        return torch.cat([*parts, turning], dim=-1), None, None


class LatentRotateFunction(Function):
    """Queries, keys and values of heads, their last values rotated; keeps nothing but the angles."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys_values: Tensor,
        turning: Tensor,
        table: tuple[Tensor, Tensor],
        latent: LatentAttention,
        head_dim: int,
    ) -> tuple[Tensor, ...]:
        """Return them, each [batch, tokens, heads, head_dim]; values are filled up with zeros."""
        plain = head_dim - latent.rotary_dim
        query = _by_head(queries, head_dim)
        both = _by_head(keys_values, plain + latent.value_dim)
        keys, values = both[..., :plain], both[..., plain:]
        query = torch.cat((query[..., :plain], _rotated(query[..., plain:], table)), dim=-1)
        shared = _rotated(turning[:, :, None], table).expand(*keys.shape[:-1], -1)
        value = values.new_zeros(query.shape)
        value[..., : latent.value_dim] = values
        ctx.save_for_backward(*table)
        ctx.plain, ctx.latent = plain, latent
        return query, torch.cat((keys, shared), dim=-1), value

    @staticmethod
    def backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all three inputs."""
        cosine, sine = ctx.saved_tensors
        back, plain = (cosine, -sine), ctx.plain
        queries = torch.cat((query[..., :plain], _rotated(query[..., plain:], back)), dim=-1).flatten(2)
        keys_values = torch.cat((key[..., :plain], value[..., : ctx.latent.value_dim]), dim=-1).flatten(2)
        turning = _rotated(key[..., plain:].sum(2, keepdim=True), back)[:, :, 0]
        return queries, keys_values, turning, None, None, None


def _by_head(x: Tensor, width: int) -> Tensor:
    """Return [batch, tokens, heads * width] as [batch, tokens, heads, width]."""
    return x.reshape(*x.shape[:-1], -1, width)


def _rotated(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs that are half of the values apart, [batch, tokens, heads, values]."""
    cosine, sine = table
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


class CutFunction(Function):
    """The first values of each head, [batch, tokens, heads * head_dim] to [batch, tokens, heads * value_dim]."""

    @staticmethod
    def forward(ctx: Any, attended: Tensor, head_dim: int, value_dim: int) -> Tensor:
        """Return them."""
        ctx.head_dim, ctx.value_dim = head_dim, value_dim
        return _by_head(attended, head_dim)[..., :value_dim].flatten(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of all values."""
        heads = _by_head(gradient, ctx.value_dim)
        whole = heads.new_zeros(*heads.shape[:-1], ctx.head_dim)
        whole[..., : ctx.value_dim] = heads
        return whole.flatten(2), None, None


class LatentLinear(BlockColumnLinear):
    """Latent vectors, whole on every GPU of a tensor-parallel group.

    Heads are divided, so that a GPU has a part of the gradients of the weight and of the norms behind it: they have to
    be summed over the group before the optimizer steps.
    """


class LatentNorm(OperatorModule):
    """RMSNorms of latent vectors, which a product gives beside each other; whole as `LatentLinear` is."""

    function: type[Function] = LatentNormFunction

    def __init__(self, model: Model, latent: LatentAttention, dtype: torch.dtype) -> None:
        super().__init__()
        self._epsilon = model.norm_epsilon
        self._sizes = (latent.query_rank or model.query_width, latent.key_value_rank, latent.rotary_dim)
        self._names = (None if latent.query_rank is None else "query_weight", "key_value_weight")
        for name, size in zip(self._names, self._sizes, strict=False):
            if name is not None:
                add_weight(self, name, torch.ones(size, dtype=dtype))

    def settings(self) -> tuple[Any, ...]:
        """Of latent vectors, [batch, tokens, all sizes]."""
        norms = (None if n is None else (*weight_of(self, n, f"{n}_gradient"), self._epsilon) for n in self._names)
        return self._sizes, tuple(norms)


class LatentRotary(OperatorModule):
    """Heads out of what products make of latent vectors, queries and keys rotated."""

    function: type[Function] = LatentRotateFunction

    def __init__(self, model: Model, latent: LatentAttention) -> None:
        super().__init__()
        self._settings = latent, model.head_dim

    def settings(self) -> tuple[LatentAttention, int]:
        """Of queries, keys and values, the keys' values that rotate, and the table of angles."""
        return self._settings


class CutValues(OperatorModule):
    """What heads give of values that are narrower than keys."""

    function: type[Function] = CutFunction

    def __init__(self, head_dim: int, value_dim: int) -> None:
        super().__init__()
        self._settings = head_dim, value_dim

    def settings(self) -> tuple[int, int]:
        """Of the output of attention."""
        return self._settings
