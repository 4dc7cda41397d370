"""Files that were found sound, so that unchanged ones need not be read again."""

from pathlib import Path

from kareus.artifacts.files import read_json, write_json
from kareus.artifacts.records import content_hash
from kareus.errors import ArtifactError

FileMark = list[int | str]


class SoundFiles:
    """Files found sound, each with what tells that it has not changed: size, times of change, inode, hash.

    Whoever changes a file, or puts another in its place, changes its `ctime`, which cannot be set back.
    """

    def __init__(self, marks: dict[str, FileMark] | None = None) -> None:
        """Begin with nothing known, or with marks from before."""
        self._before = marks or {}
        self._now = dict[str, FileMark]()

    def has(self, path: Path, expected: str = "") -> bool:
        """Return whether a file was found sound, with the hash `expected` if there is one, and has not changed."""
        key, mark = _key(path, expected), _mark(path)
        is_known = key in self._now or (mark is not None and self._before.get(key) == mark)
        if is_known and mark is not None:
            self._now[key] = mark
        return is_known

    def add(self, path: Path, expected: str = "") -> None:
        """Remember that a file is sound."""
        mark = _mark(path)
        if mark is not None:
            self._now[_key(path, expected)] = mark

    def write(self, path: Path) -> None:
        """Keep the marks of all files that were asked for or added, if they differ from those that were read."""
        if self._now != self._before:
            write_json(path, {"marks": self._now, "hash": content_hash(self._now)})


def read_known(path: Path) -> SoundFiles:
    """Read what `write` kept; nothing is known if that is missing or not whole."""
    try:
        content = read_json(path)
        marks = content["marks"]
        return SoundFiles(marks if content["hash"] == content_hash(marks) else None)
    except (ArtifactError, KeyError, TypeError):
        return SoundFiles()


def _key(path: Path, expected: str) -> str:
    return f"{path} {expected}"


def _mark(path: Path) -> FileMark | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
