"""Time and certified gaps of the solver of iteration frontiers, on pipelines of growing size.

    python benchmarks/pipeline.py [results/<workload>]

Points are those of a planned workload's microbatch frontiers (the default one, if none is named), its stages repeated
as often as a pipeline needs.
"""

import argparse
import time
from pathlib import Path

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.tables import read_provenance, read_table
from kareus.frontier.tables import MICROBATCH
from kareus.partition.graph import Direction
from kareus.pipeline.dag import build_dag
from kareus.pipeline.instructions import pipeline_instructions
from kareus.pipeline.problem import PointSet, Problem, point_set
from kareus.pipeline.relaxation import Relaxation
from kareus.pipeline.solver import iteration_frontier
from kareus.workload.config import PipelineSchedule
from kareus.workload.slices import PipelineSlice, load_slice

DEFAULT = Path("results/llama3.2-3b_pp2-tp8_mbs8_seq4096_a100")
SIZES = ((2, 8), (4, 16), (10, 16), (10, 64))
DEADLINES = 10


def main() -> None:
    """Print one line for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=DEFAULT, help="results folder of a planned workload")
    folder = WorkloadFolder(parser.parse_args().folder)
    config = load_slice(folder.config("pipeline"), PipelineSlice)
    sets = point_sets(folder, config)
    testbed = read_provenance(folder.microbatch, MICROBATCH).testbed
    print(f"{folder.name}, points of kareus: {testbed.label if testbed else 'nothing measured'}")
    print("stages x microbatches  points  relaxation s  frontier s  ratio  mean gap %  largest gap %")
    for stages, microbatches in SIZES:
        print(line(problem(config, sets, stages, microbatches), f"{stages} x {microbatches}"))


def point_sets(folder: WorkloadFolder, config: PipelineSlice) -> dict[tuple[int, str], PointSet]:
    """Points of `kareus` by stage and direction."""
    rows = read_table(folder.microbatch, MICROBATCH).filter(method="kareus", on_frontier=True).rows(named=True)
    gpus = config.parallelism.gpus_per_stage
    return {
        (stage, direction): point_set(
            [
                (row["point"], row["time_s"], row["effective_energy_j"] * gpus)
                for row in rows
                if (row["stage"], row["direction"]) == (stage, direction)
            ]
        )
        for stage in range(config.parallelism.pp)
        for direction in Direction
    }


def problem(config: PipelineSlice, sets: dict[tuple[int, str], PointSet], stages: int, microbatches: int) -> Problem:
    """A 1F1B pipeline whose last stage is the workload's last and whose others are its first."""
    instructions = pipeline_instructions(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, stages, microbatches)
    last = config.parallelism.pp - 1
    return Problem(
        dag=build_dag(instructions, [0.001] * (stages - 1)),
        point_sets=tuple(sets[last if i.stage == stages - 1 else 0, i.direction] for i in instructions),
        waiting_power_w=config.gpu.blocking_power_w * config.parallelism.gpus_per_stage * stages,
    )


def line(problem: Problem, size: str) -> str:
    """Solve the bound alone, then the frontier."""
    began = time.perf_counter()
    relaxation = Relaxation(problem)
    fastest_s, _ = problem.cost([0] * len(problem.point_sets))
    frugal_s = relaxation.solve(float("inf")).time_s
    for n in range(DEADLINES):
        relaxation.solve(fastest_s * (1 + 1e-11) + n / (DEADLINES - 1) * (frugal_s - fastest_s))
    bound_s = time.perf_counter() - began
    began = time.perf_counter()
    plans = iteration_frontier(problem, DEADLINES)
    frontier_s = time.perf_counter() - began
    gaps = [100 * plan.gap for plan in plans]
    points = max(len(points.points) for points in problem.point_sets)
    return (
        f"{size:>21}  {points:>6}  {bound_s:>12.2f}  {frontier_s:>10.2f}  {frontier_s / bound_s:>5.1f}"
        f"  {sum(gaps) / len(gaps):>10.3f}  {max(gaps):>13.3f}"
    )


if __name__ == "__main__":
    main()
