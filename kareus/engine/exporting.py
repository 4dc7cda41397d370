"""The trained weights as a Hugging Face checkpoint: a file for each stage, their index, and `config.json`."""

from pathlib import Path

from kareus.artifacts.files import write_json
from kareus.engine.setup import Setup
from kareus.engine.stage_model import StageModel
from kareus.engine.world import over_all_ranks
from kareus.errors import ConfigError
from kareus.model.weights import save_index, save_weights
from kareus.workload.config import Model
from kareus.workload.huggingface import huggingface_config

CONFIG = "config.json"


def check_exportable(model: Model, folder: Path) -> None:
    """Check that `model` can be exported to `folder`, before it is trained for days.

    Raises:
        ConfigError: transformers has no such architecture, or `folder` is a file.
    """
    huggingface_config(model, 1, "float32")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--export {folder}: is a file; give a folder.")


def export_weights(stage: StageModel, setup: Setup, folder: Path) -> None:
    """Write the weights that all ranks hold together; every rank calls this."""
    workload, place, groups = setup.job.workload, setup.standing.place, setup.standing.groups
    model, split = workload.model, workload.parallelism.split
    files = [f"model-{n:05d}-of-{len(split):05d}.safetensors" for n in range(1, len(split) + 1)]
    if place.replica == 0 and place.cp == 0:  # the others have the same
        save_weights(stage, model, folder / files[place.stage], sum(split[: place.stage]), groups.mesh.tp)
    over_all_ranks(0.0)  # all have written theirs
    if setup.world.rank == 0:
        dtype = str(setup.world.dtype).removeprefix("torch.")
        write_json(folder / CONFIG, huggingface_config(model, workload.sequence_length, dtype))
        save_index(folder, files)
