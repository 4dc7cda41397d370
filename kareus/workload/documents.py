"""Lengths of documents from a file: what `training.document_lengths=FILE` stands for."""

import csv
import itertools
import math
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.errors import ArtifactError, ConfigError
from kareus.model.packed_documents import QUANTILES

KEY = "training.document_lengths"
COLUMNS = ("length", "lengths", "tokens", "num_tokens", "document_tokens", "sequence_length", "seq_len")
"""Names of a column of lengths, of a file that has a header."""


def read_lengths(path: Path) -> list[int]:
    """Return lengths that stand for those of a file: one a line, or the column of a CSV file that is named so.

    Of more than `QUANTILES` lengths, the means of as many groups of equal size stand for all.

    Raises:
        ConfigError: the file cannot be read, or a line has no length.
    """
    try:
        rows = list(csv.reader(read_text(path).splitlines()))
    except ArtifactError as error:
        raise ConfigError(f"{KEY}: {error}") from error
    except csv.Error as error:
        raise ConfigError(f"{KEY}={path}: cannot be read ({error}); give a file with a length a line.") from error
    rows = [row for row in rows if row]
    place, header = 0, bool(rows) and not _is_number(rows[0][0])
    if header or (rows and len(rows[0]) > 1):
        names = [name.strip().lower() for name in rows[0]]
        place = next((n for n, name in enumerate(names) if name in COLUMNS), -1)
        if place < 0:
            raise ConfigError(
                f"{KEY}={path}: no column of lengths; name one of {', '.join(COLUMNS)} in its first line."
            )
        rows = rows[1:]
    lengths = sorted(_length(row, place, path) for row in rows)
    if not lengths:
        raise ConfigError(f"{KEY}={path}: has no lengths; give one a line.")
    if len(lengths) <= QUANTILES:
        return [round(length) for length in lengths]
    edges = [n * len(lengths) // QUANTILES for n in range(QUANTILES + 1)]
    return [round(math.fsum(lengths[a:b]) / (b - a)) for a, b in itertools.pairwise(edges)]


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdecimal()


def _length(row: list[str], place: int, path: Path) -> float:
    text = row[place] if place < len(row) else ""
    if not _is_number(text) or float(text) < 1:
        raise ConfigError(f"{KEY}={path}: {text!r} is no length; write whole numbers of tokens, 1 or more.")
    return float(text)
