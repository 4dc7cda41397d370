"""Operators around the blocks: the embedding before them, and final norm, LM head and loss after them.

All are divided over the vocabulary. Where the LM head shares the embedding's weights and both are on one stage,
assign `head.lm_head.weight` and its gradient from the embedding's; on different stages each holds a copy.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from kareus.model import fused
from kareus.model.attention import chunks
from kareus.model.communication import Communicator, Mesh, all_reduce, group_rank, leaving
from kareus.model.config import Model
from kareus.model.functions import add_or_put_off, apply
from kareus.model.layers import INITIAL_STD, ColumnParallelLinear, Norm, OperatorModule, add_weight
from kareus.model.shards import Shard


class _Lookup(Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids: Tensor,
        weight: Tensor,
        weight_gradient: Tensor,
        first: int,
        added: Tensor | None,
        add_positions: Callable[[Tensor], None] | None,
        scale: float = 1.0,
    ) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight_gradient, ctx.first, ctx.add_positions = weight_gradient, first, add_positions
        ctx.scale = scale
        looked_up = fused.embed(ids, weight, first, added)
        return looked_up if scale == 1 else looked_up.mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        (ids,), weight_gradient, first = ctx.saved_tensors, ctx.weight_gradient, ctx.first
        gradient = gradient if ctx.scale == 1 else gradient * ctx.scale
        add_or_put_off(lambda: fused.embed_backward(gradient, ids, first, weight_gradient))
        if ctx.add_positions is not None:
            add_or_put_off(partial(ctx.add_positions, gradient))
        return None, None, None, None, None, None, None


class _CrossEntropy(Function):
    """Keeps the logits, into which their gradient is written, and one number per token.

    Eager operations hold 6 bytes a logit, the bf16 input and one fp32 copy of it; the fused ones hold the input alone.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: Communicator | None) -> Tensor:
        if group is None:
            loss, log_sum_exp = fused.cross_entropy(logits, *_own_rows(labels, logits, group))
        else:
            maximum = fused.maxima(logits)
            all_reduce(maximum, group, dist.ReduceOp.MAX)
            total, labelled = fused.exponentials(logits, maximum, *_own_rows(labels, logits, group))
            all_reduce(total, group)
            all_reduce(labelled, group)
            loss, log_sum_exp = fused.mean_loss(total, labelled, maximum)
        ctx.save_for_backward(logits, labels, log_sum_exp)
        ctx.group = group
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, log_sum_exp = ctx.saved_tensors
        rows, mine = _own_rows(labels, logits, ctx.group)
        fused.cross_entropy_backward_(logits, log_sum_exp, rows, mine, gradient / labels.numel())
        return logits, None, None


def _own_rows(labels: Tensor, logits: Tensor, group: Communicator | None) -> tuple[Tensor, Tensor]:
    rows = logits.shape[-1]
    return fused.own_rows(labels, rows, rows * group_rank(group))


class Embedding(OperatorModule):
    """Token embedding, its rows divided over the tensor-parallel group, and learned positions, whole on every GPU.

    The first GPU of the group adds the positions, so that the sum over the group has them once. Each has the whole
    gradient of that sum, and so the same gradient of the positions.
    """

    weight: Tensor
    weight_gradient: Tensor
    positions: Tensor
    positions_gradient: Tensor

    def __init__(self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__(after=leaving(mesh))
        self.first_row = shard.vocab_rows * group_rank(mesh.tp)
        self._mesh = mesh
        self._offset, self._scale = model.position_offset, model.embedding_scale
        self.has_positions = model.max_positions is not None
        tables = {"weight": shard.vocab_rows}
        if model.max_positions is not None:
            tables["positions"] = model.max_positions + model.position_offset
        for name, rows in tables.items():
            add_weight(self, name, torch.empty(rows, shard.hidden_size, dtype=dtype).normal_(std=INITIAL_STD))

    def compute(self, ids: Tensor) -> Tensor:
        """[batch, tokens] to [batch, tokens, hidden], zero where another GPU has the row."""
        lookup = ids, self.weight, self.weight_gradient, self.first_row
        if not self.has_positions:
            return self._looked_up(*lookup, None, None)
        adds = group_rank(self._mesh.tp) == 0
        return self._looked_up(*lookup, self._added(ids.shape[1]) if adds else None, self._add_gradient)

    def _looked_up(self, *arguments: Any) -> Tensor:
        looked_up: Tensor = apply(_Lookup, *arguments, self._scale)
        return looked_up

    def _added(self, tokens: int) -> Tensor:
        """Rows of the positions of this rank's tokens, [tokens, hidden]."""
        parts = [self.positions[rows] for rows, _ in self._rows(tokens)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _add_gradient(self, gradient: Tensor) -> None:
        """Add that of the positions, from the gradient of the sum, [batch, tokens, hidden]."""
        fused.add_over_sequences(gradient, self.positions_gradient, self._rows(gradient.shape[1]))

    def _rows(self, tokens: int) -> list[tuple[slice, slice]]:
        """Of each chunk of this rank's tokens its positions, and its place among the tokens."""
        ends = [(c.end + self._offset, c.local) for c in chunks(tokens, self._mesh.cp)]
        return [(slice(end - (local.stop - local.start), end), local) for end, local in ends]


class Loss(nn.Module):
    """Cross-entropy over logits that are divided over the vocabulary; keeps the logits and one number per token."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self.group = mesh.tp

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean over this rank's tokens of [batch, tokens, vocabulary rows] against labels [batch, tokens]."""
        loss: Tensor = apply(_CrossEntropy, logits, labels, self.group)
        return loss


class Head(nn.Module):
    """Final norm, LM head and loss.

    With sequence parallelism the gathered input of the LM head is kept whole: its backward follows at once, and the
    logits are many times as large.
    """

    def __init__(self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = Norm(model, shard.hidden_size, dtype)
        self.lm_head = ColumnParallelLinear(
            shard.hidden_size, shard.vocab_rows, dtype, mesh, bias=model.head_bias, scale=model.logit_scale
        )
        self.loss = Loss(mesh)

    def logits(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, hidden] to [batch, tokens, vocabulary rows of this GPU]."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """[batch, tokens, hidden] and [batch, tokens] to the mean loss."""
        loss: Tensor = self.loss(self.logits(hidden), labels)
        return loss
