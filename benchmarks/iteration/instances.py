"""The pipelines: 1F1B, with the points of the default workload's instructions on the simulated testbed.

The points are those of `kareus`, searched exhaustively and free of noise, so that the benchmark needs no results. The
last stage is the workload's last, all others are its first. Activations take no time to travel, since the peer's edges
take none.
"""

from pathlib import Path

import polars as pl

from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions
from kareus.pipeline.solver.dag import build_dag
from kareus.pipeline.solver.problem import PointSet, Problem, point_set
from kareus.workload.config import Workload

CONFIG = Path(__file__).parents[2] / "config"


class Instances:
    """Pipelines of any size, made of one workload's instructions."""

    def __init__(self) -> None:
        """Take the points of `kareus` for the default workload, searched exhaustively."""
        workload, rows = _default()
        self.label = f"{workload.model.name}, {workload.gpu.name}, simulated testbed"
        self._blocking_power_w = workload.gpu.blocking_power_w * workload.parallelism.gpus_per_stage
        self._last = workload.parallelism.pp - 1
        on_frontier = rows.filter(method="kareus", on_frontier=True)
        self._point_sets: dict[tuple[int, str], PointSet] = {
            (stage, direction): point_set(
                [
                    (row["point"], row["time_s"], row["effective_energy_j"] * workload.parallelism.gpus_per_stage)
                    for row in points.iter_rows(named=True)
                ]
            )
            for (stage, direction), points in on_frontier.group_by("stage", "direction")
        }

    def problem(self, stages: int, microbatches: int) -> Problem:
        """A pipeline of this size."""
        instructions = pipeline_instructions(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, stages, microbatches)
        return Problem(
            dag=build_dag(instructions, [0.0] * (stages - 1)),
            point_sets=tuple(
                self._point_sets[self._last if i.key.stage == stages - 1 else 0, i.key.direction] for i in instructions
            ),
            waiting_power_w=self._blocking_power_w * stages,
        )


def _default() -> tuple[Workload, pl.DataFrame]:
    """The default workload and its table `MICROBATCH`."""
    # Imported here: torch would count towards the peak memory of processes that only solve.
    from kareus.evidence.frontiers.plans import microbatch_frontiers  # noqa: PLC0415
    from kareus.evidence.frontiers.reference import Scenario  # noqa: PLC0415
    from kareus.evidence.frontiers.subject import subject  # noqa: PLC0415

    default = Scenario(model="llama3.2-3b", cp=1, tp=8, pp=2, num_microbatches=8, microbatch_size=8, seq_len=4096)
    of_default = subject(default, (), CONFIG)
    return of_default.workload, microbatch_frontiers(of_default)
