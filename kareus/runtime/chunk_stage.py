"""A chunk of a stage as the runtime of torch.distributed.pipelining sees it.

The runtime calls `forward_one_chunk`, `backward_one_chunk` and `backward_weight_one_chunk` once for each instruction,
after its input has arrived: there the plan follower checks the order, and the chunk is told which microbatch it runs.
Shapes are given on every stage; left out, PyTorch would find them by running the model once more, collectives and all.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from kareus.graph.instruction import InstructionKey, place_in_line
from kareus.graph.records import Direction
from kareus.model.communication import Communicator
from kareus.model.functions import Later
from kareus.model.routing import Balances
from kareus.runtime.boundary import Shapes, gathered, sent_part
from kareus.runtime.follower import PlanFollower
from kareus.runtime.fully_sharded import FullyShardedModel
from kareus.runtime.graphs import MicrobatchGraphs
from kareus.runtime.messages import Receives, Sends
from kareus.runtime.schedules import Schedules
from kareus.runtime.stage_model import SEQUENTIAL, GradientsReady, StageModel

_NOWHERE = torch.device("meta")
"""Where tensors have a shape and no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """Which stage this is, of which pipeline."""

    stage: int
    stages: int
    group: dist.ProcessGroup
    """The stages' ranks, in order; messages to later stages go over it."""
    backward_group: dist.ProcessGroup
    """The same ranks, for messages to earlier stages."""
    device: torch.device
    tensor: Communicator | None
    """GPUs that hold the same part of the same stage, which gather hidden states that are sent in parts; None for
    one."""
    folded: bool = False
    """Whether microbatches pass the stages there and back."""


class Scheduled(nn.Module):
    """A chunk under the schedule, and with the labels, of the microbatch that was announced."""

    def __init__(
        self,
        model: StageModel | FullyShardedModel,
        chunk: int,
        schedules: Schedules,
        shapes: Shapes,
        tensor: Communicator | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.chunk = chunk
        self.shapes = shapes
        self.tensor = tensor
        self.microbatch = 0
        self.share = 1.0
        self.labels: list[Tensor] = []
        self.graphs: dict[int, MicrobatchGraphs] = {}
        """By microbatch; the others launch each operator."""
        self.balances: Balances | None = None
        """Of experts, if they are trained to be even."""
        self.closes = False
        """Whether the chunk is the last of its stage."""
        self._schedules = schedules

    def forward(self, inputs: Tensor) -> Tensor:
        """Run a microbatch: from ids or what arrives to what is sent, or of the last chunk to the weighted loss."""
        schedule = self._schedules.get((self.chunk, self.microbatch), SEQUENTIAL)
        is_last = self.model.head is not None
        hidden = gathered(inputs, self.shapes, self.tensor) if self.model.embedding is None else inputs
        captured = self.graphs.get(self.microbatch)
        options: dict[str, Any] = {} if captured is None else {"graphs": captured}
        if self.balances is not None:
            options["balance"] = self.balances.of(self.microbatch)
        result: Tensor = self.model(hidden, self.labels[self.microbatch] if is_last else None, schedule, **options)
        if self.balances is not None and self.closes:
            self.balances.close(self.microbatch)
        return result * self.share if is_last else sent_part(result, self.shapes, self.tensor)


class ChunkStage(PipelineStage):
    """Announces every instruction of a chunk to the plan follower, and holds messages only while they are needed."""

    def __init__(
        self,
        scheduled: Scheduled,
        chunks: int,
        place: StagePlace,
        shapes: Shapes,
        follower: PlanFollower,
        sends: Sends,
        receives: Receives,
        gradients_ready: GradientsReady,
    ) -> None:
        numbers = place.stages * chunks
        number = place_in_line(place.stage, scheduled.chunk, place.stages, folded=place.folded)
        hidden = torch.empty(shapes.message, dtype=shapes.dtype, device=_NOWHERE, requires_grad=True)
        ids = torch.empty(shapes.microbatch_size, shapes.tokens, dtype=torch.long, device=_NOWHERE)
        loss = torch.empty((), device=_NOWHERE, requires_grad=True)
        super().__init__(
            scheduled,
            number,
            numbers,
            place.device,
            input_args=(ids if number == 0 else hidden,),
            output_args=(loss if number == numbers - 1 else hidden,),
            group=place.group,
        )
        self._scheduled = scheduled
        self._follower = follower
        self._place = place
        self._sends = sends
        self._receives = receives
        self._later: dict[int, Later] = {}
        self._gradients_ready = gradients_ready
        self._microbatches = shapes.num_microbatches
        self._completed = 0
        """Microbatches of the iteration whose weight gradients have been added."""

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Begin a forward; what PyTorch calls a chunk here is a microbatch."""
        self._begin(Direction.FORWARD, fwd_chunk_id)
        self._scheduled.microbatch = fwd_chunk_id
        self._receives.finish((self.stage_index, Direction.FORWARD, fwd_chunk_id))
        output = super().forward_one_chunk(fwd_chunk_id, *arguments, **options)
        _move(self.args_recv_info[fwd_chunk_id], _NOWHERE)  # the microbatch holds what it needs until its backward
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, *arguments: Any, full_backward: bool = True, **options: Any
    ) -> None:
        """Begin a backward, or the part of it that computes input gradients: to PyTorch, that too is a whole one."""
        if full_backward:
            self._begin(Direction.BACKWARD, bwd_chunk_id)
            model = self._scheduled.model
            self._completed += 1
            if self._completed == self._microbatches:
                model.gradients_ready = self._gradients_ready
            self._receives.finish((self.stage_index, Direction.BACKWARD, bwd_chunk_id))
            super().backward_one_chunk(bwd_chunk_id, *arguments, **options)
            if model.gradients_ready is not None:
                model.gradients_ready, self._completed = None, 0
                self._all_ready(model.embedding)
        else:
            self._begin(Direction.INPUT_GRADIENT, bwd_chunk_id)
            model = self._scheduled.model
            assert isinstance(model, StageModel), "a pipeline that splits backwards has several stages"
            self._receives.finish((self.stage_index, Direction.BACKWARD, bwd_chunk_id))
            with model.input_gradients_only() as self._later[bwd_chunk_id]:
                super().backward_one_chunk(bwd_chunk_id, *arguments, **options)
        _move(self.grad_recv_info[bwd_chunk_id], _NOWHERE)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *_arguments: Any, **_options: Any) -> None:
        """Run the weight gradients that the input gradients of the microbatch left."""
        self._begin(Direction.WEIGHT_GRADIENT, bwd_chunk_id)
        with torch.no_grad():
            for add in self._later.pop(bwd_chunk_id):
                add()
        self._completed += 1
        if self._completed == self._microbatches:
            self._completed, model = 0, self._scheduled.model
            self._all_ready(model.head, *reversed(model.blocks), model.embedding)

    def _all_ready(self, *parts: nn.Module | None) -> None:
        """Tell of complete weight gradients, in the order in which a backward completes them."""
        for part in parts:
            if part is not None:
                self._gradients_ready(part)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> Any:
        """Send the output of a forward, of which nothing but its graph and its shape are needed here any more.

        Returns no operations, likewise `get_bwd_send_ops`: PyTorch would keep them until the iteration ends.
        """
        sends = super().get_fwd_send_ops(fwd_chunk_id)
        for send in sends:
            send.tensor = send.tensor.detach()  # the output itself, as in PyTorch 2.11, would be emptied
        _empty(self.fwd_cache[fwd_chunk_id][0])
        self._sends.start(sends)
        return []

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """Take the output of the chunk before on the same rank, which then keeps as little as of one that is sent."""
        super().set_local_fwd_input(prev_stage_outputs, mb_index)
        _empty(prev_stage_outputs if isinstance(prev_stage_outputs, tuple) else (prev_stage_outputs,))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> Any:
        """Send the gradient of the input of a backward."""
        self._sends.start(super().get_bwd_send_ops(bwd_chunk_id))
        return []

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        """Begin to receive the input of a forward.

        Returns no operations, likewise `get_bwd_recv_ops`: PyTorch would wait for them before the plan follower is
        asked.
        """
        _move(self.args_recv_info[fwd_chunk_id], self.device)
        operations = super().get_fwd_recv_ops(fwd_chunk_id)
        self._receives.start((self.stage_index, Direction.FORWARD, fwd_chunk_id), operations)
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        """Begin to receive the input of a backward."""
        _move(self.grad_recv_info[bwd_chunk_id], self.device)
        operations = super().get_bwd_recv_ops(bwd_chunk_id)
        self._receives.start((self.stage_index, Direction.BACKWARD, bwd_chunk_id), operations)
        return []

    def _prepare_forward_infra(self, *arguments: Any, **options: Any) -> Any:
        """Plan where forwards receive; PyTorch would take memory for all microbatches of an iteration at once."""
        with self._taking_no_memory():
            return super()._prepare_forward_infra(*arguments, **options)

    def _prepare_backward_infra(self, *arguments: Any, **options: Any) -> Any:
        """Plan where backwards receive."""
        with self._taking_no_memory():
            return super()._prepare_backward_infra(*arguments, **options)

    @contextmanager
    def _taking_no_memory(self) -> Iterator[None]:
        device, self.device = self.device, _NOWHERE
        try:
            yield
        finally:
            self.device = device

    def _begin(self, direction: Direction, microbatch: int) -> None:
        self._follower.begin(InstructionKey(self._place.stage, self._scheduled.chunk, microbatch, direction))


def _empty(outputs: Iterable[Tensor]) -> None:
    """Give back the memory of outputs, whose graphs and shapes stay."""
    for output in outputs:
        output.data = output.new_empty(1).expand(output.shape)


def _move(places: Iterable[Any], device: torch.device) -> None:
    """Allocate the buffers of received tensors on `device`; tensors received before keep theirs."""
    for place in places:
        buffer = getattr(place, "buffer", None)  # ids of the first stage are not received
        if buffer is not None:
            place.buffer = torch.empty_like(buffer, device=device, requires_grad=buffer.requires_grad)
