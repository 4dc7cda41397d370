"""`kareus train` of a plan of the simulated testbed: iterations are played back, logged and recorded as in a training.

Nothing is trained: there is no loss and there are no weights. Neither torch nor a GPU is needed.
"""

import dataclasses
import logging
import math
from pathlib import Path

import polars as pl

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import Provenance, check_subject
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.errors import ArtifactError, ConfigError
from kareus.gpu_model.model import KnownSteps
from kareus.partition.config import subject_of
from kareus.partition.read import read_graphs
from kareus.partition.tables import SEGMENTS
from kareus.plans.document import Plan
from kareus.plans.simulated_run import play_back
from kareus.plans.throughput import throughput
from kareus.plans.units import compared, less
from kareus.training.settings import TrainingSettings
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload

logger = logging.getLogger(__name__)

PLAYED_BACK = "iterations.parquet"
"""Table in the output folder, for all ranks; a training on GPUs writes a table for each rank instead."""
INTERRUPTED = "no iteration is kept, since they are written once all have run; run it again, or with fewer --iterations"
MOST_LINES = 10
"""Iterations that are logged, beside the last."""


def play_back_training(
    plan: Plan, workload: Workload, folder: WorkloadFolder, settings: TrainingSettings, *, force: bool
) -> None:
    """Play `settings.iterations` iterations of `plan` back and write them to `settings.output`.

    Args:
        plan: one of the workload.
        workload: of a simulated testbed.
        folder: results of the workload, with the operator graphs.
        settings: its seed, or else the workload's, decides the noise; data and checkpoints are not used.
        force: whether iterations that are there are replaced by fewer, or by those of another plan or seed.

    Raises:
        ConfigError: weights are to be exported, or event files to be written.
        ArtifactError: the operator graphs are missing, or those of another workload; or iterations would be replaced.
    """
    label = plan.testbed.label
    if settings.export is not None:
        raise ConfigError(
            f"--export {settings.export}: a plan of the {label}, is played back and trains no weights; train "
            "with --communicator gloo or nccl."
        )
    if settings.metrics is not None:
        raise ConfigError(
            f"--metrics {settings.metrics}: a plan of the {label}, is played back and writes no event files; leave it "
            f"out ({settings.output / PLAYED_BACK} has the iterations), or train with --communicator gloo or nccl."
        )
    check_subject(subject_of(workload), {str(folder.segments): read_provenance(folder.segments, SEGMENTS)})
    seed = workload.seed if settings.seed is None else settings.seed
    provenance = Provenance(
        config_hash=content_hash(workload), testbed=plan.testbed, seed=seed, subject=subject_of(workload)
    )
    if not force:
        _check_goes_on(settings.output / PLAYED_BACK, plan, provenance, settings.iterations)
    logger.info("%s: the plan is played back, nothing is trained; --communicator nccl or gloo trains", label)
    graphs, seeded = read_graphs(folder.segments), dataclasses.replace(workload, seed=seed)
    try:
        frame = ITERATIONS.frame(play_back(plan, seeded, graphs, settings.iterations, KnownSteps()))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(INTERRUPTED) from None
    write_table(settings.output / PLAYED_BACK, frame, ITERATIONS, provenance)
    _log(frame, workload, label)
    logger.info("%s", _beside_plan(frame, plan))
    logger.info("iterations %s", settings.output / PLAYED_BACK)


def _check_goes_on(path: Path, plan: Plan, provenance: Provenance, iterations: int) -> None:
    """Check that a table that is there, if any, is of the same plan, workload and seed, and has no more iterations."""
    if not path.exists():
        return
    there, before = read_table(path, ITERATIONS), read_provenance(path, ITERATIONS)
    last, method, selector = there.row(-1, named=True), plan.method, plan.selector
    others = {
        f"{len(_whole(there)):,} iterations, and --iterations is {iterations:,}": len(_whole(there)) > iterations,
        f"iterations of the plan {last['selector']} of {last['method']}": (last["method"], last["selector"])
        != (method, selector),
        f"iterations of seed {before.seed}": before.seed != provenance.seed,
        "iterations of another workload": before.config_hash != provenance.config_hash,
    }
    other = next((words for words, differs in others.items() if differs), None)
    if other is not None:
        raise ArtifactError(f"{path}: has {other}; give another --output, or --force to replace them.")


def _log(frame: pl.DataFrame, workload: Workload, label: str) -> None:
    """Log lines like those of a training, few and evenly apart, since played-back iterations are nearly equal."""
    whole = _whole(frame)
    step = math.ceil(len(whole) / MOST_LINES)
    for iteration, time_s, energy_j in whole.iter_rows():
        if iteration % step == 0 or iteration == len(whole) - 1:
            reached = throughput(workload, time_s, energy_j)
            logger.info("iteration %d/%d  %s  [%s]", iteration + 1, len(whole), reached, label)


def _beside_plan(frame: pl.DataFrame, plan: Plan) -> str:
    """Return how far the mean iteration is from the plan, in one line."""
    whole, predicted = _whole(frame), plan.prediction
    time_s, energy_j = (float(whole[name].to_numpy().mean()) for name in ("time_s", "energy_j"))
    time, energy = (
        less(100 * (1 - time_s / predicted.time_s), "time"),
        less(100 * (1 - energy_j / predicted.energy_j), "energy"),
    )
    return f"mean: {compared(time, energy, 'planned')}"


def _whole(frame: pl.DataFrame) -> pl.DataFrame:
    """Return number, time and energy of all GPUs of every iteration, from a table `ITERATIONS`."""
    energy_j = (pl.col("energy_j") * pl.col("gpus")).sum().alias("energy_j")
    return frame.group_by("iteration").agg(pl.col("time_s").max(), energy_j).sort("iteration")
