"""Timing of an instruction DAG: when each instruction can start, and when the iteration ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from kareus.arrays import Array, Indices
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import UPDATING
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.deadlock import order_of_dependency
from kareus.pipeline.instructions import KEPT, Instruction, PipelineShape, shape_instructions, shape_of
from kareus.pipeline.transfers import transfers_s

Times = Sequence[float]
"""One number of seconds for each instruction."""
Edges = tuple[tuple[int, float], ...]
"""Of one instruction: instructions that it waits for, or that wait for it, with seconds of point-to-point between."""


@dataclass(frozen=True, slots=True)
class Wave:
    """Instructions that do not depend on one another, so that their starts are computed in one step."""

    members: Indices
    before: tuple[tuple[Indices, Array], ...]
    """Pairs of (instruction that each member waits for, seconds of point-to-point after that one's end).

    As many as the member with the most edges has, of shapes (members,) and (members, 1). The other members wait for
    one that does not exist, with the number -1.
    """


@dataclass(frozen=True)  # without slots, so that what follows from the edges can be kept
class Dag:
    """Instructions in order of dependency, with the delay on every edge."""

    order: tuple[int, ...]
    """Every instruction after all that it waits for."""
    predecessors: tuple[Edges, ...]
    """By instruction: (instruction that it waits for, seconds of point-to-point after that one's end)."""
    successors: tuple[Edges, ...]
    """By instruction: (instruction that waits for it, seconds of point-to-point after its end)."""

    @cached_property
    def mirrored(self) -> "Dag":
        """The same instructions with time running backwards; its latest ends are the negative earliest starts."""
        return Dag(self.order[::-1], predecessors=self.successors, successors=self.predecessors)

    @cached_property
    def depth_first(self) -> "Dag":
        """The same in another order of dependency: what has just become possible comes first."""
        waits = [len(edges) for edges in self.predecessors]
        ready, order = [i for i in self.order if not waits[i]], list[int]()
        while ready:
            order.append(ready.pop())
            for after, _ in self.successors[order[-1]]:
                waits[after] -= 1
                if not waits[after]:
                    ready.append(after)
        return Dag(tuple(order), predecessors=self.predecessors, successors=self.successors)

    @cached_property
    def waves(self) -> tuple[Wave, ...]:
        """All instructions, each in the first wave after those of all that it waits for."""
        waves: list[list[int]] = []
        wave_of = [0] * len(self.order)
        for i in self.order:
            wave_of[i] = max((wave_of[before] + 1 for before, _ in self.predecessors[i]), default=0)
            if wave_of[i] == len(waves):
                waves.append([])
            waves[wave_of[i]].append(i)
        return tuple(self._wave(members) for members in waves)

    def _wave(self, members: Sequence[int]) -> Wave:
        edges = [self.predecessors[i] for i in members]
        most = max(map(len, edges))
        padded = [(*waits, *[(-1, 0.0)] * (most - len(waits))) for waits in edges]
        before = [
            (np.array([i for i, _ in column]), np.array([[transfer_s] for _, transfer_s in column]))
            for column in zip(*padded, strict=True)
        ]
        return Wave(np.array(members), tuple(before))


def iteration_dag(config: PipelineSlice) -> Dag:
    """Return the instructions of one iteration of a workload in order of dependency, with its point-to-point times."""
    return shape_dag(shape_of(config), transfers_s(config))


@lru_cache(maxsize=KEPT)
def shape_dag(shape: PipelineShape, boundaries_s: tuple[float, ...]) -> Dag:
    """Return the order of a pipeline of this shape, as `build_dag` does."""
    return build_dag(shape_instructions(shape), boundaries_s)


def build_dag(instructions: Sequence[Instruction], boundaries_s: Sequence[float]) -> Dag:
    """Order `instructions` and put point-to-point time on the edges that cross stages.

    Args:
        instructions: as `pipeline_instructions` numbers them.
        boundaries_s: seconds over each boundary between stages, as `transfers_s` computes them.

    Raises:
        ScheduleError: they wait for one another in a circle.
    """
    order = order_of_dependency([i.depends_on for i in instructions], lambda number: str(instructions[number].key))
    predecessors = [
        tuple(
            (n, _transfer_s(instructions[n].key.stage, instruction.key, boundaries_s)) for n in instruction.depends_on
        )
        for instruction in instructions
    ]
    return dag_of(order, predecessors)


def dag_of(order: Sequence[int], predecessors: Sequence[Edges]) -> Dag:
    """Return the DAG of instructions whose edges are known by what each instruction waits for.

    Args:
        order: every instruction after all that it waits for.
        predecessors: by instruction, as in `Dag`.
    """
    successors: list[list[tuple[int, float]]] = [[] for _ in predecessors]
    for number, edges in enumerate(predecessors):
        for before, transfer_s in edges:
            successors[before].append((number, transfer_s))
    return Dag(tuple(order), tuple(predecessors), tuple(tuple(edges) for edges in successors))


def earliest_starts(dag: Dag, times_s: Times) -> list[float]:
    """Earliest start of each instruction in seconds, the iteration starting at 0."""
    starts = [0.0] * len(dag.order)
    for i in dag.order:
        start = 0.0
        for before, transfer_s in dag.predecessors[i]:
            start = max(start, starts[before] + times_s[before] + transfer_s)
        starts[i] = start
    return starts


def makespan(dag: Dag, times_s: Times) -> float:
    """Iteration time in seconds: when the last instruction ends."""
    ends_s = [0.0] * len(dag.order)
    for i in dag.order:  # as `earliest_starts`, in half of its time
        start_s = 0.0
        for before, transfer_s in dag.predecessors[i]:
            ready_s = ends_s[before] + transfer_s
            start_s = ready_s if ready_s > start_s else start_s
        ends_s[i] = start_s + times_s[i]
    return max(ends_s)


def latest_ends(dag: Dag, times_s: Array, deadlines_s: Array) -> Array:
    """Latest end of each instruction in seconds that still lets the iteration end by its lane's deadline.

    Args:
        dag: the instructions.
        times_s: seconds of each instruction; shape (instructions, lanes).
        deadlines_s: by lane.

    Returns:
        Shape (instructions, lanes).
    """
    ends_s = np.empty_like(times_s)
    starts_s = np.full((len(times_s) + 1, times_s.shape[1]), np.inf)  # the last is that of no instruction
    for wave in dag.mirrored.waves:
        latest_s = deadlines_s
        for after, transfer_s in wave.before:
            sent_s = starts_s.take(after, axis=0)
            sent_s -= transfer_s
            latest_s = np.minimum(latest_s, sent_s, out=sent_s)
        ends_s[wave.members] = latest_s
        starts_s[wave.members] = latest_s - times_s[wave.members]
    return ends_s


def earliest_starts_s(dag: Dag, times_s: Array) -> Array:
    """Earliest start of each instruction in every lane, added up as `earliest_starts` does: they agree in every digit.

    Args:
        dag: the instructions.
        times_s: seconds of each instruction; shape (instructions, lanes), as what is returned.
    """
    return 0.0 - latest_ends(dag.mirrored, times_s, np.zeros(times_s.shape[1]))  # a minus sign would write -0.0


def _transfer_s(sender: int, receiving: InstructionKey, boundaries_s: Sequence[float]) -> float:
    """Over the boundary between two neighbours, or over the one from the last stage back to the first.

    The update sends nothing from stage to stage: its instructions have the time of their collectives.
    """
    receiver = receiving.stage
    if sender == receiver or receiving.direction in UPDATING:
        return 0.0
    return boundaries_s[min(sender, receiver) if abs(sender - receiver) == 1 else max(sender, receiver)]
