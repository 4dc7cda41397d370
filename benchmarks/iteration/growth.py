"""How time and memory grow with the pipeline: each size in a process of its own, for its peak memory."""

import multiprocessing
import resource
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from kareus.pipeline.solver.frontier import iteration_frontier
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.relaxation import Relaxation

DEADLINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The iteration frontier of one pipeline."""

    instructions: int
    cpu_s: float
    relaxation_cpu_s: float
    """For the bounds of as many deadlines alone."""
    peak_gib: float
    """Of the process, with Python and what it imports."""
    gaps: list[float]
    """Certified gap of each plan, to all plans as fast."""


def solve_each(problems: Iterable[Problem]) -> Iterator[Solved]:
    """One after the other."""
    for problem in problems:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            yield process.submit(_solved, problem).result()


def _solved(problem: Problem) -> Solved:
    began_s = time.process_time()
    plans = iteration_frontier(problem, DEADLINES)
    cpu_s = time.process_time() - began_s
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    began_s = time.process_time()
    relaxation = Relaxation(problem)
    for plan in plans[::-1]:
        relaxation.solve(plan.deadline_s * (1 + 1e-11))
    return Solved(
        instructions=len(problem.point_sets),
        cpu_s=cpu_s,
        relaxation_cpu_s=time.process_time() - began_s,
        peak_gib=peak_gib,
        gaps=[plan.gap for plan in plans],
    )
