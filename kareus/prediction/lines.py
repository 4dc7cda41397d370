"""Lines of CSV files with reference data: values with their ranges, one-line errors that name the place, and back."""

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from kareus.artifacts.files import read_bytes
from kareus.errors import ArtifactError

Value = TypeVar("Value", int, float)
Row = TypeVar("Row")

SWITCHES = {"true": True, "false": False}
MOST_PERCENT = 1e6
MOST_DIGITS = 9
"""Of the number of a point or of a clock."""
MOST_BYTES = 1 << 28
"""Of a file, unpacked: a hundred times the largest set of kernels measured so far."""


class LineValueError(ArtifactError):
    """A value of one line that cannot be used, where other lines may be."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that cannot be predicted."""

    line: int
    reason: str


def plain_refusals(refused: Sequence[Refusal]) -> list[dict[str, Any]]:
    """Return refusals as plain data."""
    return [{"row": refusal.line, "reason": refusal.reason} for refusal in refused]


def refused_lines(refused: Sequence[Refusal]) -> list[str]:
    """Return how many rows were refused, and why the first; no line where none was."""
    if not refused:
        return []
    return [f"refused: {len(refused)} rows, the first in line {refused[0].line}: {refused[0].reason}"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, with its place for messages.

    Its functions raise an ArtifactError where there is no such column, and a LineValueError where its cell in this line
    cannot be used.
    """

    path: Path
    number: int
    cells: dict[str, str]

    def __post_init__(self) -> None:
        if None in self.cells:  # where `csv` puts what no column is for
            raise ArtifactError(f"{self.path}: line {self.number}: more values than columns; quote values with commas.")

    def text(self, column: str) -> str:
        """Return a cell, without blanks around it."""
        value = self.cells.get(column)
        if value is None:
            raise ArtifactError(f"{self.path}: line {self.number}: no column {column}; complete the file.")
        return value.strip()

    def choice(self, column: str, allowed: Sequence[str]) -> str:
        """Return a cell that has one of a few texts."""
        text = self.text(column)
        if text not in allowed:
            raise LineValueError(
                f"{self.path}: line {self.number}: {column}={text!r} is not known; allowed: {', '.join(allowed)}."
            )
        return text

    def switch(self, column: str) -> bool:
        """Return whether a cell is `true`, and not `false`, in letters of any case."""
        text = self.text(column)
        if text.lower() not in SWITCHES:
            raise LineValueError(
                f"{self.path}: line {self.number}: {column}={text!r} is not known; allowed: {', '.join(SWITCHES)}."
            )
        return SWITCHES[text.lower()]

    def positive(self, column: str, parse: Callable[[str], Value], least: float, most: float) -> Value:
        """Return a number above 0 and from `least` to `most`."""
        text = self.text(column)
        try:
            value = parse(_digits(text))
        except ValueError:
            value = parse("0")
        if not 0 < value < float("inf"):
            raise LineValueError(f"{self.path}: line {self.number}: {column}={text!r}: must be a number above 0.")
        if not least <= value <= most:
            raise LineValueError(
                f"{self.path}: line {self.number}: {column}={text!r}: must be from {least:g} to {most:g}."
            )
        return value

    def percent(self, column: str) -> float:
        """Return a percentage, which may be negative."""
        text = self.text(column)
        try:
            value = float(_digits(text))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise LineValueError(f"{self.path}: line {self.number}: {column}={text!r}: must be a number.")
        if abs(value) > MOST_PERCENT:
            raise LineValueError(
                f"{self.path}: line {self.number}: {column}={text!r}: must be at most {MOST_PERCENT:g} % either way."
            )
        return value

    def count(self, column: str) -> int:
        """Return a whole number, 0 or more."""
        text = self.text(column)
        if not text.isdecimal() or len(text) > MOST_DIGITS:
            raise LineValueError(
                f"{self.path}: line {self.number}: {column}={text!r}: must be a whole number, 0 or more."
            )
        return int(text)


def _digits(text: str) -> str:
    """Return the text of a number; Python would read `1_0` as 10.

    Raises:
        ValueError: there is an underscore in it.
    """
    if "_" in text:
        raise ValueError(text)
    return text


def usable(lines: Sequence[Line], path: Path, read: Callable[[Line], Row]) -> tuple[list[Row], tuple[Refusal, ...]]:
    """Read all lines whose values can be used, and return the reasons why the others cannot.

    Raises:
        ArtifactError: no lines, a column is missing, or no line can be used; with the reason of the first.
    """
    check_filled(lines, path)
    rows, refused = [], []
    for line in lines:
        try:
            rows.append(read(line))
        except LineValueError as error:
            refused.append(Refusal(line.number, str(error)))
    if not rows:
        raise ArtifactError(refused[0].reason)
    return rows, tuple(refused)


def check_filled(lines: Sequence[Line], path: Path) -> None:
    """Raise `ArtifactError` if a file has no lines after its header."""
    if not lines:
        raise ArtifactError(f"{path}: has a header and no rows; give a file with data.")


def read_lines(path: Path) -> tuple[Sequence[str], list[Line]]:
    """Return the header and the lines of a CSV file, which may be compressed (`.gz`).

    Raises:
        ArtifactError: missing, damaged, no text, of more than `MOST_BYTES` bytes, or a column that is there twice.
    """
    try:
        text = TextIOWrapper(
            BytesIO(_content(path)), encoding="utf-8-sig", newline=""
        )  # spreadsheets begin with a mark
        reader = csv.DictReader(text)
        header = reader.fieldnames or []
        _check_once(header, path)
        return header, [Line(path, reader.reader.line_num, line) for line in reader]
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror or error}); give a CSV file.") from error
    except (UnicodeDecodeError, csv.Error, EOFError, zlib.error) as error:
        raise ArtifactError(f"{path}: cannot be read ({error}); give a CSV file.") from error


def table_text(kind: type[Any], records: Iterable[Any]) -> str:
    """Return records of a dataclass as the text of a CSV file, a column for each field; None is an empty cell."""
    text = StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(record) for record in records)
    return text.getvalue()


def _content(path: Path) -> bytes:
    content = read_bytes(path, MOST_BYTES + 1)
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=BytesIO(content)) as packed:
            content = packed.read(MOST_BYTES + 1)  # a few bytes may stand for any number of them
    if len(content) > MOST_BYTES:
        raise ArtifactError(f"{path}: has more than {MOST_BYTES:,} bytes of text; give a shorter file.")
    return content


def _check_once(header: Sequence[str], path: Path) -> None:
    for column in header:
        if header.count(column) > 1:
            raise ArtifactError(f"{path}: the column {column} is there twice; keep one of them.")
