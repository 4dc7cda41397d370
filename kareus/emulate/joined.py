"""Pipelines that wait for one another: which of their instructions do, and the others' plan beside a slow pipeline.

Gradient reduction, the update of a sharded optimizer and, where gradients or weights are sharded or experts are shared
out over several pipelines, forwards and backwards have collectives over pipelines of a fleet. Such an instruction
starts nowhere before what precedes it has ended in every pipeline, and what follows it starts nowhere before it has
ended in every pipeline.
"""

from collections.abc import Sequence
from dataclasses import replace

from kareus.graph.records import TRACED, Direction
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.solver.dag import Dag, Edges, dag_of, earliest_starts, makespan
from kareus.pipeline.solver.frontier import PlannedIteration, cheapest_within
from kareus.pipeline.solver.problem import PointSet, Problem
from kareus.profile.sharded import COMPUTING_GRADIENTS

ROUNDING = 1e-9
"""Share of a slow pipeline's time by which it may be delayed.

The least makespan beside it is its own, which leaves the others much choice: at exactly that deadline, the solver would
search long for the best plan, and gain hundredths of a percent over rounding.
"""


def joining(config: PipelineSlice) -> frozenset[int]:
    """Return the numbers of the instructions of an iteration whose collectives span data-parallel replicas."""
    parallelism = config.parallelism
    spanning = {
        *(Direction.GRADIENT_REDUCTION,) * (parallelism.dp > 1),
        *(Direction.UPDATE,) * parallelism.shards_states,
        *COMPUTING_GRADIENTS * parallelism.shards_gradients,
        *(Direction.FORWARD, Direction.INPUT_GRADIENT) * parallelism.shards_weights,
        *TRACED * parallelism.replicas_exchange,
    }
    return frozenset(number for number, i in enumerate(instructions_of(config)) if i.key.direction in spanning)


def plan_beside_slow_pipeline(
    problem: Problem, joined: frozenset[int], fastest: PlannedIteration, slowdown: float
) -> PlannedIteration:
    """Return the plan of least energy with which a pipeline does not delay a slow one.

    Args:
        problem: of one pipeline alone.
        joined: numbers of the instructions that both pipelines have together.
        fastest: plan that the slow pipeline runs, `slowdown` times as slowly.
        slowdown: 1 or more.

    Returns:
        A plan whose time is the makespan of the pipeline alone, as if it waited for nobody.
    """
    beside = beside_slow_pipeline(problem, joined, _choice(problem, fastest.points), slowdown)
    time_s = slowdown * fastest.time_s
    cheapest = cheapest_within(beside, time_s * (1 + ROUNDING) if joined else time_s)
    points = cheapest.points[: len(problem.point_sets)]
    return replace(cheapest, points=points, time_s=makespan(problem.dag, problem.times_s(_choice(problem, points))))


def beside_slow_pipeline(problem: Problem, joined: frozenset[int], choice: Sequence[int], slowdown: float) -> Problem:
    """Return what a pipeline plans beside a slow one, whose instructions take `slowdown` times as long as in a plan.

    The instructions of the pipeline keep their numbers. After them come the start of the iteration, from which edges
    have the times at which the slow pipeline is done with what waits for nobody, and its instructions from the first
    joined one on. These use no energy here; the makespan is that of both pipelines.

    Args:
        problem: of one pipeline alone.
        joined: numbers of the instructions that both pipelines have together; without any the problem stays as it is.
        choice: index into the point set of each instruction, of the plan that the slow pipeline runs.
        slowdown: 1 or more.
    """
    if not joined:
        return problem
    times_s = [slowdown * time_s for time_s in problem.times_s(choice)]
    reached = _with_successors(problem.dag, joined)
    later = [i for i in problem.dag.order if i in reached]
    start = len(times_s)
    slow = {i: start + 1 + place for place, i in enumerate(later)}
    ends_s = [
        slowdown * at_s + time_s
        for at_s, time_s in zip(earliest_starts(problem.dag, problem.times_s(choice)), times_s, strict=True)
    ]

    def slow_edge(before: int, transfer_s: float) -> tuple[int, float]:
        """Return what stands for the edge from `before` of the slow pipeline."""
        sent_s = slowdown * transfer_s
        return (slow[before], sent_s) if before in slow else (start, ends_s[before] + sent_s)

    own_edges, slow_edges = list(problem.dag.predecessors), dict[int, Edges]()
    for i in later:
        edges = problem.dag.predecessors[i]
        of_slow = {before: slow_edge(before, transfer_s) for before, transfer_s in edges}
        across = [(before, transfer_s) for before, transfer_s in edges if i in joined or before in joined]
        own_edges[i] = (*edges, *(of_slow[before] for before, _ in across))
        slow_edges[i] = (*of_slow.values(), *across)
    idle = PointSet((0,), (0.0,), (0.0,))
    return replace(
        problem,
        dag=dag_of(
            (start, *(n for i in problem.dag.order for n in ((i, slow[i]) if i in slow else (i,)))),
            [*own_edges, (), *slow_edges.values()],
        ),
        point_sets=(*problem.point_sets, idle, *(PointSet((0,), (times_s[i],), (0.0,)) for i in later)),
    )


def _with_successors(dag: Dag, joined: frozenset[int]) -> set[int]:
    """Return the joined instructions and all that follow from one."""
    reached = set(joined)
    for i in dag.order:
        if any(before in reached for before, _ in dag.predecessors[i]):
            reached.add(i)
    return reached


def _choice(problem: Problem, points: Sequence[int]) -> list[int]:
    """Return the index into the point set of each instruction of its `point`."""
    return [point_set.points.index(point) for point_set, point in zip(problem.point_sets, points, strict=True)]
