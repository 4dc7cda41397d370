"""Instructions of one iteration of a pipeline, and what each waits for.

A schedule is one small module that orders the instructions of a stage; what an instruction waits for follows from that
order and from the flow of activations and gradients. To add a schedule, write its module and name it in `SCHEDULES`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kareus.artifacts.records import to_plain
from kareus.errors import ScheduleError
from kareus.graph.records import Direction
from kareus.model.config import Parallelism
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.pipeline.schedules import gpipe, interleaved, one_forward_one_backward, zero_bubble_h1
from kareus.pipeline.schedules.deadlock import order_of_dependency
from kareus.pipeline.schedules.work import Extent, StageOrder, Work, described

SCHEDULES: dict[PipelineSchedule, Callable[[int, Extent], StageOrder]] = {
    PipelineSchedule.ONE_FORWARD_ONE_BACKWARD: one_forward_one_backward.stage_order,
    PipelineSchedule.GPIPE: gpipe.stage_order,
    PipelineSchedule.INTERLEAVED: interleaved.stage_order,
    PipelineSchedule.ZERO_BUBBLE_H1: zero_bubble_h1.stage_order,
}
"""The order of a stage, by its number and the size of the pipeline."""

Slot = tuple[int, Work]
"""A stage and what it does."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A pass of one microbatch through a stage, or a chunk of it. Its number is its place in the iteration's tuple."""

    stage: int
    position: int
    """Place in the stage's order of execution, from 0."""
    direction: Direction
    microbatch: int
    depends_on: tuple[int, ...]
    """Numbers of the instructions that must have ended (and sent, across stages) before it starts, ascending."""
    chunk: int = 0
    """Chunk of the stage's layers, from 0."""


class Pipelined(Protocol):
    """What decides the instructions of an iteration: a `Workload`, or the slice of it that solving reads."""

    @property
    def pipeline(self) -> PipelineConfig:
        """The schedule and its chunks."""

    @property
    def parallelism(self) -> Parallelism:
        """Of it, the stages."""

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one pipeline in one iteration."""


def instructions_of(config: Pipelined) -> tuple[Instruction, ...]:
    """Instructions of one iteration of a workload, stage by stage in order of execution."""
    pipeline = config.pipeline
    return pipeline_instructions(
        pipeline.schedule, config.parallelism.pp, config.num_microbatches, chunks=pipeline.chunks
    )


def pipeline_instructions(
    schedule: PipelineSchedule, stages: int, microbatches: int, *, chunks: int = 1
) -> tuple[Instruction, ...]:
    """Instructions of one iteration, stage by stage in order of execution.

    Args:
        schedule: order of instructions on the stages.
        stages: pipeline stages, 1 or more.
        microbatches: microbatches of one pipeline in one iteration, 1 or more; may be fewer than stages, unless the
            schedule interleaves: then a multiple of them.
        chunks: parts of every stage's layers.
    """
    extent = Extent(stages=stages, microbatches=microbatches, chunks=chunks)
    return instructions_in([SCHEDULES[schedule](stage, extent) for stage in range(stages)])


def instructions_in(orders: Sequence[StageOrder]) -> tuple[Instruction, ...]:
    """Instructions of stages that run in these orders, generated or written by hand.

    Raises:
        ScheduleError: an instruction is there twice, its input is never computed, or some wait for one another in a
            circle.
    """
    slots = [(stage, work) for stage, order in enumerate(orders) for work in order]
    numbers = {slot: number for number, slot in enumerate(slots)}
    if len(numbers) < len(slots):
        twice = next(slot for number, slot in enumerate(slots) if numbers[slot] != number)
        raise ScheduleError(f"the pipeline's order has {described(*twice)} twice; keep one of them.")
    last = len(orders) - 1, max((work.chunk for _, work in slots), default=0)
    positions = [position for order in orders for position in range(len(order))]
    instructions = tuple(
        Instruction(
            stage,
            position,
            work.direction,
            work.microbatch,
            _depends_on(numbers, (stage, work), position, last),
            work.chunk,
        )
        for (stage, work), position in zip(slots, positions, strict=True)
    )
    order_of_dependency([i.depends_on for i in instructions], lambda number: described(*slots[number]))
    return instructions


def instruction_rows(instructions: Sequence[Instruction]) -> list[dict[str, Any]]:
    """Rows of the table `INSTRUCTIONS`."""
    return [{"instruction": number, **to_plain(instruction)} for number, instruction in enumerate(instructions)]


def _depends_on(numbers: Mapping[Slot, int], slot: Slot, position: int, last: tuple[int, int]) -> tuple[int, ...]:
    """The instruction before it on its stage, and the one that produces its input."""
    waits = {numbers[slot] - 1} if position else set()
    source = _input_of(slot, last)
    if source is not None:
        if source not in numbers:
            raise ScheduleError(
                f"{described(*slot)} waits for {described(*source)}, which the pipeline's order lacks; add it."
            )
        waits.add(numbers[source])
    return tuple(sorted(waits))


def _input_of(slot: Slot, last: tuple[int, int]) -> Slot | None:
    """What produces the input of an instruction: activations flow up through the stages, gradients down.

    Args:
        slot: the instruction.
        last: the last stage and its last chunk, where the one turns into the other.
    """
    stage, work = slot
    last_stage, last_chunk = last
    if work.direction is Direction.WEIGHT_GRADIENT:
        return stage, work._replace(direction=Direction.INPUT_GRADIENT)
    if work.direction is Direction.FORWARD:
        if stage > 0:
            return stage - 1, work
        return (last_stage, work._replace(chunk=work.chunk - 1)) if work.chunk else None
    if stage < last_stage:
        return stage + 1, work
    if work.chunk < last_chunk:
        return 0, work._replace(chunk=work.chunk + 1)
    return stage, work._replace(direction=Direction.FORWARD)
