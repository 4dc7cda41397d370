"""CUDA graphs of instructions: the blocks of a forward or backward, captured once and launched as a whole from then on.

A graph has fixed addresses. What enters and leaves it therefore passes through static buffers, by a copy each; what a
forward keeps for its backward, and all that lives shorter, is in the memory pool of the graphs. Both streams of
partitioned overlap, the SM counts of collectives and what each kernel waits for are those of the capture, that is, of
the plan: a collective waits for the operators before the one that it is launched beside. A graph keeps no order of
launches besides, so that a collective may begin later than without one. Clocks change between graphs. Nothing in a
block draws random numbers, so that a graph has no random state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from kareus.model.functions import apply

Replay = Callable[[], None]
"""Launches a graph on the current stream."""


class Capture(Protocol):
    """What makes graphs; all that the rest of the engine knows of CUDA's."""

    def __call__(self, launch: Callable[[], Any]) -> Replay:
        """Capture what `launch` launches, which does not run before the replay."""


class CudaCapture:
    """Graphs of CUDA that share one memory pool.

    Memory that one graph frees, the next one takes. So they have to be replayed in the order of their capture, one
    after the other on one stream; that of a plan is the same in every iteration.
    """

    def __init__(self, device: torch.device) -> None:
        """Capture on `device`."""
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, launch: Callable[[], Any]) -> Replay:
        """As `Capture`; nothing else may run on the device meanwhile."""
        graph = torch.cuda.CUDAGraph()
        # Threads of NCCL ask for their events meanwhile, which a capture of the whole process would forbid.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            launch()
        replay: Replay = graph.replay
        return replay


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchGraphs:
    """Forward and backward of one microbatch through the blocks of one chunk, with the buffers that they pass."""

    entering: Tensor
    """Hidden states that enter; they stay until the backward is over, which may read them."""
    arriving: Tensor
    """Gradient that enters, of all microbatches."""
    leaving: Tensor
    """Hidden states or gradient that leave, of all microbatches."""
    run_forward: Replay
    run_backward: Replay


def replayed(hidden: Tensor, graphs: MicrobatchGraphs) -> Tensor:
    """Run hidden states through the blocks; `backward` of the result runs them backward."""
    result: Tensor = apply(_Replayed, hidden, graphs)
    return result


class _Replayed(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, graphs: MicrobatchGraphs) -> Tensor:
        ctx.graphs = graphs
        return _through(hidden, graphs.entering, graphs.run_forward, graphs.leaving)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        graphs = ctx.graphs
        return _through(gradient, graphs.arriving, graphs.run_backward, graphs.leaving), None


def _through(tensor: Tensor, entrance: Tensor, replay: Replay, leaving: Tensor) -> Tensor:
    """Copy what leaves, since the next graph writes there while it may still be sent."""
    entrance.copy_(tensor)
    replay()
    return leaving.clone()
