"""The trained weights as a Hugging Face checkpoint: a file for each stage, their index, and `config.json`."""

import os
from pathlib import Path

from kareus.artifacts.files import write_json
from kareus.errors import ConfigError
from kareus.launch.compute_device import compute_dtype
from kareus.launch.process_groups import sum_over_ranks
from kareus.model.config import Model
from kareus.model.weight_files import INDEX, SINGLE
from kareus.model.weights import save_index, save_weights
from kareus.runtime.stage_chunks import StageChunks
from kareus.training.setup import RankSetup
from kareus.workload.huggingface_export import huggingface_config

CONFIG = "config.json"
SHARDS = "model-*-of-*.safetensors"


def check_exportable(model: Model, folder: Path, weights: Path | None = None, *, replace: bool = False) -> None:
    """Check that `model` can be exported to `folder`, before it is trained for days.

    Args:
        model: what is exported.
        folder: where to.
        weights: checkpoint that the training begins with, which is never replaced.
        replace: whether a checkpoint of several files that is in `folder` may be replaced.

    Raises:
        ConfigError: transformers has no such architecture, or `folder` cannot take the checkpoint.
    """
    huggingface_config(model, 1, "float32")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--export {folder}: cannot be made ({error.strerror}); give a folder.") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--export {folder}: cannot be written to; give another folder.")
    if weights is not None and weights.exists() and folder.samefile(weights):
        raise ConfigError(f"--export {folder}: is the folder of --weights; give another folder.")
    if (folder / SINGLE).exists():
        raise ConfigError(
            f"--export {folder}: has a checkpoint ({SINGLE}), which transformers would read; give another folder."
        )
    present = [path.name for name in (INDEX, SHARDS, CONFIG) for path in sorted(folder.glob(name))]
    if present and not replace:
        raise ConfigError(
            f"--export {folder}: has files of a checkpoint ({present[0]}); give another folder, or --force to replace "
            "them."
        )


def export_weights(stage: StageChunks, setup: RankSetup, folder: Path) -> None:
    """Write the weights that all ranks hold together; every rank calls this."""
    workload, coordinate = setup.job.workload, setup.coordinate
    model, split = workload.model, workload.parallelism.split
    files = [f"model-{n:05d}-of-{len(split):05d}.safetensors" for n in range(1, len(split) + 1)]
    if setup.rendezvous.rank == 0:  # files of an earlier export are no checkpoint while they are replaced
        (folder / INDEX).unlink(missing_ok=True)
    sum_over_ranks(0.0)  # a barrier: no rank writes before the index is gone
    if coordinate.replica == 0 and coordinate.cp == 0:  # the others have the same
        save_weights(stage, model, folder / files[coordinate.stage], 0, setup.groups.mesh)
    sum_over_ranks(0.0)  # a barrier: all have written theirs
    if setup.rendezvous.rank == 0:
        dtype = str(compute_dtype(setup.device)).removeprefix("torch.")
        write_json(folder / CONFIG, huggingface_config(model, workload.sequence_length, dtype))
        save_index(folder, files)
