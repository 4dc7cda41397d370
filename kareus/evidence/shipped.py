"""The measurements that ship with Kareus: kernels, iterations and node powers, with their sources and licences."""

from pathlib import Path

FOLDER = Path(__file__).parent / "data"


ARCHITECTURES = FOLDER / "architectures.csv"
"""Sizes of models that measurements give by name only."""


def shipped_files() -> dict[str, Path]:
    """Return the files by name, without their endings."""
    return {path.name.partition(".")[0]: path for path in sorted(FOLDER.glob("*.csv.gz"))}
