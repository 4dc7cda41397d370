"""Planning a layout in full: its iteration frontier, from every way to run its instructions.

The points are those of the GPU model, exhaustively and free of noise: what `kareus plan` finds of them by searching and
measuring on a simulated testbed, up to its noise, which would otherwise decide between layouts that are as good. The
iteration frontier is solved as there.
"""

from kareus.adviser.predictions import LayoutCost, LayoutPrediction, LayoutPredictor
from kareus.gpu_model.waiting import least_waiting_w, waiting_above_w
from kareus.pareto import pareto_order
from kareus.pipeline.instructions import instructions_by_stage
from kareus.pipeline.solver.frontier import iteration_frontier
from kareus.pipeline.solver.problem import Problem, point_set
from kareus.workload.config import Workload

DEADLINES = 16
"""Deadlines between the fastest and the most frugal plan of a layout."""
MOST_INSTRUCTIONS = 3000
"""Largest pipeline whose frontier is solved: it takes ten seconds. In plans of a larger one each stage has one price
of time, which leaves a part of the slack at both ends of the iteration, a small one of so many instructions."""


def plan_layout(
    predictor: LayoutPredictor, prediction: LayoutPrediction, deadlines: int = DEADLINES
) -> list[LayoutCost]:
    """Return the plans of a layout, by rising time; those of its prediction among them where none is better.

    Of a pipeline of more than `MOST_INSTRUCTIONS` they are those of its prediction, since solving takes too long; so
    are they of a trainer that has one clock for a step, which leaves nothing to solve.
    """
    workload = prediction.candidate.workload
    if predictor.has_one_clock or predictor.instructions_of(workload) > MOST_INSTRUCTIONS:
        return frontier_of(list(prediction.plans))
    problem = layout_problem(predictor, workload)
    solved = [LayoutCost(time_s=p.time_s, energy_j=p.energy_j) for p in iteration_frontier(problem, deadlines)]
    return frontier_of([*solved, *prediction.plans])


def layout_problem(predictor: LayoutPredictor, workload: Workload) -> Problem:
    """Return what is solved for a layout: its instructions, and the points that each may run at."""
    gpu, gpus_per_stage = workload.gpu, workload.parallelism.gpus_per_stage
    sets = {
        kind: point_set(
            [(n, time_s, gpus_per_stage * effective_j) for n, (time_s, effective_j, _) in enumerate(points.tolist())],
            {n: gpus_per_stage * waiting_above_w(gpu, clock) for n, clock in enumerate(points[:, 2].tolist())}
            if gpu.waiting_shares
            else {},
        )
        for kind, points in predictor.points(workload).items()
    }
    instructions, dag = predictor.pipeline(workload, workload.num_microbatches)
    return Problem(
        dag=dag,
        point_sets=tuple(sets[instruction.key.kind] for instruction in instructions),
        waiting_power_w=least_waiting_w(gpu) * workload.parallelism.gpus,
        stages=instructions_by_stage(instructions),
    )


def frontier_of(plans: list[LayoutCost]) -> list[LayoutCost]:
    """Return the plans that no other dominates, by rising time."""
    return [plans[n] for n in pareto_order([(plan.time_s, plan.energy_j) for plan in plans])]
