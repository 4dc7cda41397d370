"""A pipeline of one stage and one microbatch: a forward, then a backward, whose plans can all be listed."""

from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions
from kareus.pipeline.solver.dag import build_dag
from kareus.pipeline.solver.frontier import PlannedIteration, cheapest_within
from kareus.pipeline.solver.problem import Problem, point_set

WAITING_W = 10.0
FORWARD = point_set([(0, 1.0, 100.0)])
BACKWARD = point_set([(0, 2.0, 400.0), (1, 3.0, 250.0), (2, 4.0, 200.0)])


def chain() -> Problem:
    """Iterations of 3 s and 530 J, 4 s and 390 J, 5 s and 350 J; effective energies are 500, 350 and 300 J."""
    instructions = pipeline_instructions(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, 1, 1)
    return Problem(
        dag=build_dag(instructions, []),
        point_sets=tuple(
            {Direction.FORWARD: FORWARD, Direction.BACKWARD: BACKWARD}[i.key.direction] for i in instructions
        ),
        waiting_power_w=WAITING_W,
    )


def plans(*deadlines_s: float) -> tuple[PlannedIteration, ...]:
    """The plans of the chain for these deadlines."""
    return tuple(cheapest_within(chain(), deadline_s) for deadline_s in deadlines_s)
