"""Headers of exported files: lines of comments that say what a file carries and what it leaves out."""

from collections.abc import Sequence
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.errors import ArtifactError, printable


def header(lines: Sequence[str]) -> str:
    """Return the lines as comments that start with `#`; whatever is not printable ASCII is escaped."""
    return "".join(f"# {ascii_only(line)}\n" for line in lines)


def ascii_only(text: str) -> str:
    """Return `text` on one line, in ASCII, so that no reader can take a part of it for content."""
    return printable(text).encode("ascii", "backslashreplace").decode()


def starts_with(path: Path, first: str) -> bool:
    """Return whether the first line of a text file has the header's first line."""
    try:
        return read_text(path).startswith(header([first]).rstrip("\n"))
    except ArtifactError:
        return False
