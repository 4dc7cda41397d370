"""Capturing the instructions of a stage as CUDA graphs, in the order of the plan.

All graphs of a rank share a memory pool, from which they take memory as the instructions of an iteration do: what a
forward keeps is freed when its backward has been captured. So the pool is as large as what an iteration without graphs
needs for its blocks, and graphs have to be replayed in the order in which they were captured, which the plan follower
holds every iteration to.

Not captured are the microbatches in whose backward the reduction of gradients begins block by block, the last one of
each chunk: a graph could not tell of the blocks that it has completed.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.runtime.boundary import Shapes
from kareus.runtime.graphs import Capture, MicrobatchGraphs, Replay
from kareus.runtime.schedules import MicrobatchSchedule, Schedules
from kareus.runtime.stage_model import SEQUENTIAL, Held, StageModel

Place = tuple[int, int]
"""Chunk and microbatch."""


class StaticBuffers:
    """What enters and leaves the graphs of a rank."""

    def __init__(self, shapes: Shapes, device: torch.device) -> None:
        """Have buffers for hidden states of these `shapes`."""
        self._like = torch.empty(0, dtype=shapes.dtype, device=device)
        self._shape = shapes.hidden
        self._free: list[Tensor] = []
        self.arriving = self._like.new_empty(self._shape)
        """Gradient that enters a backward, which has read it when it is over."""
        self.leaving = self._like.new_empty(self._shape)
        """What leaves any of them, and is copied at once."""
        self.entrances = 0
        """Buffers of hidden states that enter a forward: one for each microbatch in flight."""

    def take(self) -> Tensor:
        """Return a buffer that no microbatch in flight has."""
        if self._free:
            return self._free.pop()
        self.entrances += 1
        return self._like.new_empty(self._shape)

    def give_back(self, buffer: Tensor) -> None:
        """Let another microbatch have what `take` returned."""
        self._free.append(buffer)


def reducing_places(order: Sequence[InstructionKey]) -> set[Place]:
    """Return the microbatch of each chunk whose backward is its last, in which the reduction of gradients begins."""
    last = {key.chunk: key.microbatch for key in order if key.direction is Direction.BACKWARD}
    return set(last.items())


@torch.no_grad()
def capture_instructions(
    chunks: Sequence[StageModel],
    order: Sequence[InstructionKey],
    schedules: Schedules,
    buffers: StaticBuffers,
    capture: Capture,
    uncaptured: Collection[Place],
) -> dict[Place, MicrobatchGraphs]:
    """Capture the forwards and backwards of a stage.

    Everything that they launch has to have run before: kernels are compiled then, and communicators connected. Ranks
    of a group capture the same collectives in the same order.

    Args:
        chunks: of the stage.
        order: of its instructions in an iteration.
        schedules: of its microbatches; what is not there runs sequentially.
        buffers: what enters and leaves.
        capture: makes a graph.
        uncaptured: what runs without graphs.
    """
    forwards: dict[Place, tuple[Tensor, Replay, Held]] = {}
    graphs: dict[Place, MicrobatchGraphs] = {}
    for key in order:
        place = (key.chunk, key.microbatch)
        if place in uncaptured:
            continue
        if key.direction is Direction.FORWARD:
            entering = buffers.take()
            run, kept = _captured_forward(
                chunks[key.chunk], entering, schedules.get(place, SEQUENTIAL), buffers, capture
            )
            forwards[place] = entering, run, kept
        elif key.direction is Direction.BACKWARD:
            entering, run, kept = forwards.pop(place)
            graphs[place] = MicrobatchGraphs(
                entering=entering,
                arriving=buffers.arriving,
                leaving=buffers.leaving,
                run_forward=run,
                run_backward=_captured_backward(chunks[key.chunk], kept, buffers, capture),
            )
            buffers.give_back(entering)
    return graphs


def _captured_forward(
    model: StageModel, entering: Tensor, schedule: MicrobatchSchedule, buffers: StaticBuffers, capture: Capture
) -> tuple[Replay, Held]:
    kept: list[Held] = []

    def launch() -> None:
        kept.append(model.run_forward(entering, schedule, record=True, output=buffers.leaving)[1])

    return capture(launch), kept.pop()


def _captured_backward(model: StageModel, kept: Held, buffers: StaticBuffers, capture: Capture) -> Replay:
    return capture(lambda: model.run_backward(kept, buffers.arriving, buffers.leaving))
