"""Schedules of a microbatch's instructions: from a plan's choices to launches, turn by turn.

The order of turns comes from `kareus.graph.interleave`, as it does for multiplicities and for the GPU model.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.errors import ArtifactError, EngineError
from kareus.graph.interleave import NUMBER, Pair, partition_of, staggered
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import RECOMPUTING, BlockGraph, CollectiveKind, Direction, Segment
from kareus.plans.document import Plan, PlannedInstruction
from kareus.profile.programs import Execution
from kareus.schedule.records import Choice


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one instruction runs."""

    execution: Execution = Execution.SEQUENTIAL
    choices: tuple[Choice, ...] = ()
    """One for each partition under `overlap`."""

    @property
    def splits(self) -> bool:
        """Whether the microbatch runs as two nanobatches."""
        return self.execution is not Execution.SEQUENTIAL


@dataclass(frozen=True, slots=True)
class MicrobatchSchedule:
    """How the instructions of one microbatch run on one chunk of a stage; weight gradients are always sequential."""

    forward: Schedule = Schedule()
    backward: Schedule = Schedule()
    """Of a backward that is split, its input gradients."""


Schedules = Mapping[tuple[int, int], MicrobatchSchedule]
"""Of a stage, by chunk and microbatch."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One segment of one nanobatch, and when the collective of the other is launched beside it."""

    nanobatch: int
    """0 or 1."""
    places: Mapping[str, tuple[int, ...]]
    """Places of the segment's operators, by name; where blocks run again, some are in it twice."""
    launch: int
    """Place of the operator beside which the other's collective is launched."""
    sm_count: int | None
    """SMs for that collective; None leaves them to the communicator."""
    ends_with: CollectiveKind | None
    """The collective that ends the segment."""


def planned_schedules(plan: Plan, stage: int) -> dict[tuple[int, int], MicrobatchSchedule]:
    """Schedules of a stage, by chunk and microbatch."""
    planned = plan.stages[stage].instructions
    forward = {(i.chunk, i.microbatch): _schedule(i) for i in planned if i.direction is Direction.FORWARD}
    backward = {(i.chunk, i.microbatch): _schedule(i) for i in planned if i.direction in RECOMPUTING}
    return {key: MicrobatchSchedule(forward[key], backward[key]) for key in forward}


def turns_of(
    schedule: Schedule,
    graph: BlockGraph,
    layers: int,
    direction: Direction,
    *,
    recomputation: Recomputation,
    default_sm_count: int | None,
    dense: int = 0,
) -> tuple[Turn, ...]:
    """Turns of two staggered nanobatches through `layers` blocks.

    Args:
        schedule: with a choice for every partition under `overlap`; default nanobatching launches every collective
            as soon as it can be, on the default number of SMs.
        graph: operator graph of the block; only names and order are read, so that any batch will do.
        layers: blocks of the stage.
        direction: of the instruction.
        recomputation: what a backward recomputes.
        default_sm_count: SMs of a collective that no choice is made for.
        dense: blocks, the first ones, that have no experts where the others have.

    Raises:
        EngineError: a choice is missing, or names an operator that its partition lacks.
    """
    choices = {choice.partition: choice for choice in schedule.choices}
    pairs = staggered(graph, layers, direction, recomputation=recomputation, dense=dense)
    overlaps = schedule.execution is Execution.OVERLAP
    return tuple(
        _turn(pair, pair.segment, choices if overlaps else None, default_sm_count) for pair in pairs if pair.segment
    )


def _schedule(instruction: PlannedInstruction) -> Schedule:
    return Schedule(instruction.execution, instruction.partitions)


def _turn(pair: Pair, segment: Segment, choices: Mapping[str, Choice] | None, default_sm_count: int | None) -> Turn:
    places: dict[str, tuple[int, ...]] = {}
    for place, operator in enumerate(segment.operators):
        name = re.sub(NUMBER, "", operator.name)
        places[name] = (*places.get(name, ()), place)
    ends_with = segment.collective.kind if segment.collective else None
    if pair.collective is None or choices is None:
        return Turn(pair.nanobatch, places, 0, default_sm_count, ends_with)
    partition = partition_of(segment, pair.collective)
    if partition.name not in choices:
        raise EngineError(
            f"{partition.name}: the schedule has no choice for this partition, only for "
            f"{', '.join(choices) or 'none'}; run a plan of this workload."
        )
    choice = choices[partition.name]
    try:
        launch = partition.operator_index(choice.launch)
    except ArtifactError as error:
        raise EngineError(f"{error} It is the launch of a plan; run a plan of this workload.") from error
    return Turn(pair.nanobatch, places, launch, choice.sm_count, ends_with)


Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Token ids and the ids that follow them, each [microbatch_size, sequence_length / cp]."""

    ids: Ids
    labels: Ids
