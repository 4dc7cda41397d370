"""Plans in any schedule of torch.distributed.pipelining.

    planned = obey(schedule, "results/mine/plan/fastest.json", output="adapters/first")
    ...  # schedule.step(...) as before
    planned.close()

PyTorch's stages have no hooks, so that three methods of the stages of this rank are wrapped, and `step` of the
schedule; `close` puts them back. Every call of `step` is an iteration of the plan; what a plan does after the last
backward begins when `step` has returned and ends with the next one, or with an evaluation.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, _Action, _PipelineSchedule
from torch.distributed.pipelining.stage import _PipelineStageBase

from kareus.adapters.driver import StageDriver, drive_by_plan
from kareus.adapters.layout import RankLayout
from kareus.adapters.sources import PlanSource
from kareus.errors import EngineError
from kareus.graph.instruction import InstructionKey, place_in_line
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions
from kareus.runtime.actions import COMPUTATIONS
from kareus.runtime.pipeline import kareus_errors

DIRECTIONS = {computation: direction for direction, computation in COMPUTATIONS.items()}
OWN_ORDERS: Mapping[type[_PipelineSchedule], PipelineSchedule] = {
    Schedule1F1B: PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,
    ScheduleGPipe: PipelineSchedule.GPIPE,
}
"""Schedules that run by another order than they give: PyTorch 2.13 numbers forwards of 1F1B's last stage from 1."""
WRAPPED = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
"""Methods of a stage that tell the driver what runs."""


class PlannedSchedule:
    """A schedule that follows a plan on this rank. Made by `obey`."""

    def __init__(self, schedule: _PipelineSchedule, driver: StageDriver, tokens: int | None) -> None:
        """Wrap a schedule.

        Args:
            schedule: of this rank.
            driver: told what runs.
            tokens: that all replicas train on in one call of `step`, for the tables.
        """
        self.driver = driver
        """Driver of this rank."""
        self._schedule = schedule
        self._tokens = tokens
        for stage in stages_of(schedule):
            for name in WRAPPED:
                setattr(stage, name, self._told(stage, getattr(stage, name)))
        self._step = schedule.step
        setattr(schedule, "step", self._iteration)  # noqa: B010 - a method of its class

    def close(self) -> None:
        """End the last iteration, put the methods back, restore the clock and write the tables; may be called again."""
        if "step" in vars(self._schedule):
            del vars(self._schedule)["step"]
            for stage in stages_of(self._schedule):
                for name in WRAPPED:
                    del vars(stage)[name]
        self.driver.close()

    def _told(self, stage: _PipelineStageBase, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of a stage that tells the driver what it runs; of evaluation it tells nothing."""
        direction_of = _direction_of(run)

        @functools.wraps(run)
        def followed(microbatch: int, *positional: Any, **named: Any) -> Any:
            if not stage.has_backward:
                return run(microbatch, *positional, **named)
            key = _key(stage, microbatch, direction_of(positional, named))
            self.driver.begin(key)
            result = run(microbatch, *positional, **named)
            self.driver.end(key)
            return result

        return followed

    def _iteration(self, *positional: Any, **named: Any) -> Any:
        """Run one iteration: PyTorch's `step`, then the plan's update until the next one; or an evaluation."""
        if not self._schedule._has_backward:
            self.driver.begin_evaluation()
            return self._step(*positional, **named)
        self.driver.begin_iteration()
        try:
            with kareus_errors():
                result = self._step(*positional, **named)
        except BaseException:
            self.driver.abandon_iteration()
            raise
        self.driver.end_passes(self._tokens)
        return result


def obey(
    schedule: _PipelineSchedule,
    plan: PlanSource,
    *,
    clocks: str = "planned",
    output: str | PathLike[str] | None = None,
    tokens: int | None = None,
) -> PlannedSchedule:
    """Have a schedule follow a plan: check its order, set the planned clocks and record what it takes.

    Args:
        schedule: of this rank, with its stages; call it from the main thread.
        plan: path of the plan, or a `PlanFolder` or `Profiling`.
        clocks: `planned`, or `dry` to log clocks and lock none.
        output: folder of the tables `microbatches` and `steps`; None to write none.
        tokens: that all replicas train on in one call of `step`, for the tables.

    Raises:
        EngineError: the plan is of another pipeline, or has another order. No clock was set.
        DeviceError: the GPU is in use, or the driver refuses.
        ArtifactError: the plan cannot be read.

    Example:
        >>> from kareus.adapters.pipelining import obey
        >>> planned = obey(schedule, "plan/fastest_sequential+perseus.json", output="adapters/first", tokens=65536)
        >>> # train as before: every call of schedule.step is an iteration
        >>> planned.close()
    """
    layout, running = layout_of(schedule), tuple(passes_of(schedule))
    device = stages_of(schedule)[0].device
    driver = drive_by_plan(plan, layout, device, running, clocks=clocks, output=output)
    return PlannedSchedule(schedule, driver, tokens)


def stages_of(schedule: _PipelineSchedule) -> list[_PipelineStageBase]:
    """Return the stages of this rank: one, or its chunks in order."""
    several = getattr(schedule, "_stages", None)
    return list(several) if several is not None else [schedule._stage]  # type: ignore[attr-defined]


def layout_of(schedule: _PipelineSchedule) -> RankLayout:
    """Return the place of this rank in the pipeline of a schedule.

    Raises:
        EngineError: its stages are not dealt out to ranks in turns.
    """
    stages = stages_of(schedule)
    rank, ranks = stages[0].group_rank, stages[0].group_size
    for chunk, stage in enumerate(stages):
        planned, folded = (place_in_line(rank, chunk, ranks, folded=folded) for folded in (False, True))
        if stage.stage_index not in (planned, folded):
            raise EngineError(
                f"stage {stage.stage_index} on pipeline rank {rank}: plans have stage {planned} there; use a schedule "
                "that deals stages out in turns, such as Interleaved1F1B, or in a V, such as ZBVZeroBubble."
            )
    return RankLayout(
        rank=dist.get_rank(),
        gpus=dist.get_world_size(),
        stage=rank,
        stages=ranks,
        chunks=len(stages),
        microbatches=schedule._n_microbatches,
    )


def passes_of(schedule: _PipelineSchedule) -> Iterator[InstructionKey]:
    """Yield the forwards and backwards of this rank in the order in which a schedule runs them.

    Raises:
        EngineError: the schedule has no order yet.
    """
    stage = stages_of(schedule)[0]
    if type(schedule) in OWN_ORDERS:
        instructions = pipeline_instructions(OWN_ORDERS[type(schedule)], stage.group_size, schedule._n_microbatches)
        yield from (i.key for i in instructions if i.key.stage == stage.group_rank)
        return
    order = getattr(schedule, "pipeline_order", None) or getattr(schedule, "pipeline_order_with_comms", None)
    if not order:
        raise EngineError(f"{type(schedule).__name__}: has no order yet; load its schedule before the plan is obeyed.")
    for action in order[stage.group_rank]:
        for single in _single(action):
            if single.computation_type in DIRECTIONS and single.microbatch_index is not None:
                chunk = single.stage_index // stage.group_size
                direction = DIRECTIONS[single.computation_type]
                yield InstructionKey(stage.group_rank, chunk, single.microbatch_index, direction)


def _single(action: _Action | None) -> tuple[_Action, ...]:
    """Return the actions that one stands for: itself, or a forward and a backward that run in turns."""
    return () if action is None else action.sub_actions or (action,)


def _key(stage: _PipelineStageBase, microbatch: int, direction: Direction) -> InstructionKey:
    return InstructionKey(stage.group_rank, stage.stage_index // stage.group_size, microbatch, direction)


def _direction_of(run: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Direction]:
    """Return how the direction follows from the arguments, after the microbatch, of a method in `WRAPPED`."""
    match run.__name__:
        case "forward_one_chunk":
            return lambda positional, named: Direction.FORWARD
        case "backward_weight_one_chunk":
            return lambda positional, named: Direction.WEIGHT_GRADIENT
    # (loss=None, full_backward=True, ...)
    return lambda positional, named: (
        Direction.BACKWARD if named.get("full_backward", (*positional, None, True)[1]) else Direction.INPUT_GRADIENT
    )
