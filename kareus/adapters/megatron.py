"""Plans in Megatron-Core, Megatron-LM and Megatron-Bridge, through the timers that they start around every microbatch.

`forward_step` and `backward_step` of Megatron-Core start `config.timers('forward-compute')` and `('backward-compute')`,
its schedules `('forward-backward')`: a timers object that stands in front of the real one sees every instruction begin
and end (core 0.6 to 0.16). What names an instruction is its place in the order of the pipeline, which is Megatron's:
1F1B, or interleaved 1F1B in groups of as many microbatches as there are stages.
"""

import sys
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import get_current_global_batch_size, get_num_microbatches
from megatron.core.utils import get_model_config

from kareus.adapters.driver import StageDriver, drive_by_plan
from kareus.adapters.layout import RankLayout
from kareus.adapters.sources import PlanSource, check_source
from kareus.errors import EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions

Hook = Callable[[], None]

_GLOBALS = "megatron.training.global_vars"
"""Megatron-LM's module of global variables: training and evaluation set `config.timers` to its timers."""


class PlanTimers:
    """Timers of Megatron that drive a rank by a plan; all else is left to the real timers. Made by `planned_timers`."""

    def __init__(self, timers: Any, driver: StageDriver, running: Sequence[InstructionKey], tokens: int | None) -> None:
        """Stand in front of `timers`, which may be None.

        Args:
            timers: Megatron's own.
            driver: of this rank.
            running: forwards and backwards of one iteration on this rank, in Megatron's order.
            tokens: of one iteration, over all replicas.
        """
        self._timers = timers
        self._driver = driver
        self._keys = {
            d: [key for key in running if key.direction is d] for d in (Direction.FORWARD, Direction.BACKWARD)
        }
        self._begun = dict.fromkeys(self._keys, 0)
        self._tokens = tokens
        self._evaluates = False
        self._hooked: dict[str, _HookedTimer] = {}
        self._hooks: dict[str, tuple[Hook, Hook]] = {
            "forward-backward": (self._begin_passes, self._end_passes),
            "forward-compute": (lambda: self._begin(Direction.FORWARD), lambda: self._end(Direction.FORWARD)),
            "backward-compute": (lambda: self._begin(Direction.BACKWARD), lambda: self._end(Direction.BACKWARD)),
            "all-grads-sync": (lambda: driver.begin_update(Direction.GRADIENT_REDUCTION), driver.end_update),
            "embedding-grads-all-reduce": (
                lambda: driver.begin_update(Direction.EMBEDDING_EXCHANGE),
                driver.end_update,
            ),
            "optimizer": (_nothing, driver.end_step),
        }

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """Return the timer `name`, as Megatron asks for it."""
        timer = _NO_TIMER if self._timers is None else self._timers(name, log_level)
        if name not in self._hooks:
            return timer
        hooked = self._hooked.get(name)
        if hooked is None or hooked.timer is not timer:
            hooked = self._hooked[name] = _HookedTimer(timer, *self._hooks[name])
        return hooked

    def __getattr__(self, name: str) -> Any:
        """Return what only the real timers have, such as `log` and `write`."""
        return getattr(self._timers, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PlanTimers":
        """Return the same, as there is one rank: Megatron copies configurations."""
        return self

    def end_step(self) -> None:
        """Say that the optimizer has stepped; without it a step ends when the next one begins."""
        self._driver.end_step()

    def close(self) -> None:
        """Restore the clock and write the tables; Megatron's own timers go on."""
        self._hooks = {}
        self._driver.close()

    def _begin_passes(self) -> None:
        """Begin an iteration, unless no gradients are computed: an evaluation follows no plan."""
        self._driver.end_step()
        self._evaluates = not torch.is_grad_enabled()
        if not self._evaluates:
            self._begun = dict.fromkeys(self._keys, 0)
            self._driver.abandon_iteration()  # that an exception has ended
            self._driver.begin_iteration()

    def _end_passes(self) -> None:
        if not self._evaluates:
            self._driver.end_passes(self._tokens)
        self._evaluates = False

    def _begin(self, direction: Direction) -> None:
        if self._evaluates:
            return
        keys, number = self._keys[direction], self._begun[direction]
        if number == len(keys):
            raise EngineError(
                f"{direction} {number + 1} of an iteration: the plan has {len(keys)}; plan the workload with the "
                "microbatches of this job, and train without a rampup of the batch size."
            )
        self._driver.begin(keys[number])
        self._begun[direction] += 1

    def _end(self, direction: Direction) -> None:
        if not self._evaluates:
            self._driver.end(self._keys[direction][self._begun[direction] - 1])


class PlanCallback:
    """Callback of Megatron-Bridge.

    Example:
        >>> from kareus.adapters.megatron import PlanCallback
        >>> callback = PlanCallback("plan.json", output="results/mine/adapters/third")
        >>> pretrain(config, forward_step, callbacks=[callback])
    """

    def __init__(self, plan: PlanSource, *, clocks: str = "planned", output: str | PathLike[str] | None = None) -> None:
        """Obey `plan` in the training that begins; arguments are those of `obey`.

        Raises:
            KareusError: the plan is missing, or cannot be read.
        """
        check_source(plan)
        self._plan = plan
        self._clocks = clocks
        self._output = output
        self._timers: PlanTimers | None = None

    def on_train_start(self, context: Any) -> None:
        """Open the plan, when Megatron's groups are there."""
        check_groups(get_model_config(context.model[0]).microbatch_group_size_per_vp_stage)
        self._timers = planned_timers(
            self._plan,
            context.state.timers,
            tokens=get_current_global_batch_size() * context.state.cfg.model.seq_length,
            clocks=self._clocks,
            output=self._output,
        )

    def on_train_step_start(self, context: Any) -> None:
        """Put the timers into the configuration again, which evaluations set to Megatron's own."""
        get_model_config(context.model[0]).timers = self._timers

    def on_train_step_end(self, context: Any) -> None:
        """End the iteration with its optimizer step."""
        assert self._timers is not None, "the training has begun"
        self._timers.end_step()

    def on_train_end(self, context: Any) -> None:
        """Restore the clock and write the tables."""
        assert self._timers is not None, "the training has begun"
        self._timers.close()


def obey(plan: PlanSource, *, clocks: str = "planned", output: str | PathLike[str] | None = None) -> PlanTimers:
    """Obey a plan in Megatron-LM, whose global timers are replaced: training and evaluation take them from there.

    Call it in `model_provider`; for the chunks of one model it may be called again, and the first call counts.

    Args:
        plan: path of the plan, or a `PlanFolder` or `Profiling`.
        clocks: `planned`, or `dry` to log what would be set.
        output: folder of tables; None to write none.

    Raises:
        EngineError: the plan is of another layout or order than this job; no clock was set.
        KareusError: the plan cannot be read, or the GPU cannot be claimed.

    Example:
        >>> from kareus.adapters.megatron import obey
        >>> def obedient_provider(*arguments, **options):
        ...     obey("plan.json", output="results/mine/adapters/first")
        ...     return model_provider(*arguments, **options)
    """
    variables: Any = sys.modules.get(_GLOBALS)
    timers = None if variables is None else variables._GLOBAL_TIMERS
    if timers is None:
        raise EngineError("obey: Megatron-LM has no timers yet; call it in `model_provider`, or take `planned_timers`.")
    if isinstance(timers, PlanTimers):
        return timers
    arguments = variables.get_args()
    check_groups(getattr(arguments, "microbatch_group_size_per_vp_stage", None))
    tokens = get_current_global_batch_size() * arguments.seq_length
    planned = planned_timers(plan, timers, tokens=tokens, clocks=clocks, output=output)
    variables._GLOBAL_TIMERS = planned
    return planned


def planned_timers(
    plan: PlanSource,
    timers: Any,
    *,
    microbatches: int | None = None,
    tokens: int | None = None,
    clocks: str = "planned",
    output: str | PathLike[str] | None = None,
) -> PlanTimers:
    """Return timers for `config.timers` that obey a plan. Call it once Megatron's process groups are initialised.

    Args:
        plan: path of the plan, or a `PlanFolder` or `Profiling`.
        timers: Megatron's own timers, to which everything else is left, or None.
        microbatches: of one pipeline in an iteration; None asks Megatron's calculator.
        tokens: of an iteration, over all replicas, for energy per token; None leaves them out.
        clocks: `planned`, or `dry` to log what would be set.
        output: folder of tables; None to write none.

    Raises:
        EngineError: the plan is of another layout or order than this job; no clock was set.
        KareusError: the plan cannot be read, or the GPU cannot be claimed.

    Example:
        >>> from kareus.adapters.megatron import planned_timers
        >>> config.timers = planned_timers("plan.json", config.timers, output="results/mine/adapters/second")
    """
    layout = _layout(microbatches or get_num_microbatches())
    schedule = PipelineSchedule.INTERLEAVED if layout.chunks > 1 else PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    instructions = pipeline_instructions(schedule, layout.stages, layout.microbatches, chunks=layout.chunks)
    running = [i.key for i in instructions if i.key.stage == layout.stage]
    driver = drive_by_plan(plan, layout, _device(), running, clocks=clocks, output=output)
    return PlanTimers(timers, driver, running, tokens)


def check_groups(group: int | None) -> None:
    """Check that interleaving goes through the chunks in groups of as many microbatches as there are stages.

    Args:
        group: Megatron's `microbatch_group_size_per_vp_stage`; None is its default.

    Raises:
        EngineError: it goes in other groups, which timers cannot tell.
    """
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    if parallel_state.get_virtual_pipeline_model_parallel_world_size() is not None and group not in (None, stages):
        raise EngineError(
            f"microbatch_group_size_per_vp_stage={group}: plans interleave in groups of {stages}; set it so."
        )


class _HookedTimer:
    """A timer of Megatron that says when it starts and stops."""

    def __init__(self, timer: Any, on_start: Hook, on_stop: Hook) -> None:
        self.timer = timer
        self._on_start = on_start
        self._on_stop = on_stop

    def start(self, barrier: bool = False) -> None:  # noqa: FBT001, FBT002 - Megatron's signature
        self._on_start()
        self.timer.start(barrier=barrier)

    def stop(self, barrier: bool = False) -> None:  # noqa: FBT001, FBT002 - as above
        self.timer.stop(barrier=barrier)
        self._on_stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.timer, name)


class _NoTimer:
    """Stands for a timer where Megatron has none."""

    def start(self, *, barrier: bool = False) -> None:
        pass

    def stop(self, *, barrier: bool = False) -> None:
        pass


_NO_TIMER = _NoTimer()


def _nothing() -> None:
    pass


def _layout(microbatches: int) -> RankLayout:
    return RankLayout(
        rank=dist.get_rank(),
        gpus=dist.get_world_size(),
        stage=parallel_state.get_pipeline_model_parallel_rank(),
        stages=parallel_state.get_pipeline_model_parallel_world_size(),
        chunks=parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1,
        microbatches=microbatches,
    )


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
