"""One iteration of a pipeline, run by torch.distributed.pipelining and hooked at every instruction.

`PipelineStage` calls `forward_one_chunk` and `backward_one_chunk` once for each instruction, after its input has
arrived: there the conductor is asked, and the stage told which microbatch it runs. Shapes are given on every stage;
left out, PyTorch would find them by running the model once more, collectives and all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from kareus.engine.conductor import Conductor
from kareus.engine.data.batches import Microbatch
from kareus.engine.schedules import MicrobatchSchedule
from kareus.engine.stage_model import SEQUENTIAL, StageModel
from kareus.errors import KareusError
from kareus.partition.graph import Direction
from kareus.workload.config import PipelineSchedule

SCHEDULES = {PipelineSchedule.ONE_FORWARD_ONE_BACKWARD: Schedule1F1B, PipelineSchedule.GPIPE: ScheduleGPipe}
"""Implementations of `kareus.engine.pipelining.RUNNABLE`."""


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
        model: StageModel,
        place: StagePlace,
        shapes: Shapes,
        schedule: PipelineSchedule,
        schedules: Mapping[int, MicrobatchSchedule],
        conductor: Conductor,
    ) -> None:
        """Run `model`, whose microbatches run as `schedules` says by number, sequentially where it says nothing."""
        self._place = place
        self._conductor = conductor
        self._scheduled = _Scheduled(model, schedules)
        stage = _Stage(self._scheduled, place, _inputs(place, shapes), _outputs(place, shapes), conductor)
        self._runner = SCHEDULES[schedule](
            stage, shapes.num_microbatches, loss_fn=lambda loss, _: loss, scale_grads=False
        )

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
        self._scheduled.share = share
        self._scheduled.labels = [torch.from_numpy(m.labels).to(device) for m in microbatches]
        ids = (torch.cat([torch.from_numpy(m.ids) for m in microbatches]).to(device),)
        is_last = self._place.stage == self._place.stages - 1
        target = torch.zeros(len(microbatches)) if is_last else None  # the stage knows its labels; one each is demanded
        try:
            self._runner.step(
                *(ids if self._place.stage == 0 else ()), target=target, losses=losses, return_outputs=False
            )
        except RuntimeError as error:  # PyTorch wraps what an instruction raises
            if isinstance(error.__cause__, KareusError):
                raise error.__cause__ from error
            raise
        self._conductor.end_iteration()
        return torch.stack(losses).detach().sum() if losses else None


class _Scheduled(nn.Module):
    """A stage's model under the schedule, and with the labels, of the microbatch that was announced."""

    def __init__(self, model: StageModel, schedules: Mapping[int, MicrobatchSchedule]) -> None:
        super().__init__()
        self.model = model
        self.microbatch = 0
        self.share = 1.0
        self.labels: list[Tensor] = []
        self._schedules = schedules

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden states, or on the last stage the weighted loss."""
        schedule = self._schedules.get(self.microbatch, SEQUENTIAL)
        is_last = self.model.head is not None
        result: Tensor = self.model(inputs, self.labels[self.microbatch] if is_last else None, schedule)
        return result * self.share if is_last else result


class _Stage(PipelineStage):
    """Tells the conductor of every instruction."""

    def __init__(
        self, scheduled: _Scheduled, place: StagePlace, inputs: Tensor, outputs: Tensor, conductor: Conductor
    ) -> None:
        super().__init__(
            scheduled,
            place.stage,
            place.stages,
            place.device,
            input_args=(inputs,),
            output_args=(outputs,),
            group=place.group,
        )
        self._scheduled = scheduled
        self._conductor = conductor

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Begin a forward."""
        self._conductor.begin(Direction.FORWARD, fwd_chunk_id)
        self._scheduled.microbatch = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *arguments, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Begin a backward."""
        self._conductor.begin(Direction.BACKWARD, bwd_chunk_id)
        return super().backward_one_chunk(bwd_chunk_id, *arguments, **options)


def _inputs(place: StagePlace, shapes: Shapes) -> Tensor:
    """One microbatch's input of a stage, as to shape."""
    if place.stage == 0:
        return torch.zeros(shapes.microbatch_size, shapes.tokens, dtype=torch.long, device=place.device)
    return _hidden(place, shapes)


def _outputs(place: StagePlace, shapes: Shapes) -> Tensor:
    is_last = place.stage == place.stages - 1
    return torch.zeros((), requires_grad=True) if is_last else _hidden(place, shapes)


def _hidden(place: StagePlace, shapes: Shapes) -> Tensor:
    size = (shapes.microbatch_size, shapes.tokens, shapes.hidden_size)
    return torch.empty(size, dtype=shapes.dtype, device=place.device, requires_grad=True)
