"""Instructions of one iteration of a pipeline, and what each waits for.

A schedule is a function that orders the instructions of a stage (`kareus.pipeline.orders`); what an instruction waits
for follows from that order and from the flow of activations and gradients. To add one, write it and name it in
`SCHEDULES`.
Where the iteration includes the update of the weights, every stage ends with it (`kareus.update.collectives`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kareus.arrays import Indices
from kareus.errors import ScheduleError
from kareus.graph.instruction import NO_MICROBATCH, InstructionKey, InstructionKind, place_in_line
from kareus.graph.records import MEETING, UPDATING, Direction
from kareus.pipeline.config import PipelineSchedule, PipelineSlice
from kareus.pipeline.deadlock import order_of_dependency
from kareus.pipeline.orders import (
    Extent,
    dualpipe_v,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble_h1,
    zero_bubble_v,
)
from kareus.update.collectives import update_directions

KEPT = 1024
"""Pipelines whose instructions, or whose order, are kept."""
SCHEDULES: dict[PipelineSchedule, Callable[[int, Extent], Sequence[InstructionKey]]] = {
    PipelineSchedule.ONE_FORWARD_ONE_BACKWARD: one_forward_one_backward,
    PipelineSchedule.GPIPE: gpipe,
    PipelineSchedule.INTERLEAVED: interleaved,
    PipelineSchedule.ZERO_BUBBLE_H1: zero_bubble_h1,
    PipelineSchedule.ZERO_BUBBLE_V: zero_bubble_v,
    PipelineSchedule.DUALPIPE_V: dualpipe_v,
}
"""By schedule, the function that gives the order of a stage from its number and the size of the pipeline."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of an iteration and what it waits for. Its number is its place in the iteration's tuple."""

    key: InstructionKey
    position: int
    """Place in the stage's order of execution, from 0."""
    depends_on: tuple[int, ...]
    """Numbers of the instructions that must have ended (and sent, across stages) before it starts, ascending."""


class PipelineShape(NamedTuple):
    """What decides the instructions of an iteration and their order; layouts that are compared often share it."""

    schedule: PipelineSchedule
    stages: int
    microbatches: int
    chunks: int
    updates: tuple[tuple[Direction, ...], ...]
    """Instructions of the update of each stage; empty where the iteration ends without it."""


def shape_of(config: PipelineSlice, microbatches: int | None = None) -> PipelineShape:
    """Return the shape of a workload's pipeline, with another number of microbatches if one is given."""
    pipeline, stages = config.pipeline, config.parallelism.pp
    updates = tuple(update_directions(config, n) for n in range(stages)) if config.iteration.include_update else ()
    return PipelineShape(pipeline.schedule, stages, microbatches or config.num_microbatches, pipeline.chunks, updates)


def instructions_of(config: PipelineSlice) -> tuple[Instruction, ...]:
    """Return the instructions of one iteration of a workload, stage by stage in order of execution."""
    return shape_instructions(shape_of(config))


def instructions_by_stage(instructions: Sequence[Instruction]) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the instructions of each stage, in order of execution."""
    numbers: dict[int, list[int]] = {}
    for number, instruction in enumerate(instructions):
        numbers.setdefault(instruction.key.stage, []).append(number)
    return tuple(map(tuple, numbers.values()))


@lru_cache(maxsize=KEPT)
def shape_instructions(shape: PipelineShape) -> tuple[Instruction, ...]:
    """Return the instructions of one iteration of a pipeline of this shape."""
    return pipeline_instructions(
        shape.schedule, shape.stages, shape.microbatches, chunks=shape.chunks, updates=shape.updates
    )


def pipeline_instructions(
    schedule: PipelineSchedule,
    stages: int,
    microbatches: int,
    *,
    chunks: int = 1,
    updates: Sequence[Sequence[Direction]] = (),
) -> tuple[Instruction, ...]:
    """Return the instructions of one iteration, stage by stage in order of execution.

    Args:
        schedule: order of instructions on the stages.
        stages: number of pipeline stages, 1 or more.
        microbatches: number of microbatches of one pipeline in one iteration, 1 or more; may be fewer than stages,
            unless the schedule interleaves: then a multiple of them.
        chunks: number of parts of every stage's layers.
        updates: directions of the update, in order, of every stage; empty where the iteration ends without it.
    """
    extent = Extent(stages=stages, microbatches=microbatches, chunks=chunks)
    keys: list[InstructionKey] = []
    for stage, directions in zip(range(stages), updates or [()] * stages, strict=True):
        keys += SCHEDULES[schedule](stage, extent)
        keys += [InstructionKey(stage, 0, NO_MICROBATCH, direction) for direction in directions]
    return _waiting(keys, folded=schedule.folds)


def instructions_in(keys: Sequence[InstructionKey], *, folded: bool = False) -> tuple[Instruction, ...]:
    """Return the instructions of an iteration that runs in this order, generated or written by hand.

    Args:
        keys: every instruction of the iteration, those of each stage in order of execution.
        folded: whether microbatches pass the stages there and back, as of `place_in_line`.

    Raises:
        ScheduleError: an instruction is there twice, its input is never computed, or some wait for one another in a
            circle.
    """
    instructions = _waiting(keys, folded=folded)
    order_of_dependency([i.depends_on for i in instructions], lambda number: str(keys[number]))
    return instructions


def _waiting(keys: Sequence[InstructionKey], *, folded: bool) -> tuple[Instruction, ...]:
    """Return the instructions as `instructions_in` does; whoever orders them finds whether some wait in a circle."""
    numbers = {key: number for number, key in enumerate(keys)}
    if len(numbers) < len(keys):
        twice = next(key for number, key in enumerate(keys) if numbers[key] != number)
        raise ScheduleError(f"the pipeline's order has {twice} twice; keep one of them.")
    line = _Line(1 + max(key.stage for key in keys), 1 + max(key.chunk for key in keys), folded)
    readies = _ready_numbers(keys)
    instructions: list[Instruction] = []
    ran: dict[int, list[int]] = {}  # by stage, the numbers of its instructions so far
    for number, key in enumerate(keys):
        of_stage = ran.setdefault(key.stage, [])
        inputs = readies.get(key.direction, ()) if key.direction in UPDATING else _input_numbers(numbers, key, line)
        waits = {*of_stage[-1:], *inputs}
        instructions.append(Instruction(key, len(of_stage), tuple(sorted(waits))))
        of_stage.append(number)
    return tuple(instructions)


@lru_cache(maxsize=KEPT)
def shape_kinds(shape: PipelineShape) -> tuple[tuple[InstructionKind, ...], Indices]:
    """Return the kinds of the instructions of a pipeline of this shape, and the number of the kind of each."""
    numbers: dict[InstructionKind, int] = {}
    kinds = [numbers.setdefault(i.key.kind, len(numbers)) for i in shape_instructions(shape)]
    return tuple(numbers), np.array(kinds)


def instruction_rows(instructions: Sequence[Instruction]) -> list[dict[str, Any]]:
    """Return the rows of the table `INSTRUCTIONS`."""
    return [
        {
            "instruction": number,
            **instruction.key._asdict(),
            "position": instruction.position,
            "depends_on": instruction.depends_on,
        }
        for number, instruction in enumerate(instructions)
    ]


def _ready_numbers(keys: Sequence[InstructionKey]) -> dict[Direction, list[int]]:
    """Return, for each direction in `MEETING`, the number of the instruction before it on every stage that has one."""
    readies: dict[Direction, list[int]] = {direction: [] for direction in MEETING}
    before: dict[int, int] = {}  # by stage, the number of its instruction so far
    for number, key in enumerate(keys):
        if key.direction in MEETING and key.stage in before:
            readies[key.direction].append(before[key.stage])
        before[key.stage] = number
    return readies


def _input_numbers(numbers: Mapping[InstructionKey, int], key: InstructionKey, line: "_Line") -> list[int]:
    """Return the number of the instruction that produces the input of `key`; empty where the input is the data.

    Raises:
        ScheduleError: no instruction produces it.
    """
    source = _input_of(key, line)
    if source is None:
        return []
    if source not in numbers:
        raise ScheduleError(f"{key} waits for {source}, which the pipeline's order lacks; add it.")
    return [numbers[source]]


class _Line(NamedTuple):
    """The chunks of a pipeline as a microbatch passes them."""

    stages: int
    chunks: int
    folded: bool

    def at(self, place: int) -> tuple[int, int]:
        """Return stage and chunk at a place, from 0."""
        chunk, stage = divmod(place, self.stages)
        return (self.stages - 1 - stage if self.folded and chunk % 2 else stage), chunk


def _input_of(key: InstructionKey, line: _Line) -> InstructionKey | None:
    """Return what produces the input of an instruction: activations flow up through the chunks, gradients down.

    After the last chunk activations turn into gradients.
    """
    if key.direction is Direction.WEIGHT_GRADIENT:
        return key._replace(direction=Direction.INPUT_GRADIENT)
    step = -1 if key.direction is Direction.FORWARD else 1
    place = place_in_line(key.stage, key.chunk, line.stages, folded=line.folded) + step
    if place < 0:
        return None
    if place == line.stages * line.chunks:
        return key._replace(direction=Direction.FORWARD)
    stage, chunk = line.at(place)
    return key._replace(stage=stage, chunk=chunk)
