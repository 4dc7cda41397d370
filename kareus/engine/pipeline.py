"""One iteration of a pipeline, run by torch.distributed.pipelining and hooked at every instruction.

PyTorch's runtime is given the planned order, messages and all, instead of one of its own. A `PipelineStage` stands for
each chunk of this rank; the runtime calls its `forward_one_chunk` and `backward_one_chunk` once for each instruction,
after its input has arrived: there the conductor is asked, and the chunk told which microbatch it runs. Shapes are given
on every stage; left out, PyTorch would find them by running the model once more, collectives and all.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as runtime

from kareus.engine.actions import Actions, place_in_line
from kareus.engine.conductor import Conductor
from kareus.engine.data.batches import Microbatch
from kareus.engine.schedules import Schedules
from kareus.engine.stage_model import SEQUENTIAL, StageModel
from kareus.errors import KareusError
from kareus.model.functions import Later
from kareus.partition.graph import Direction
from kareus.pipeline.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """Which stage this is, of which pipeline."""

    stage: int
    stages: int
    group: dist.ProcessGroup
    """The stages' ranks, in order."""
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Sizes of what passes between stages."""

    num_microbatches: int
    microbatch_size: int
    tokens: int
    """Of a sequence, on this rank."""
    hidden_size: int
    dtype: torch.dtype


class Pipeline:
    """One stage of a pipeline, and through it the others."""

    def __init__(
        self,
        chunks: Sequence[StageModel],
        place: StagePlace,
        shapes: Shapes,
        actions: Actions,
        schedules: Schedules,
        conductor: Conductor,
    ) -> None:
        """Run `chunks`, whose microbatches run as `schedules` says, sequentially where it says nothing.

        Args:
            chunks: of the stage, in order.
            place: of the stage.
            shapes: of what passes between stages.
            actions: what all ranks of the pipeline do.
            schedules: of the stage.
            conductor: of the stage.
        """
        self._place = place
        self._conductor = conductor
        self._scheduled = [_Scheduled(model, number, schedules) for number, model in enumerate(chunks)]
        stages = [_Stage(scheduled, len(chunks), place, shapes, conductor) for scheduled in self._scheduled]
        logging.getLogger(runtime.__name__).setLevel(logging.CRITICAL)  # it would print all actions with every error
        self._runtime = runtime._PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
            stages, shapes.num_microbatches, loss_fn=lambda loss, _: loss, scale_grads=False
        )
        self._runtime._prepare_schedule_with_comms(actions, format="compute_comms")

    def run(self, microbatches: Sequence[Microbatch], share: float) -> Tensor | None:
        """Run one iteration; gradients are added to the buffers of the model.

        Args:
            microbatches: of this replica, in order.
            share: of the tokens of a microbatch on this rank in those of the whole iteration.

        Returns:
            On the last stage the sum of the losses, each times `share`; else None.

        Raises:
            KareusError: what an instruction raised.
        """
        losses: list[Tensor] = []
        device = self._place.device
        labels = [torch.from_numpy(m.labels).to(device) for m in microbatches]
        for scheduled in self._scheduled:
            scheduled.share, scheduled.labels = share, labels
        ids = (torch.cat([torch.from_numpy(m.ids) for m in microbatches]).to(device),)
        is_last = self._place.stage == self._place.stages - 1
        target = torch.zeros(len(microbatches)) if is_last else None  # the stage knows its labels; one each is demanded
        try:
            self._runtime.step(
                *(ids if self._place.stage == 0 else ()), target=target, losses=losses, return_outputs=False
            )
        except RuntimeError as error:  # PyTorch wraps what an instruction raises
            if isinstance(error.__cause__, KareusError):
                raise error.__cause__ from error
            raise
        self._conductor.end_iteration()
        return torch.stack(losses).detach().sum() if losses else None


class _Scheduled(nn.Module):
    """A chunk under the schedule, and with the labels, of the microbatch that was announced."""

    def __init__(self, model: StageModel, chunk: int, schedules: Schedules) -> None:
        super().__init__()
        self.model = model
        self.chunk = chunk
        self.microbatch = 0
        self.share = 1.0
        self.labels: list[Tensor] = []
        self._schedules = schedules

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden states, or after the last chunk the weighted loss."""
        schedule = self._schedules.get((self.chunk, self.microbatch), SEQUENTIAL)
        is_last = self.model.head is not None
        result: Tensor = self.model(inputs, self.labels[self.microbatch] if is_last else None, schedule)
        return result * self.share if is_last else result


class _Stage(PipelineStage):
    """Tells the conductor of every instruction of a chunk."""

    def __init__(
        self, scheduled: _Scheduled, chunks: int, place: StagePlace, shapes: Shapes, conductor: Conductor
    ) -> None:
        number, numbers = place_in_line(place.stage, scheduled.chunk, place.stages), place.stages * chunks
        size = (shapes.microbatch_size, shapes.tokens, shapes.hidden_size)
        hidden = torch.empty(size, dtype=shapes.dtype, device=place.device, requires_grad=True)
        ids = torch.zeros(shapes.microbatch_size, shapes.tokens, dtype=torch.long, device=place.device)
        super().__init__(
            scheduled,
            number,
            numbers,
            place.device,
            input_args=(ids if number == 0 else hidden,),
            output_args=(torch.zeros((), requires_grad=True) if number == numbers - 1 else hidden,),
            group=place.group,
        )
        self._scheduled = scheduled
        self._conductor = conductor
        self._later: dict[int, Later] = {}

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Begin a forward; what PyTorch calls a chunk here is a microbatch."""
        self._begin(Direction.FORWARD, fwd_chunk_id)
        self._scheduled.microbatch = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *arguments, **options)

    def backward_one_chunk(
        self, bwd_chunk_id: int, *arguments: Any, full_backward: bool = True, **options: Any
    ) -> None:
        """Begin a backward, or the part of it that computes input gradients: to PyTorch, that too is a whole one."""
        if full_backward:
            self._begin(Direction.BACKWARD, bwd_chunk_id)
            super().backward_one_chunk(bwd_chunk_id, *arguments, **options)
        else:
            self._begin(Direction.INPUT_GRADIENT, bwd_chunk_id)
            with self._scheduled.model.input_gradients_only() as self._later[bwd_chunk_id]:
                super().backward_one_chunk(bwd_chunk_id, *arguments, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *_arguments: Any, **_options: Any) -> None:
        """Run the weight gradients that the input gradients of the microbatch left."""
        self._begin(Direction.WEIGHT_GRADIENT, bwd_chunk_id)
        with torch.no_grad():
            for add in self._later.pop(bwd_chunk_id):
                add()

    def _begin(self, direction: Direction, microbatch: int) -> None:
        self._conductor.begin(Work(direction, microbatch, self._scheduled.chunk))
