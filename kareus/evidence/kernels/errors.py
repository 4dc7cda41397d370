"""Errors of measured kernels whose shape had been left out of the fit, by GPU and group of rows: a table.

`kareus fit --gpu ... --reference kernel_*.csv.gz --errors ...` measures the errors of a GPU again and writes the table
that ships.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.evidence import FOLDER
from kareus.evidence.kernels.rows import KernelKind
from kareus.prediction.lines import read_lines, table_text

TABLE = FOLDER / "kernel_errors.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeErrors:
    """Mean absolute errors of a group of rows, each predicted by a fit that had not seen its shape."""

    gpu: str
    """Option of the configuration group `gpu`."""
    kind: KernelKind
    group: str
    """Number format, software and whether the kernels were repeated for long (`Kernels.groups` without the GPU)."""
    time_percent: float
    power_percent: float | None
    """None where no reading counts."""


def shape_errors(path: Path = TABLE) -> Sequence[ShapeErrors]:
    """Return the errors of all groups that were fitted; errors as of `read_lines`."""
    _, lines = read_lines(path)
    return tuple(
        ShapeErrors(
            gpu=line.text("gpu"),
            kind=KernelKind(line.choice("kind", tuple(KernelKind))),
            group=line.text("group"),
            time_percent=line.percent("time_percent"),
            power_percent=line.percent("power_percent") if line.cells.get("power_percent") else None,
        )
        for line in lines
    )


def with_errors(gpu: str, errors: Iterable[ShapeErrors], others: Iterable[ShapeErrors]) -> str:
    """Return the text of the table with the errors of a GPU in place of those that it had of it."""
    kept = [*errors, *(other for other in others if other.gpu != gpu)]
    return table_text(ShapeErrors, sorted(kept, key=lambda error: (error.gpu, error.kind, error.group)))
