"""Pipelines that the tests of this room share, and an oracle that enumerates their plans."""

import dataclasses
import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from helpers.builders import CONFIG
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule, PipelineSlice
from kareus.pipeline.instructions import Instruction, instructions_by_stage, pipeline_instructions
from kareus.pipeline.solver.dag import build_dag
from kareus.pipeline.solver.problem import Problem, point_set
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

F, B, BI, BW, *UPDATES = Direction


def pipeline_slice(*, tp: int = 8, cp: int = 1, pp: int = 2, dp: int = 1, **changes: int) -> PipelineSlice:
    """The default workload with another parallelism and other settings."""
    (workload,) = resolve_accepted(["iteration.include_update=false"], CONFIG).values()
    own: PipelineSlice = cut(workload, "pipeline")
    parallelism = dataclasses.replace(own.parallelism, tp=tp, cp=cp, pp=pp, dp=dp, layers_per_stage=(1,) * pp)
    return dataclasses.replace(own, parallelism=parallelism, **changes)


LETTERS = {F: "F", B: "B", BI: "I", BW: "W"}


def order_text(instructions: Sequence[Instruction]) -> list[str]:
    """One line for each stage, such as `F0 F1 B0 B1`; a chunk stands after a dot."""
    lines: list[list[str]] = [[] for _ in range(1 + instructions[-1].key.stage)]
    dotted = any(i.key.chunk for i in instructions)
    for i in instructions:
        key, line = i.key, lines[i.key.stage]
        assert i.position == len(line)
        line.append(f"{LETTERS[key.direction]}{key.microbatch}{f'.{key.chunk}' * dotted}")
    return [" ".join(line) for line in lines]


def parsed(lines: Sequence[str]) -> list[InstructionKey]:
    """Return the order of every stage from its line of text, the inverse of `order_text`."""
    directions = {letter: direction for direction, letter in LETTERS.items()}
    names = [(stage, name[0], *name[1:].split(".")) for stage, line in enumerate(lines) for name in line.split()]
    return [
        InstructionKey(stage, int("".join(chunk) or 0), int(microbatch), directions[letter])
        for stage, letter, microbatch, *chunk in names
    ]


def one_f_one_b(stages: int, microbatches: int) -> tuple[Instruction, ...]:
    return pipeline_instructions(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, stages, microbatches)


def problem(stages: int, microbatches: int, points, transfer_s: float = 0.0, power_w: float = 0.0) -> Problem:
    """A 1F1B pipeline; `points` gives (seconds, joules) of each point by stage and direction."""
    instructions = one_f_one_b(stages, microbatches)
    sets = {key: point_set([(n, *p) for n, p in enumerate(of_key)]) for key, of_key in points.items()}
    return Problem(
        dag=build_dag(instructions, [transfer_s] * (stages - 1)),
        point_sets=tuple(sets[i.key.stage, i.key.direction] for i in instructions),
        waiting_power_w=power_w,
        stages=instructions_by_stage(instructions),
    )


def makespan_by_passes(instructions, times_s, transfer_s: float) -> float:
    """Iteration time without any order of dependency: relax all edges until nothing moves."""
    starts = [0.0] * len(instructions)
    for _ in instructions:
        for number, instruction in enumerate(instructions):
            for before in instruction.depends_on:
                sent = transfer_s if instructions[before].key.stage != instruction.key.stage else 0.0
                starts[number] = max(starts[number], starts[before] + times_s[before] + sent)
    return max(start + time_s for start, time_s in zip(starts, times_s, strict=True))


def all_plans(problem: Problem) -> list[tuple[float, float]]:
    """Time and energy of every combination of points."""
    return [problem.cost(choice) for choice in itertools.product(*(range(len(s.times_s)) for s in problem.point_sets))]


points = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3)


@st.composite
def clocked_problems(draw):
    """Tiny problems whose GPUs draw more while they wait for a faster instruction."""
    tiny = draw(tiny_problems())
    above_w = {
        id(points): tuple(sorted(draw(st.lists(st.integers(0, 30), min_size=n, max_size=n)), reverse=True))
        for points in tiny.distinct
        for n in [len(points.times_s)]
    }
    sets = {id(points): dataclasses.replace(points, waiting_above_w=above_w[id(points)]) for points in tiny.distinct}
    return dataclasses.replace(tiny, point_sets=tuple(sets[id(points)] for points in tiny.point_sets))


@st.composite
def tiny_problems(draw):
    """At most 2 stages x 2 microbatches x 3 points."""
    stages, microbatches = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    sets = {(s, d): [(t / 10, 10.0 * e) for t, e in draw(points)] for s in range(stages) for d in (F, B)}
    return problem(stages, microbatches, sets, draw(st.sampled_from([0.0, 0.05])), draw(st.sampled_from([0.0, 20.0])))
