"""Plans in trainings without a pipeline, by FSDP, HSDP or DDP: every forward, backward and update has its clock.

    planned = obey(model, optimizer, "plan/straggler=1.05x_sequential+perseus.json", microbatches=8)
    ...  # training as before
    planned.close()

What replicas exchange of a model that `fully_shard` has sharded is set once, as planned: SMs, and how far ahead weights
are gathered.

Hooks of the outermost module and of the optimizer say what runs. A forward begins and ends with the module's; its
backward begins there, so that the loss is part of it, and ends with the pass of autograd that reaches the module's
output; then the update begins, gradient norm and clipping included, and ends with the optimizer's step. A forward
without gradients is an evaluation, which has the clock of most forwards.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_leaves

from kareus.adapters.driver import StageDriver, drive_by_plan
from kareus.adapters.layout import RankLayout
from kareus.adapters.sources import PlanSource, exchanges_of
from kareus.adapters.steps import only_device, stepping
from kareus.artifacts.ranges import check_within
from kareus.errors import ConfigError, EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.model.communicators.nccl import nccl_options
from kareus.model.parallelism import EXCHANGES, NVLS_CHOICE, FsdpSettings
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions
from kareus.runtime.fully_sharded import prefetch_ahead, set_exchanges

MOST_MICROBATCHES = 100_000
"""Backwards between two steps of the optimizer."""
OVERRULING = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS")
"""Variables of NCCL that count before the options of a group."""
logger = logging.getLogger(__name__)

OUTSIDE = -1
"""What PyTorch gives as the number of the pass of autograd that runs, where none does."""


class PlannedTraining:
    """A training that follows a plan on this rank. Made by `obey`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        driver: StageDriver,
        microbatches: int,
        tokens: int | None,
    ) -> None:
        """Hook a model and its optimizer.

        Args:
            model: the outermost module, whose output the loss is computed of.
            optimizer: whose step ends an iteration.
            driver: told what runs.
            microbatches: backwards of an iteration.
            tokens: of an iteration, over all ranks, for the tables.
        """
        self.driver = driver
        """Driver of this rank."""
        self._microbatches, self._tokens = microbatches, tokens
        self._ended = 0
        """Backwards of the iteration that have ended."""
        self._is_open = False
        """Whether a forward began whose backward has not ended."""
        self._hooks: list[Any] = [
            model.register_forward_pre_hook(self._begin_forward),
            model.register_forward_hook(self._end_forward),
            optimizer.register_step_post_hook(self._end_step),
        ]
        self._awaited: list[Any] = []
        """Hooks of the output whose gradient comes next."""

    def close(self) -> None:
        """Take the hooks away, restore the clock and write the tables; may be called more than once."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._await([])
        self.driver.close()

    def _key(self, direction: Direction) -> InstructionKey:
        return InstructionKey(0, 0, self._ended, direction)

    def _begin_forward(self, model: nn.Module, arguments: Any) -> None:
        if _recomputes():
            return
        if not torch.is_grad_enabled():
            if not self._is_open:
                self.driver.begin_evaluation()
            return
        if self._is_open:  # its step failed, and the training goes on
            self._abandon()
        self.driver.begin(self._key(Direction.FORWARD))
        self._is_open = True

    def _end_forward(self, model: nn.Module, arguments: Any, output: Any) -> None:
        if _recomputes() or not torch.is_grad_enabled():
            return
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not tensors:
            raise EngineError(
                f"{type(model).__name__}: its output has no tensor with a gradient, so that its backward is not seen; "
                "give the module whose output the loss is computed of."
            )
        self.driver.end(self._key(Direction.FORWARD))
        self.driver.begin(self._key(Direction.BACKWARD))
        self._await(tensors)

    def _await(self, tensors: Sequence[Tensor]) -> None:
        """Wait for the gradient of the first of some tensors, and no longer for that of others."""
        for hook in self._awaited:
            hook.remove()
        self._awaited = [tensor.register_hook(self._reach) for tensor in tensors]  # type: ignore[no-untyped-call]

    def _reach(self, gradient: Tensor) -> None:
        """Have autograd say when this pass of it ends, after all that fully_shard and DDP have it do then.

        fully_shard asked for it before, DDP does so when its first gradient is there: what is asked for once the pass
        has ended comes after both.
        """
        if self._awaited:
            self._await([])
            later = Variable._execution_engine.queue_callback
            later(lambda: later(self._end_backward))

    def _end_backward(self) -> None:
        self.driver.end(self._key(Direction.BACKWARD))
        self._ended, self._is_open = self._ended + 1, False
        if self._ended == self._microbatches:
            self._ended = 0
            self.driver.end_passes(self._tokens)

    def _end_step(self, *_: Any) -> None:
        if self._ended or self._is_open:  # fewer backwards than planned, as at the end of an epoch
            self._abandon()
        else:
            self.driver.end_step()

    def _abandon(self) -> None:
        self._await([])
        self._ended, self._is_open = 0, False
        self.driver.abandon_iteration()


def obey(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: PlanSource,
    *,
    microbatches: int,
    clocks: str = "planned",
    output: str | PathLike[str] | None = None,
    tokens: int | None = None,
) -> PlannedTraining:
    """Let the training of this rank follow a plan; every rank calls it, from the main thread.

    Args:
        model: the outermost module, sharded or not, whose output the loss is computed of.
        optimizer: whose step ends an iteration: PyTorch's, or Accelerate's around it.
        plan: path of the plan, or a `PlanFolder` or `Profiling`.
        microbatches: forwards and backwards between two steps of the optimizer (gradient accumulation). A step of fewer
            runs by the clocks of its first ones and is left out of the tables.
        clocks: `planned`, or `dry` to log clocks and lock none.
        output: folder of the tables `microbatches` and `steps`; None to write none.
        tokens: of a step, over all ranks, for the tables.

    Raises:
        EngineError: the plan is of another layout, or this process computes on several GPUs. No clock was set.
        DeviceError: the GPU is in use, or the driver refuses.
        ArtifactError: the plan cannot be read.

    Example:
        >>> from kareus.adapters.fsdp import obey
        >>> planned = obey(model, optimizer, "plan/fastest_sequential+perseus.json", microbatches=4, tokens=65536)
        >>> # train as before: every optimizer.step() ends an iteration
        >>> planned.close()
    """
    check_within("microbatches", microbatches, 1, MOST_MICROBATCHES, "backwards between two steps")
    is_distributed = dist.is_available() and dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
    layout = RankLayout(rank=rank, gpus=ranks, stage=0, stages=1, microbatches=microbatches)
    settings = exchanges_of(plan)
    if settings.label and any(_outermost_sharded(model)):
        exchange(model, settings)
    elif settings.label and rank == 0:
        logger.warning(
            "the plan sets %s of exchanges of fully_shard, which has not sharded this model: they stay as they are, "
            "and times differ from those planned.",
            settings.label,
        )
    order = pipeline_instructions(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, 1, microbatches)
    driver = drive_by_plan(
        plan, layout, only_device(model.parameters()), [i.key for i in order], clocks=clocks, output=output
    )
    return PlannedTraining(model, stepping(optimizer), driver, microbatches, tokens)


def exchange(model: nn.Module, settings: FsdpSettings, *, cga: int | None = None) -> None:
    """Have a sharded model exchange weights and gradients by settings, as `obey` does by those of its plan.

    Every rank calls it before the first forward. Without NCCL, as on CPUs, groups are made and nothing is limited.
    Blocks are the outermost modules below the model that `fully_shard` has seen, in the order of its modules, which has
    to be that of execution; PyTorch gathers one ahead by itself.

    Args:
        model: the outermost module, sharded.
        settings: such as those that `kareus plan` with `parallelism.fsdp=auto` finds.
        cga: CTAs of a cluster in groups whose SMs are set; None leaves them to NCCL.

    Raises:
        ConfigError: clusters do not divide a number of SMs.
        EngineError: no module below the model is sharded, or a variable of the environment overrules the settings.

    Example:
        >>> from kareus.adapters.fsdp import exchange
        >>> from kareus.model.parallelism import FsdpSettings
        >>> exchange(model, FsdpSettings(gather_sms=9, reduce_sms=12))
    """
    counts = {name: count for name in EXCHANGES if (count := settings.sms(name)) is not None}
    for name, count in counts.items():
        if cga is not None and (cga < 1 or count % cga):
            raise ConfigError(f"cga={cga}: must divide {name}_sms={count}.")
    overruling = [f"{name}={os.environ[name]}" for name in OVERRULING if os.environ.get(name)]
    if counts and overruling:
        raise EngineError(f"{' '.join(overruling)}: overrules the limits of all groups; unset it.")
    blocks = list(_outermost_sharded(model))
    if not blocks:
        raise EngineError(f"{type(model).__name__}: fully_shard has seen no module below it; shard its blocks too.")
    if settings.nvls and dist.get_backend() == "nccl" and NVLS_CHOICE not in os.environ.get("NCCL_ALGO", ""):
        raise EngineError(f"nvls: NCCL prefers rings; start the job with NCCL_ALGO={NVLS_CHOICE}.")
    if settings.prefetch > 1:
        prefetch_ahead(blocks, settings.prefetch)
    set_exchanges(model, settings, lambda count: nccl_options(count, cga))


def _outermost_sharded(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, FSDPModule):
            yield child
        else:
            yield from _outermost_sharded(child)


def _recomputes() -> bool:
    """Whether autograd runs, so that a forward is part of a backward."""
    return torch._C._current_graph_task_id() != OUTSIDE
