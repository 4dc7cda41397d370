"""Attention that is not fused, as several operators: scores, softmax, dropout if there is one, and the mix of values.

Its scores, [batch, heads, queries, keys], are written and read by each. Frameworks had this before FlashAttention; here
it is traced to predict them. Every product computes the masked half of the scores too, and the softmax scales and masks
in one kernel (Megatron-LM). Training runs `kareus.model.layers.CausalAttention`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kareus.model.attention import causal_mask
from kareus.model.layers import OperatorModule

DROPOUT = 0.1
"""Share of the probabilities that is dropped; no size depends on it."""


class _ScoresFunction(Function):
    """Product of queries and keys; keeps both."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor) -> Tensor:
        """Return [batch, query heads, queries, keys]."""
        ctx.save_for_backward(query, key)
        return _unflattened(torch.bmm(_flattened(query), _flattened(_repeated(key, query)).transpose(1, 2)), query)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of queries and keys."""
        query, key = ctx.saved_tensors
        flat = gradient.flatten(0, 1)
        query_gradient = torch.bmm(flat, _flattened(_repeated(key, query)))
        key_gradient = torch.bmm(flat.transpose(1, 2), _flattened(query))
        return _heads_last(query_gradient, query), _summed(_heads_last(key_gradient, query), key)


class _SoftmaxFunction(Function):
    """Softmax of scaled and masked scores; keeps its output."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, scale: float, slopes: Tensor | None) -> Tensor:
        """Return probabilities."""
        mask = causal_mask(scores, scores.shape[-2], scores.shape[-1], slopes)
        probabilities = torch.softmax((scores * scale + mask).float(), -1).to(scores.dtype)
        ctx.save_for_backward(probabilities)
        ctx.scale = scale
        return probabilities

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the scores."""
        (probabilities,) = ctx.saved_tensors
        weighted = gradient * probabilities
        return (weighted - probabilities * weighted.sum(-1, keepdim=True)) * ctx.scale, None, None


class _DropoutFunction(Function):
    """Dropout; keeps one byte a value."""

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor) -> Tensor:
        """Return what is left, scaled up."""
        dropped, mask = torch.native_dropout(probabilities, DROPOUT, train=True)
        ctx.save_for_backward(mask)
        return dropped

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of the probabilities."""
        dropped: Tensor = torch.ops.aten.native_dropout_backward(gradient, ctx.saved_tensors[0], 1 / (1 - DROPOUT))
        return dropped


class _MixingFunction(Function):
    """Product of probabilities and values; keeps both."""

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor, value: Tensor) -> Tensor:
        """Return the mixed values, shape (batch, queries, query heads * head_dim)."""
        ctx.save_for_backward(probabilities, value)
        mixed = torch.bmm(probabilities.flatten(0, 1), _flattened(_repeated(value, probabilities.transpose(1, 2))))
        return mixed.view(*probabilities.shape[:2], *mixed.shape[1:]).transpose(1, 2).flatten(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of probabilities and values."""
        probabilities, value = ctx.saved_tensors
        like = probabilities.transpose(1, 2)
        arriving = gradient.reshape(*like.shape[:3], value.shape[-1])
        # Each product puts its operands in order by itself, so that none has an output of the other's.
        probabilities_gradient = torch.bmm(_flattened(arriving), _flattened(_repeated(value, like)).transpose(1, 2))
        value_gradient = torch.bmm(probabilities.flatten(0, 1).transpose(1, 2), _flattened(arriving))
        return probabilities_gradient.view_as(probabilities), _summed(_heads_last(value_gradient, like), value)


class Scores(OperatorModule):
    """Products of each query with each key, masked ones too.

    Takes queries and keys, [batch, tokens, heads, head_dim]; returns [batch, query heads, queries, keys].
    """

    memory_bound = False
    function: type[Function] = _ScoresFunction


class ScaledMaskedSoftmax(OperatorModule):
    """Softmax over the keys; scaling and masking are in the same kernel."""

    function: type[Function] = _SoftmaxFunction

    def __init__(self, head_dim: int, slopes: Tensor | None) -> None:
        super().__init__()
        self.scale = head_dim**-0.5
        self._slopes = slopes

    def settings(self) -> tuple[Any, ...]:
        """Return the scale of scores, and the slopes of ALiBi."""
        return self.scale, self._slopes


class Dropout(OperatorModule):
    """Dropout of probabilities."""

    function: type[Function] = _DropoutFunction


class Mixing(OperatorModule):
    """Sums of values, weighted by probabilities.

    Takes probabilities and values, [batch, tokens, heads, head_dim]; returns [batch, tokens, query heads * head_dim].
    """

    memory_bound = False
    function: type[Function] = _MixingFunction


def _flattened(x: Tensor) -> Tensor:
    """[batch, tokens, heads, head_dim] to [batch * heads, tokens, head_dim]."""
    return x.transpose(1, 2).flatten(0, 1)


def _heads_last(x: Tensor, like: Tensor) -> Tensor:
    """[batch * heads, tokens, head_dim] to [batch, tokens, heads, head_dim], batch and heads as in `like`."""
    return x.view(like.shape[0], like.shape[2], *x.shape[1:]).transpose(1, 2)


def _unflattened(scores: Tensor, query: Tensor) -> Tensor:
    """[batch * heads, queries, keys] to [batch, heads, queries, keys]."""
    return scores.view(query.shape[0], query.shape[2], *scores.shape[1:])


def _repeated(shared: Tensor, query: Tensor) -> Tensor:
    """Keys or values, [batch, tokens, heads, head_dim], of each head of queries."""
    return shared.index_select(2, _shared_head(shared, query))


def _summed(gradient: Tensor, shared: Tensor) -> Tensor:
    """Sum the gradients of the heads of queries that share a head of keys or values."""
    return gradient.new_zeros(shared.shape).index_add_(2, _shared_head(shared, gradient), gradient)


def _shared_head(shared: Tensor, query: Tensor) -> Tensor:
    """Return the number of the head of keys and values that each head of queries reads."""
    heads = query.shape[2]
    return torch.arange(heads, device=query.device) * shared.shape[2] // heads
