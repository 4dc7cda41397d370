"""lowtime, the solver of Perseus: from the slowest iteration down, one unit of time in each step, by minimum cuts.

It plans durations along an exponential fitted to the points; a duration means the slowest point that is not slower.
"""

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import networkx as nx
from lowtime.cost_model import ExponentialModel
from lowtime.operation import CandidateExecutionOptions, DummyOperation, ExecutionOption, Operation, OperationSpec
from lowtime.solver import PhillipsDessouky

from kareus.pipeline.solver.problem import PointSet, Problem

UNIT_S = 0.001
"""Length of a step."""


@dataclass(frozen=True, slots=True)
class PeerRun:
    """One whole run."""

    cpu_s: float
    """CPU time of its steps; neither fitting nor building the graph is counted."""
    choices: list[list[int]]
    """Plans, one after each step: index into each instruction's point set."""


def run_lowtime(problem: Problem) -> PeerRun:
    """Run lowtime to its end."""
    operations = [Operation(_spec(points)) for points in problem.point_sets]
    steps = PhillipsDessouky(_graph(problem, operations)).run()
    choices, cpu_s = [], 0.0
    while True:
        began_s = time.process_time()
        step = next(steps, None)
        cpu_s += time.process_time() - began_s
        if step is None:
            return PeerRun(cpu_s, choices)
        choices.append([operation.assigned_knob for operation in operations])


@cache
def _spec(points: PointSet) -> OperationSpec[int]:
    """The points of one instruction; energies are effective, as in Perseus."""
    options = CandidateExecutionOptions(
        [
            ExecutionOption(real_time=time_s, unit_time=UNIT_S, cost=energy_j, knob=n)
            for n, (time_s, energy_j) in enumerate(zip(points.times_s, points.energies_j, strict=True))
        ]
    )
    with warnings.catch_warnings(action="ignore"):  # it tries many starts, of which some overflow
        return OperationSpec(options, ExponentialModel(options, search_strategy="best"))


def _graph(problem: Problem, operations: list[Operation[int]]) -> nx.DiGraph:
    """Operations on the nodes, with one source before and one sink after all."""
    graph = nx.DiGraph(source_node="source", sink_node="sink")
    graph.add_node("source", op=DummyOperation())
    graph.add_node("sink", op=DummyOperation())
    for number, operation in enumerate(operations):
        graph.add_node(number, op=operation)
    graph.add_edges_from(_edges(problem))
    return graph


def _edges(problem: Problem) -> Iterator[tuple[int | str, int | str]]:
    for number, successors in enumerate(problem.dag.successors):
        yield from ((number, after) for after, _ in successors or (("sink", 0.0),))
        if not problem.dag.predecessors[number]:
            yield "source", number
