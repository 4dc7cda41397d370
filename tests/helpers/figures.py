"""A stand-in for drawing figures, which takes its time, where their content is not asked for."""

from pathlib import Path

from kareus.artifacts.files import write_text
from kareus.report.charts import Figure
from kareus.report.contents import DRAWN_AS


def save_empty(figure: Figure, _: str, folder: Path) -> None:
    """Write the files of a figure, empty."""
    for kind in DRAWN_AS:
        write_text(folder / f"{figure.file}.{kind}", "<svg/>")
