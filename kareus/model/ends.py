"""Operators around the blocks: the embedding before them, and final norm, LM head and loss after them.

All are divided over the vocabulary. Where the LM head shares the embedding's weights and both are on one stage,
assign `head.lm_head.weight` and its gradient from the embedding's; on different stages each holds a copy.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from kareus.model.communication import Communicator, Mesh, all_reduce, group_rank, leaving
from kareus.model.config import Model
from kareus.model.functions import add_or_put_off, apply
from kareus.model.layers import INITIAL_STD, ColumnParallelLinear, Norm, OperatorModule, add_weight
from kareus.model.shards import Shard


def _local(ids: Tensor, rows: int, group: Communicator | None) -> tuple[Tensor, Tensor]:
    """Row of each token id in this GPU's shard (0 for rows of other GPUs), and a mask of the ids in the shard."""
    shifted = ids - rows * group_rank(group)
    mine = (shifted >= 0) & (shifted < rows)
    return shifted * mine, mine


class _Lookup(Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, weight_gradient: Tensor, group: Communicator | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight_gradient, ctx.group = weight_gradient, group
        rows, mine = _local(ids, weight.shape[0], group)
        return functional.embedding(rows, weight) * mine.unsqueeze(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        ids, weight_gradient, group = ctx.saved_tensors[0], ctx.weight_gradient, ctx.group

        def add() -> None:
            rows, mine = _local(ids, weight_gradient.shape[0], group)
            update = (gradient * mine.unsqueeze(-1)).flatten(0, -2).float()
            weight_gradient.index_add_(0, rows.flatten(), update)

        add_or_put_off(add)
        return None, None, None, None


def _exponentials(logits: Tensor, less: Tensor) -> Tensor:
    """Return exp(logits - less) in fp32, [..., vocabulary rows]; the copy is all the memory that it takes."""
    return logits.to(torch.float32, copy=True).sub_(less.unsqueeze(-1)).exp_()


class _CrossEntropy(Function):
    """Cross-entropy that holds 6 bytes a logit, forward and backward.

    They are its bf16 input, into which the gradient is written, and one fp32 copy of it.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: Communicator | None) -> Tensor:
        maximum = logits.amax(-1).float()
        all_reduce(maximum, group, dist.ReduceOp.MAX)
        rows, mine = _local(labels, logits.shape[-1], group)
        total = _exponentials(logits, maximum).sum(-1)
        labelled = logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1).float() * mine
        all_reduce(total, group)
        all_reduce(labelled, group)
        log_sum_exp = total.log() + maximum
        ctx.save_for_backward(logits, labels, log_sum_exp)
        ctx.group = group
        return (log_sum_exp - labelled).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, log_sum_exp = ctx.saved_tensors
        rows, mine = _local(labels, logits.shape[-1], ctx.group)
        softmax = _exponentials(logits, log_sum_exp)
        softmax.scatter_add_(-1, rows.unsqueeze(-1), -mine.unsqueeze(-1).float())
        softmax.mul_(gradient / labels.numel())
        return logits.copy_(softmax), None, None


class Embedding(OperatorModule):
    """Token embedding, its rows divided over the tensor-parallel group."""

    weight: Tensor
    weight_gradient: Tensor

    def __init__(self, shard: Shard, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__(after=leaving(mesh))
        self.group = mesh.tp
        add_weight(
            self, "weight", torch.empty(shard.vocab_rows, shard.hidden_size, dtype=dtype).normal_(std=INITIAL_STD)
        )

    def compute(self, ids: Tensor) -> Tensor:
        """[batch, tokens] to [batch, tokens, hidden], zero where another GPU has the row."""
        looked_up: Tensor = apply(_Lookup, ids, self.weight, self.weight_gradient, self.group)
        return looked_up


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
        self.norm = Norm(shard.hidden_size, dtype, model.norm_epsilon)
        self.lm_head = ColumnParallelLinear(shard.hidden_size, shard.vocab_rows, dtype, mesh)
        self.loss = Loss(mesh)

    def logits(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, hidden] to [batch, tokens, vocabulary rows of this GPU]."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """[batch, tokens, hidden] and [batch, tokens] to the mean loss."""
        loss: Tensor = self.loss(self.logits(hidden), labels)
        return loss
