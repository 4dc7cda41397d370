"""Files of a Hugging Face checkpoint of weights, found without importing PyTorch."""

from pathlib import Path

from kareus.artifacts.files import read_json
from kareus.errors import ArtifactError

INDEX = "model.safetensors.index.json"
"""Name of the file that maps each weight to one of several files."""
SINGLE = "model.safetensors"
"""Name of the file that has all weights, where there is no index."""


def check_weight_files(folder: Path) -> None:
    """Check that every file of the checkpoint in `folder` is there.

    Raises:
        ArtifactError: one is missing, or the index cannot be read.
    """
    indexed = indexed_files(folder)
    for path in [folder / SINGLE] if indexed is None else sorted(set(indexed.values())):
        check_file(path)


def indexed_files(folder: Path) -> dict[str, Path] | None:
    """Return the file of each weight as the index has it; None where there is no index.

    Raises:
        ArtifactError: the index cannot be read.
    """
    path = folder / INDEX
    if not path.exists():
        return None
    index = read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise ArtifactError(f"{path}: has no 'weight_map'; download the checkpoint again.")
    return {str(name): folder / Path(str(file)).name for name, file in weight_map.items()}


def check_file(path: Path) -> None:
    """Check that a file of a checkpoint is there.

    Raises:
        ArtifactError: it is not.
    """
    if not path.is_file():
        raise ArtifactError(f"{path}: no such file; expected a checkpoint with {SINGLE} or {INDEX}.")
