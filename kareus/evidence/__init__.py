"""Evidence for the numbers that ship: fits to measurements, and exams. No other room imports this one.

Reads CSV files of planned frontiers, reductions, kernels, iterations and node powers, of which `data/` ships some;
writes coefficients of GPUs, a table of errors, or a page.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "data"


ARCHITECTURES = FOLDER / "architectures.csv"
"""Sizes of models that measurements give by name only."""


def shipped_files() -> dict[str, Path]:
    """Return the files by name, without their endings."""
    return {path.name.partition(".")[0]: path for path in sorted(FOLDER.glob("*.csv.gz"))}
