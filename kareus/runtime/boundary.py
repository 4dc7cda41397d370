"""Hidden states on their way from stage to stage: in parts, where the GPUs of a tensor-parallel group hold the same.

Each GPU of the group sends its part to its counterpart on the next stage, where the group gathers the whole when an
instruction begins (scatter-gather; see `kareus.pipeline.transfers`). With sequence parallelism a GPU's tokens are all
that it holds, and what the next one needs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kareus.model.communication import Communicator
from kareus.model.functions import apply
from kareus.pipeline.transfers import gathered_parts
from kareus.workload.config import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Sizes of what passes between stages."""

    num_microbatches: int
    microbatch_size: int
    tokens: int
    """Of a sequence, on this rank."""
    stream_tokens: int
    """Those of them whose hidden states this rank holds between blocks: its share with sequence parallelism."""
    hidden_size: int
    parts: int
    """Parts in which hidden states are sent; 1 where they are sent as they are."""
    dtype: torch.dtype

    @property
    def hidden(self) -> tuple[int, ...]:
        """Shape of the hidden states of a microbatch on this rank, [batch, tokens, hidden]."""
        return self.microbatch_size, self.stream_tokens, self.hidden_size

    @property
    def message(self) -> tuple[int, ...]:
        """Shape of what is sent of them."""
        batch, tokens, hidden = self.hidden
        return self.hidden if self.parts == 1 else (batch * tokens * hidden // self.parts,)


def boundary_shapes(workload: Workload, dtype: torch.dtype) -> Shapes:
    """Return the sizes of what passes between the stages of `workload`, in values of `dtype`."""
    parallelism, hidden_size = workload.parallelism, workload.model.hidden_size
    tokens = workload.sequence_length // parallelism.cp
    stream_tokens = tokens // parallelism.token_shards
    return Shapes(
        num_microbatches=workload.num_microbatches,
        microbatch_size=workload.microbatch_size,
        tokens=tokens,
        stream_tokens=stream_tokens,
        hidden_size=hidden_size,
        parts=gathered_parts(workload.microbatch_size * stream_tokens * hidden_size, parallelism),
        dtype=dtype,
    )


def gathered(message: Tensor, shapes: Shapes, group: Communicator | None) -> Tensor:
    """Return the hidden states of which `message` is this rank's part; backward returns the part of their gradient."""
    return message if group is None or shapes.parts == 1 else apply(_Gathered, message, shapes, group)


def sent_part(hidden: Tensor, shapes: Shapes, group: Communicator | None) -> Tensor:
    """Return what this rank sends of hidden states; backward gathers their gradient."""
    return hidden if group is None or shapes.parts == 1 else apply(_SentPart, hidden, shapes, group)


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, message: Tensor, shapes: Shapes, group: Communicator) -> Tensor:
        ctx.shapes, ctx.group = shapes, group
        return _whole(message, shapes, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _part(gradient, ctx.shapes, ctx.group), None, None


class _SentPart(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, shapes: Shapes, group: Communicator) -> Tensor:
        ctx.shapes, ctx.group = shapes, group
        return _part(hidden, shapes, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _whole(gradient, ctx.shapes, ctx.group), None, None


def _whole(message: Tensor, shapes: Shapes, group: Communicator) -> Tensor:
    (parts,) = group.all_gather((message.contiguous(),)).wait()
    return parts.view(shapes.hidden)


def _part(hidden: Tensor, shapes: Shapes, group: Communicator) -> Tensor:
    """Copy this rank's part, so that the whole need not live until it has been sent."""
    return hidden.reshape(shapes.parts, -1)[group.rank].clone()
