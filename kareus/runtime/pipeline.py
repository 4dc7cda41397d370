"""One iteration of a pipeline, run by torch.distributed.pipelining.

PyTorch's runtime is given the planned order, messages and all, instead of one of its own; `ChunkStage` stands in it for
each chunk of this rank. Garbage is collected once the iteration is over.
"""

import contextlib
import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import schedules as runtime

from kareus.errors import KareusError
from kareus.graph.instruction import NO_MICROBATCH, InstructionKey
from kareus.graph.records import Direction
from kareus.model.communication import Communicator
from kareus.model.routing import Balances
from kareus.runtime.actions import Actions
from kareus.runtime.boundary import Shapes
from kareus.runtime.capturing import StaticBuffers, capture_instructions, reducing_places
from kareus.runtime.chunk_stage import ChunkStage, Scheduled, StagePlace
from kareus.runtime.follower import PlanFollower
from kareus.runtime.fully_sharded import FullyShardedModel
from kareus.runtime.graphs import Capture
from kareus.runtime.messages import Receives, Sends
from kareus.runtime.schedules import Microbatch, Schedules
from kareus.runtime.stage_model import GradientsReady, StageModel
from kareus.workload.config import Workload

YOUNG = 1
"""The oldest generation of objects that an iteration leaves for the collector."""


@contextmanager
def collected_afterwards() -> Iterator[None]:
    """Collect no garbage within, and that of young objects on leaving; where collection is off, it stays off.

    The objects of an iteration, records of operators and messages, are many, and nearly all are freed without it. While
    a rank launches, a collection would stop it in the middle, and all ranks that wait for it: for microseconds each
    time, and for tens of milliseconds where the collector visits every object of the process.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.collect(YOUNG)


@contextlib.contextmanager
def kareus_errors() -> Iterator[None]:
    """Raise a `KareusError` that an instruction raised in place of the error that PyTorch wraps it in."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, KareusError):
            raise error.__cause__ from error
        raise


def _ignored(part: nn.Module) -> None:
    """Take no notice of complete weight gradients."""


def balances_of(workload: Workload, group: Communicator | None) -> Balances | None:
    """Return what balances a workload's experts, over the ranks of `group`; None where nothing does."""
    model = workload.model
    if model.experts is None or not model.experts.balance_loss:
        return None
    return Balances(
        model.experts,
        blocks=model.num_layers - len(model.dense_layers),
        tokens=workload.microbatch_size * workload.sequence_length,
        copies=workload.parallelism.cp,
        group=group,
    )


class Pipeline:
    """One stage of a pipeline, and through it the others."""

    def __init__(
        self,
        chunks: Sequence[StageModel | FullyShardedModel],
        place: StagePlace,
        shapes: Shapes,
        actions: Actions,
        schedules: Schedules,
        follower: PlanFollower,
        gradients_ready: GradientsReady = _ignored,
        balances: Balances | None = None,
    ) -> None:
        """Run `chunks`, whose microbatches run as `schedules` says, sequentially where it says nothing.

        Args:
            chunks: of the stage, in order.
            place: of the stage.
            shapes: of what passes between stages.
            actions: what all ranks of the pipeline do.
            schedules: of the stage.
            follower: plan follower of the stage.
            gradients_ready: called, while the last backwards of an iteration run, with every part of the model whose
                weight gradients are complete.
            balances: of experts, if they are trained to be even.
        """
        self._balances = balances
        self._place = place
        self._shapes = shapes
        self._schedules = schedules
        self.follower = follower
        self._scheduled = [
            Scheduled(model, number, schedules, shapes, place.tensor) for number, model in enumerate(chunks)
        ]
        for scheduled in self._scheduled:
            scheduled.balances = balances
        self._scheduled[-1].closes = True
        self._sends = Sends(place.backward_group)
        receives = Receives(place.backward_group)
        stages = [
            ChunkStage(scheduled, len(chunks), place, shapes, follower, self._sends, receives, gradients_ready)
            for scheduled in self._scheduled
        ]
        logging.getLogger(runtime.__name__).setLevel(logging.CRITICAL)  # it would print all actions with every error
        self._runtime = runtime._PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
            stages, shapes.num_microbatches, loss_fn=lambda loss, _: loss, scale_grads=False
        )
        self._runtime._prepare_schedule_with_comms(actions, format="compute_comms")

    def run(self, microbatches: Sequence[Microbatch], share: float) -> Tensor | None:
        """Run the forwards and backwards of one iteration; gradients are added to the buffers of the model.

        Args:
            microbatches: of this replica, in order.
            share: of the tokens of a microbatch on this rank in those of the whole iteration.

        Returns:
            On the stage with the LM head the sum of the losses, each times `share`; else None.

        Raises:
            KareusError: what an instruction raised.
        """
        losses: list[Tensor] = []
        device = self._place.device
        labels = [torch.from_numpy(m.labels).to(device) for m in microbatches]
        for scheduled in self._scheduled:
            scheduled.share, scheduled.labels = share, labels
        if self._balances is not None:
            self._balances.share = share
        ids = (torch.cat([torch.from_numpy(m.ids) for m in microbatches]).to(device),)
        has_head = self._scheduled[-1].model.head is not None
        target = (
            torch.zeros(len(microbatches)) if has_head else None
        )  # the stage knows its labels; one each is demanded
        with kareus_errors(), collected_afterwards():
            self._runtime.step(
                *(ids if self._place.stage == 0 else ()), target=target, losses=losses, return_outputs=False
            )
        self._sends.finish()
        return torch.stack(losses).detach().sum() if losses else None

    def take_balance_loss(self) -> float:
        """Return this rank's part of the loss that balances experts, of the iteration that has run; once."""
        return 0.0 if self._balances is None else float(self._balances.take())

    def capture(self, capture: Capture, *, reduces: bool) -> int:
        """Capture the forwards and backwards of the stage, which later iterations replay; one has run before.

        Args:
            capture: makes a graph. Nothing may be under way on the device, messages neither.
            reduces: whether the last backward of each chunk has gradients reduced, block by block; it is not captured.

        Returns:
            The number of microbatches, of each chunk, that are captured.
        """
        chunks = [each.model for each in self._scheduled if isinstance(each.model, StageModel)]
        assert len(chunks) == len(self._scheduled), "`check_captures` refuses weights that are shared out"
        uncaptured = reducing_places(self.follower.order) if reduces else set()
        buffers = StaticBuffers(self._shapes, self._place.device)
        graphs = capture_instructions(chunks, self.follower.order, self._schedules, buffers, capture, uncaptured)
        for (chunk, microbatch), graph in graphs.items():
            self._scheduled[chunk].graphs[microbatch] = graph
        return len(graphs)

    def begin_update(self, direction: Direction) -> None:
        """Announce an instruction of the update to the plan follower.

        Raises:
            EngineError: it is not the one that is planned next.
            DeviceError: its clock cannot be set.
        """
        self.follower.begin(InstructionKey(self._place.stage, 0, NO_MICROBATCH, direction))

    def end_iteration(self) -> None:
        """Check that every planned instruction ran.

        Raises:
            EngineError: one did not.
        """
        self.follower.end_iteration()
