"""Causal grouped-query attention over a sequence that context parallelism shards, as in Llama 3 (section 3.3.2).

Each rank holds the queries, keys and values of two chunks of the sequence and attends to all keys and values, gathered
before. Only its own shard is kept: backward asks for them once more, and gives their gradients to be reduce-scattered.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from kareus.model.communication import Communicator, Tensors, group_rank, group_size
from kareus.model.fused.dispatch import cpu, device_type

MASK_ALIGNMENT = 16
"""Values that PyTorch's memory-efficient attention loads at once of a mask."""

Gather = Callable[[], Tensors]
"""Gathers the keys and values of all ranks, each [cp, batch, tokens, heads, head_dim]."""


class Chunk(NamedTuple):
    """Consecutive tokens of a sequence that one rank holds."""

    local: slice
    """Positions among the rank's tokens."""
    end: int
    """End of the tokens in the sequence; they attend to all before it."""


class Attended(NamedTuple):
    """Output of attention and what its backward needs of the softmax."""

    output: Tensor
    log_sum_exp: Tensor
    state: tuple[Any, ...]
    """Further inputs of a CUDA kernel's backward: lengths, and the random state of a dropout of 0."""


def chunks(tokens: int, group: Communicator | None) -> tuple[Chunk, ...]:
    """Chunks of this rank, which holds `tokens` of each sequence: of 2 cp, chunks r and 2 cp - 1 - r."""
    size, rank = group_size(group), group_rank(group)
    if size == 1:
        return (Chunk(slice(0, tokens), tokens),)
    half = tokens // 2
    return Chunk(slice(0, half), half * (rank + 1)), Chunk(slice(half, tokens), half * (2 * size - rank))


def positions(tokens: int, group: Communicator | None) -> Tensor:
    """Positions in the sequence of this rank's tokens, [tokens]."""
    of_rank = chunks(tokens, group)
    return torch.cat([torch.arange(c.end - (c.local.stop - c.local.start), c.end) for c in of_rank])


class Attention(Function):
    """Causal attention.

    Its arguments are queries, [batch, tokens, query heads, head_dim], the rank's tokens; keys, [batch, tokens,
    key-value heads, head_dim], or gathered, [cp, batch, tokens, key-value heads, head_dim], which heads of queries
    share in groups; values as keys; what is called in backward where keys and values are gathered, since they are not
    kept; the ranks that share the sequence; and with ALiBi how fast scores of each head of queries fall with the
    distance, fp32, [query heads], and the masks that were made of it; and what scores are multiplied by, None for one
    over the root of `head_dim`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        gather: Gather | None,
        group: Communicator | None,
        slopes: Tensor | None = None,
        masks: "Masks | None" = None,
        scale: float | None = None,
    ) -> Tensor:
        """Return [batch, tokens, query heads * head_dim]."""
        keys, values = (key, value) if gather is None else (_in_order(key), _in_order(value))
        parts = [
            _attend(query[:, c.local], keys[:, : c.end], values[:, : c.end], slopes, masks, scale)
            for c in chunks(query.shape[1], group)
        ]
        output = _joined([p.output for p in parts])
        kept = (key, value) if gather is None else ()
        ctx.save_for_backward(query, output, *(p.log_sum_exp for p in parts), *kept)
        ctx.group, ctx.gather, ctx.states = group, gather, [p.state for p in parts]
        ctx.slopes, ctx.masks, ctx.scale = slopes, masks, scale
        return output.flatten(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values; of gathered ones, those of all ranks' tokens."""
        query, output, *saved = ctx.saved_tensors
        gradient = gradient.reshape(output.shape)
        of_rank = chunks(query.shape[1], ctx.group)
        log_sum_exps, kept = saved[: len(of_rank)], saved[len(of_rank) :]
        keys, values = kept if ctx.gather is None else (_in_order(shards) for shards in ctx.gather())
        parts = []
        for chunk, log_sum_exp, state in zip(of_rank, log_sum_exps, ctx.states, strict=True):
            attending = (query[:, chunk.local], keys[:, : chunk.end], values[:, : chunk.end])
            attended = Attended(output[:, chunk.local], log_sum_exp, state)
            given = (ctx.slopes, ctx.masks, ctx.scale)
            parts.append(_attend_backward(gradient[:, chunk.local], attending, attended, *given))
        query_parts, *shared = zip(*parts, strict=True)
        whole = [p[0] if ctx.gather is None else _summed_by_rank(p[0], p[1], group_size(ctx.group)) for p in shared]
        return _joined(query_parts), *whole, None, None, None, None, None


def _in_order(gathered: Tensor) -> Tensor:
    """[cp, batch, tokens, ...], a rank's chunk of the front before its one of the back, to [batch, cp tokens, ...]."""
    front, back = gathered.chunk(2, dim=2)
    return torch.cat((*front.unbind(), *reversed(back.unbind())), dim=1)


def _summed_by_rank(front: Tensor, back: Tensor, size: int) -> Tensor:
    """Sum what a rank's two chunks give to the keys that they see, and hand it out to the ranks that hold these.

    Args:
        front: gradient for the first keys, up to the rank's chunk of the front, [batch, keys, ...]; is added to `back`.
        back: up to its chunk of the back; all of the front and more.
        size: of the group.

    Returns:
        [cp, batch, tokens, ...], a rank's chunk of the front before its one of the back.
    """
    back[:, : front.shape[1]].add_(front)
    batch, _, *rest = back.shape
    # Of 2 cp chunks, the back ends with the rank's own, that of place 2 cp - 1 - r; the front with that of place r.
    chunk = (back.shape[1] + front.shape[1]) // (2 * size + 1)
    summed = back.new_empty(size, batch, 2, chunk, *rest)
    pieces = back.view(batch, -1, chunk, *rest).movedim(1, 0)
    summed[:, :, 0] = pieces[:size]
    for rank, piece in zip(reversed(range(size)), pieces[size:], strict=False):
        summed[rank, :, 1] = piece
    if len(pieces) < 2 * size:
        summed[: 2 * size - len(pieces), :, 1] = 0
    return summed.flatten(2, 3)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Chunks of the rank's tokens, side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=1)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slopes: Tensor | None,
    masks: "Masks | None" = None,
    scale: float | None = None,
) -> Attended:
    """Attend from the last tokens of a sequence to all of it."""
    inputs = [t.transpose(1, 2) for t in (query, key, value)]
    if device_type(query) == "cpu":
        output, log_sum_exp, *state = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *inputs, attn_mask=_mask(query, key, slopes), scale=scale
        )
    elif slopes is not None:
        output, log_sum_exp, *state = torch.ops.aten._scaled_dot_product_efficient_attention(
            *inputs, _masks(masks).of_batch(query, key, slopes), compute_log_sumexp=True, scale=scale
        )
    else:
        # These are the kernels behind scaled_dot_product_attention. Called directly, the one for CUDA aligns its
        # causal mask to the end of the keys, and backward may run on keys that were gathered anew.
        output, log_sum_exp, *state, _ = torch.ops.aten._scaled_dot_product_flash_attention(
            *inputs, is_causal=True, scale=scale
        )
    return Attended(output.transpose(1, 2), log_sum_exp, tuple(state))


def _attend_backward(
    gradient: Tensor,
    attending: tuple[Tensor, Tensor, Tensor],
    part: Attended,
    slopes: Tensor | None,
    masks: "Masks | None" = None,
    scale: float | None = None,
) -> list[Tensor]:
    """Gradients of the query, key and value of `_attend`."""
    grad, *inputs, output = [t.transpose(1, 2) for t in (gradient, *attending, part.output)]
    if device_type(gradient) == "cpu":
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad,
            *inputs,
            output,
            part.log_sum_exp,
            0.0,
            is_causal=False,
            attn_mask=_mask(*attending[:2], slopes),
            scale=scale,
        )
    elif slopes is not None:
        mask, wanted = _masks(masks).of_batch(*attending[:2], slopes), [True, True, True, False]
        *gradients, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            grad, *inputs, mask, output, part.log_sum_exp, *part.state, 0.0, wanted, scale=scale
        )
    else:
        *lengths, seed, offset = part.state
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad,
            *inputs,
            output,
            part.log_sum_exp,
            *lengths,
            0.0,
            is_causal=True,
            philox_seed=seed,
            philox_offset=offset,
            scale=scale,
        )
    return [g.transpose(1, 2) for g in gradients]


def alibi_slopes(heads: int) -> Tensor:
    """How fast the scores of each of a model's heads fall with the distance, fp32, [heads] (Press et al., ICLR 2022).

    Of a power of two of heads, head n of them has 2^(-8 n / heads). Another number takes those of the next larger one,
    every second of them first (llm-foundry's and transformers' MPT).
    """
    larger = 2 ** math.ceil(math.log2(heads))
    slopes = torch.exp2(-8 * torch.arange(1, larger + 1, dtype=torch.float32, device=cpu()) / larger)
    return slopes if larger == heads else torch.cat((slopes[1::2], slopes[::2]))[:heads]


def causal_mask(like: Tensor, queries: int, keys: int, slopes: Tensor | None) -> Tensor:
    """Return a mask to add to scores with which the last queries of a sequence are causal, [queries, keys].

    With slopes scores fall with the distance, and the mask is [1, query heads, queries, keys]. Its dtype and device are
    those of `like`.
    """
    mask = like.new_full((queries, keys), float("-inf")).triu(keys - queries + 1)
    if slopes is None:
        return mask
    places = torch.arange(keys, device=like.device)
    distances = torch.sub(places, places.narrow(0, keys - queries, queries).unsqueeze(1))
    return torch.add(torch.mul(slopes.view(-1, 1, 1), distances).to(mask.dtype), mask).unsqueeze(0)


def _mask(query: Tensor, key: Tensor, slopes: Tensor | None) -> Tensor:
    of_heads = None if slopes is None else slopes.to(query.device)
    return causal_mask(query, query.shape[1], key.shape[1], of_heads)


class Masks:
    """Masks of ALiBi for PyTorch's memory-efficient attention, each made once, for all blocks and passes."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}

    def of_batch(self, query: Tensor, key: Tensor, slopes: Tensor) -> Tensor:
        """Return the mask of all sequences, [batch, heads, queries, keys], in memory for one.

        Its rows are as far apart as the kernel loads them.
        """
        batch, queries, keys = len(query), query.shape[1], key.shape[1]
        place = (queries, keys, query.dtype, query.device)
        if place not in self._made:
            self._made[place] = functional.pad(_mask(query, key, slopes), (0, -keys % MASK_ALIGNMENT))
        return self._made[place].narrow(-1, 0, keys).expand(batch, -1, -1, -1)


@cache
def shared_masks(heads: int, first: int, count: int) -> Masks:
    """Return the masks of `count` query heads from `first` on, of a model with `heads`; the same ones at each call."""
    return Masks()


def _masks(masks: Masks | None) -> Masks:
    """Return `masks`, or some for a single pass."""
    return Masks() if masks is None else masks
