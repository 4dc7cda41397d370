"""Command `end-to-end`: run the fastest plan of every method and record its iterations.

On a simulated testbed plans are played back, which needs no torch and no GPU; on real GPUs each is trained for a few
iterations on synthetic data, all ranks on this machine.
"""

import argparse
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.outputs import add_force, check_files, table
from kareus.artifacts.provenance import Provenance, check_config, check_subject, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.frontiers.config import frontier_hash
from kareus.frontiers.tables import MICROBATCH
from kareus.gpu_model.model import KnownSteps
from kareus.launch.machine import check_machine
from kareus.launch.processes import launch
from kareus.partition.config import subject_of
from kareus.partition.read import read_graphs
from kareus.partition.tables import SEGMENTS
from kareus.pipeline.tables import ITERATION
from kareus.plans.build import select_plan
from kareus.plans.document import Plan
from kareus.plans.file import write_plan
from kareus.plans.frontiers import Frontiers
from kareus.plans.simulated_run import play_back
from kareus.testbed.config import TestbedKind
from kareus.training.comparison import FASTEST, compare_runs
from kareus.training.job import TrainingJob
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload
from kareus.workload.slices import PlanSlice, cut

logger = logging.getLogger(__name__)

ITERATIONS_OF_A_RUN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs and the output."""
    parser.add_argument("folder", type=Path, help="results folder of the workload")
    parser.add_argument("--output", type=Path, required=True, help="table of iterations to write (Parquet)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run all methods and write one table."""
    check_files(arguments, [(arguments.output, table(ITERATIONS))])
    folder = WorkloadFolder(arguments.folder)
    workload = load_slice(folder.config("plan"), PlanSlice).workload
    provenance = _provenance(folder, workload)
    assert provenance.testbed is not None
    iteration = read_table(folder.iteration, ITERATION)
    microbatch = read_table(folder.microbatch, MICROBATCH)
    frontiers = Frontiers(iteration=iteration, microbatch=microbatch, testbed=provenance.testbed)
    plans = [select_plan(workload, frontiers, FASTEST, method, name=folder.name) for method in frontiers.methods]
    run_all = _played_back if workload.testbed.kind is TestbedKind.SIMULATED else _trained
    frame = ITERATIONS.frame(run_all(plans, workload, folder))
    write_table(arguments.output, frame, ITERATIONS, provenance)
    for row in compare_runs(frame, iteration):
        logger.info(
            "%s: %.4f s, %s %% of %.4f s as predicted%s [%s]",
            row.method,
            row.time_s,
            f"{row.time_percent:+z.2f}",
            row.predicted_time_s,
            "" if row.energy_j is None else f"; {row.energy_j:.1f} J, {row.energy_percent:+z.2f} %",
            provenance.testbed.label,
        )


def _provenance(folder: WorkloadFolder, workload: Workload) -> Provenance:
    """Return the provenance of the tables that plans are built from, after checking that they are the workload's."""
    segments, microbatch, iteration = str(folder.segments), str(folder.microbatch), str(folder.iteration)
    origins = {
        segments: read_provenance(folder.segments, SEGMENTS),
        microbatch: read_provenance(folder.microbatch, MICROBATCH),
        iteration: read_provenance(folder.iteration, ITERATION),
    }
    check_subject(subject_of(workload), origins)
    check_config(frontier_hash(workload), microbatch, origins[microbatch])
    check_config(content_hash(cut(workload, "pipeline")), iteration, origins[iteration])
    return derived(content_hash(workload), origins)


def _played_back(plans: Sequence[Plan], workload: Workload, folder: WorkloadFolder) -> list[dict[str, Any]]:
    graphs, steps = read_graphs(folder.segments), KnownSteps()
    return [row for plan in plans for row in play_back(plan, workload, graphs, ITERATIONS_OF_A_RUN, steps)]


def _trained(plans: Sequence[Plan], workload: Workload, folder: WorkloadFolder) -> list[dict[str, Any]]:
    """Return the rows of all ranks of all plans.

    Raises:
        EngineError: a rank failed.
        SystemExit: likewise, after the rank printed the reason.
    """
    check_machine(workload, TrainingJob(workload=workload, plan=plans[0]).communicator)
    rows = []
    for plan in plans:
        output = folder.path / "engine" / f"{plan.selector}_{plan.method}"
        shutil.rmtree(output, ignore_errors=True)  # what an earlier call left would be gone on with
        write_plan(output / "plan.json", plan)
        options = ["--folder", folder.path, "--iterations", ITERATIONS_OF_A_RUN, "--output", output]
        launch(["train", *map(str, [output / "plan.json", *options])], plan.gpus)
        for rank in range(plan.gpus):
            rows += read_table(output / f"rank-{rank:05d}.parquet", ITERATIONS).to_dicts()
    return rows
