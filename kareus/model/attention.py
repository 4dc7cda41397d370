"""Causal grouped-query attention over a sequence that context parallelism shards, as in Llama 3 (section 3.3.2).

Each rank holds the queries, keys and values of two chunks of the sequence and gathers all keys and values
before it attends. Only its own shard is kept: backward gathers once more, and reduce-scatters the gradients.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from kareus.model.communication import all_gather, group_rank, group_size, reduce_scatter
from kareus.model.functions import apply


class Chunk(NamedTuple):
    """Consecutive tokens of a sequence that one rank holds."""

    local: slice
    """Where they stand among the rank's tokens."""
    end: int
    """Where they end in the sequence; they attend to all before it."""


class Attended(NamedTuple):
    """Output of attention and what its backward needs of the softmax."""

    output: Tensor
    log_sum_exp: Tensor
    state: tuple[Any, ...]
    """What else the backward of a CUDA kernel asks for: lengths, and the random state of a dropout of 0."""


def chunks(tokens: int, group: dist.ProcessGroup | None) -> tuple[Chunk, ...]:
    """Chunks of this rank, which holds `tokens` of each sequence: of 2 cp, chunks r and 2 cp - 1 - r."""
    size, rank = group_size(group), group_rank(group)
    if size == 1:
        return (Chunk(slice(0, tokens), tokens),)
    half = tokens // 2
    return Chunk(slice(0, half), half * (rank + 1)), Chunk(slice(half, tokens), half * (2 * size - rank))


def positions(tokens: int, group: dist.ProcessGroup | None) -> Tensor:
    """Positions in the sequence of this rank's tokens, [tokens]."""
    held = chunks(tokens, group)
    return torch.cat([torch.arange(c.end - (c.local.stop - c.local.start), c.end) for c in held])


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        if group_size(group) > 1:
            key, value = key.contiguous(), value.contiguous()  # sent twice, and all that is kept
        keys, values = _gathered((key, value), group)
        parts = [
            _attend(query[:, c.local], keys[:, : c.end], values[:, : c.end]) for c in chunks(query.shape[1], group)
        ]
        output = _joined([p.output for p in parts])
        ctx.save_for_backward(query, key, value, output, *(p.log_sum_exp for p in parts))
        ctx.group, ctx.states = group, [p.state for p in parts]
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, *log_sum_exps = ctx.saved_tensors
        keys, values = _gathered((key, value), ctx.group)
        parts = []
        held = chunks(query.shape[1], ctx.group)
        for chunk, log_sum_exp, state in zip(held, log_sum_exps, ctx.states, strict=True):
            attending = (query[:, chunk.local], keys[:, : chunk.end], values[:, : chunk.end])
            attended = Attended(output[:, chunk.local], log_sum_exp, state)
            parts.append(_attend_backward(gradient[:, chunk.local], attending, attended))
        query_parts, *prefixes = zip(*parts, strict=True)
        key_gradient, value_gradient = _scattered([_prefix_sum(p, keys) for p in prefixes], ctx.group)
        return _joined(query_parts), key_gradient, value_gradient, None


def attention(query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Attend causally.

    Args:
        query: [batch, tokens, query heads, head_dim], the rank's tokens.
        key: [batch, tokens, key-value heads, head_dim]; heads of queries share them in groups.
        value: as `key`.
        group: ranks that share the sequence.

    Returns:
        [batch, tokens, query heads, head_dim].
    """
    return apply(_Attention, query, key, value, group)


def _gathered(shards: Sequence[Tensor], group: dist.ProcessGroup | None) -> Sequence[Tensor]:
    """Gather shards, [batch, tokens, ...], to whole sequences in order, [batch, cp tokens, ...]."""
    if group is None or group_size(group) == 1:
        return shards
    by_rank = [all_gather(shard, group) for shard in shards]  # both before any copy, so that they can be fused
    return [_in_order(gathered) for gathered in by_rank]


def _in_order(gathered: Tensor) -> Tensor:
    """[cp, batch, tokens, ...], a rank's chunk of the front before its one of the back, to [batch, cp tokens, ...]."""
    front, back = gathered.chunk(2, dim=2)
    return torch.cat((front, back.flip(0))).movedim(0, 1).flatten(1, 2)


def _scattered(gradients: Sequence[Tensor], group: dist.ProcessGroup | None) -> Sequence[Tensor]:
    """Sum gradients of whole sequences over the ranks and return this rank's tokens: the transpose of `_gathered`."""
    if group is None or group_size(group) == 1:
        return gradients
    by_rank = [_by_rank(g, group_size(group)) for g in gradients]  # before both collectives, so that they can be fused
    return [reduce_scatter(gradient, group) for gradient in by_rank]


def _by_rank(ordered: Tensor, size: int) -> Tensor:
    """[batch, cp tokens, ...] to [cp, batch, tokens, ...]."""
    batch, tokens, *rest = ordered.shape
    front, back = ordered.view(batch, 2 * size, tokens // (2 * size), *rest).movedim(1, 0).chunk(2)
    return torch.cat((front, back.flip(0)), dim=2)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Chunks of the rank's tokens, side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=1)


def _prefix_sum(parts: Sequence[Tensor], whole: Tensor) -> Tensor:
    """Sum gradients of prefixes of a sequence into one of its whole length."""
    if len(parts) == 1:
        return parts[0]
    total = torch.zeros_like(whole)
    for part in parts:
        total[:, : part.shape[1]].add_(part)
    return total


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Attended:
    """Attend from the last tokens of a sequence to all of it."""
    inputs = [t.transpose(1, 2) for t in (query, key, value)]
    if query.is_cuda:
        # These are the kernels behind scaled_dot_product_attention. Called directly, the one for CUDA aligns its
        # causal mask to the end of the keys, and backward may run on keys that were gathered anew.
        output, log_sum_exp, *state, _ = torch.ops.aten._scaled_dot_product_flash_attention(*inputs, is_causal=True)
    else:
        output, log_sum_exp, *state = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *inputs, attn_mask=_mask(query, key)
        )
    return Attended(output.transpose(1, 2), log_sum_exp, tuple(state))


def _attend_backward(gradient: Tensor, attending: tuple[Tensor, Tensor, Tensor], part: Attended) -> list[Tensor]:
    """Gradients of the query, key and value of `_attend`."""
    inputs = [t.transpose(1, 2) for t in (gradient, *attending, part.output)]
    if gradient.is_cuda:
        *lengths, seed, offset = part.state
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *inputs, part.log_sum_exp, *lengths, 0.0, is_causal=True, philox_seed=seed, philox_offset=offset
        )
    else:
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *inputs, part.log_sum_exp, 0.0, is_causal=False, attn_mask=_mask(attending[0], attending[1])
        )
    return [g.transpose(1, 2) for g in gradients]


def _mask(query: Tensor, key: Tensor) -> Tensor:
    """What to add to scores, [queries, keys], so that the last queries of a sequence see nothing after themselves."""
    queries, keys = query.shape[1], key.shape[1]
    return query.new_full((queries, keys), float("-inf")).triu(keys - queries + 1)
