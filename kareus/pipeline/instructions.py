"""Instructions of one iteration of a pipeline, and what each waits for.

A schedule is one small module that orders the instructions of a stage; what an instruction waits for follows from that
order and from the flow of activations and gradients. To add a schedule, write its module and name it in `SCHEDULES`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kareus.artifacts.records import to_plain
from kareus.partition.graph import Direction
from kareus.pipeline import one_forward_one_backward
from kareus.workload.config import PipelineSchedule

StageOrder = Callable[[int, int, int], list[tuple[Direction, int]]]
"""Of (stage, stages, microbatches): direction and microbatch of each instruction of the stage, in order."""

SCHEDULES: dict[PipelineSchedule, StageOrder] = {
    PipelineSchedule.ONE_FORWARD_ONE_BACKWARD: one_forward_one_backward.stage_order,
}


@dataclass(frozen=True, slots=True)
class Instruction:
    """A forward or backward of one microbatch on one stage. Its number is its place in the iteration's tuple."""

    stage: int
    position: int
    """Place in the stage's order of execution, from 0."""
    direction: Direction
    microbatch: int
    depends_on: tuple[int, ...]
    """Numbers of the instructions that must have ended (and sent, across stages) before it starts, ascending."""


def pipeline_instructions(schedule: PipelineSchedule, stages: int, microbatches: int) -> tuple[Instruction, ...]:
    """Instructions of one iteration, stage by stage in order of execution.

    Args:
        schedule: order of instructions on the stages.
        stages: pipeline stages, 1 or more.
        microbatches: microbatches of one pipeline in one iteration, 1 or more; may be fewer than stages.
    """
    orders = [SCHEDULES[schedule](stage, stages, microbatches) for stage in range(stages)]
    slots = [(stage, *work) for stage, order in enumerate(orders) for work in order]
    numbers = {slot: number for number, slot in enumerate(slots)}
    positions = [position for order in orders for position in range(len(order))]
    return tuple(
        Instruction(stage, position, direction, microbatch, _depends_on(numbers, slot, position, stages))
        for slot, position in zip(slots, positions, strict=True)
        for stage, direction, microbatch in [slot]
    )


def instruction_rows(instructions: Sequence[Instruction]) -> list[dict[str, Any]]:
    """Rows of the table `INSTRUCTIONS`."""
    return [{"instruction": number, **to_plain(instruction)} for number, instruction in enumerate(instructions)]


def _depends_on(
    numbers: dict[tuple[int, Direction, int], int], slot: tuple[int, Direction, int], position: int, stages: int
) -> tuple[int, ...]:
    """The instruction before it on its stage, and the one that produces its input."""
    stage, direction, microbatch = slot
    waits = {numbers[slot] - 1} if position else set()
    if direction is Direction.FORWARD and stage > 0:
        waits.add(numbers[stage - 1, Direction.FORWARD, microbatch])
    elif direction is Direction.BACKWARD and stage < stages - 1:
        waits.add(numbers[stage + 1, Direction.BACKWARD, microbatch])
    elif direction is Direction.BACKWARD:
        waits.add(numbers[stage, Direction.FORWARD, microbatch])
    return tuple(sorted(waits))
