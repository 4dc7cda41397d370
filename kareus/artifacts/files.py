"""Files that are either whole or absent."""

import errno
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kareus.artifacts.records import parse_json
from kareus.errors import ArtifactError, ConfigError
from kareus.processes import is_running, start_of

_TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.(?P<process>[1-9][0-9]{,19})-(?P<start>[0-9]{1,20})(\.old)?\.kareus\.tmp", re.DOTALL
)
"""Name of what a process is writing; it tells ours from a user's, and the process from a later one of its number."""
NOT_REGULAR = "is no regular file, and stays as it is"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary sibling of `path` by `write`, sync it to disk, and rename it into place.

    A reader sees the old file or the new one, never a part; a kill leaves the old one.

    Raises:
        FileExistsError: at `path` is something that is no regular file, such as a device or a link; it stays.
    """
    require_replaceable(path)
    make_folder(path.parent)
    temporary = temporary_of(path)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def replace_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Fill a temporary sibling of the folder `path` by `fill`, then rename it into place.

    A kill leaves the old folder, if need be under its temporary name, or the new one; so does a failing rename.

    Raises:
        NotADirectoryError: at `path` is something that is no folder, such as a file or a link; it stays.
    """
    if os.path.lexists(path) and not stat.S_ISDIR(path.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is no folder, and stays as it is", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    new, old = temporary_of(path), temporary_of(path, ".old")
    shutil.rmtree(new, ignore_errors=True)  # of this process, which could not remove it before
    try:
        new.mkdir()
        fill(new)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        new.rename(path)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if path.exists():  # else the old folder is all that there is
            shutil.rmtree(old, ignore_errors=True)
    sync_folder(path.parent)


def remove_temporaries(path: Path) -> None:
    """Remove temporary siblings of `path` that killed processes left; no other process may be writing `path`."""
    for temporary in path.parent.iterdir():
        match = _TEMPORARY.fullmatch(temporary.name)
        if match and match["name"] == path.name and is_regular(temporary):
            temporary.unlink(missing_ok=True)


def temporary_of(path: Path, suffix: str = "") -> Path:
    """Return the sibling of `path` that this process writes before it renames it."""
    process = os.getpid()
    return path.with_name(f".{path.name}.{process}-{start_of(process)}{suffix}.kareus.tmp")


def is_temporary(path: Path) -> bool:
    """Return whether the name of a file or folder is that of something that a process is, or was, writing."""
    return _TEMPORARY.fullmatch(path.name) is not None


def is_being_written(temporary: Path) -> bool:
    """Return whether the process that writes a temporary file or folder runs."""
    match = _TEMPORARY.fullmatch(temporary.name)
    return match is not None and is_running(int(match["process"]), int(match["start"]))


def is_regular(path: Path) -> bool:
    """Return whether a path is a file that can be read without waiting, and no link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # it is not there, or no more
        return False


def require_replaceable(path: Path) -> None:
    """Check that at `path` is a regular file or nothing, since a rename replaces whatever is there.

    Raises:
        FileExistsError: there is something else: a device, a pipe, a socket, a folder, a link.
    """
    if os.path.lexists(path) and not is_regular(path):
        raise FileExistsError(errno.EEXIST, NOT_REGULAR, str(path))


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write plain data to `path` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_text(path: Path) -> str:
    """Read a text file, or a link to one.

    Raises:
        ArtifactError: the file is missing, is not text, or is no regular file: a pipe would be waited for.
    """
    try:
        return io.TextIOWrapper(io.BytesIO(read_bytes(path)), encoding="utf-8").read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ArtifactError(
            f"{path}: cannot be read ({reason}); check the path or rerun the stage that makes it."
        ) from error


def read_bytes(path: Path, most: int = -1) -> bytes:
    """Read a regular file, or a link to one; no more than its first `most` bytes if that is not negative.

    Raises:
        OSError: the file cannot be read, or is no regular file: a pipe would be waited for, a device might never end.
    """
    with open_regular(path) as file:
        return file.read(most)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file, or a link to one, to read its bytes.

    Raises:
        OSError: it cannot be read, or is no regular file: a pipe would be waited for, a device might never end.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - its caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_json(path: Path, otherwise: str = "it is damaged, or another file was meant; rerun what makes it") -> Any:
    """Read a JSON file.

    Args:
        path: of the file.
        otherwise: what is said to do about one that is no JSON.

    Raises:
        ArtifactError: the file is missing, is not whole JSON, or has a number that is not finite.
    """
    try:
        return parse_json(read_text(path))
    except ConfigError as error:
        raise ArtifactError(f"{path}: {error}; {otherwise}.") from error


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes; errors as of `read_bytes`."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents so that they survive a power cut; an existing folder is left unchanged."""
    missing = [made for made in (folder, *folder.parents) if not made.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def set_aside(path: Path) -> Path:
    """Rename a damaged file to `<name>.damaged`, so that it is kept in its folder; return its new path."""
    aside = free_name(path)
    path.rename(aside)
    sync_folder(path.parent)
    return aside


def free_name(path: Path) -> Path:
    """Return the first of `<name>.damaged`, `<name>.damaged-2` and so on that nothing has yet."""
    names = (f"{path.name}.damaged{f'-{n}' if n > 1 else ''}" for n in itertools.count(1))
    return next(aside for aside in map(path.with_name, names) if not (aside.exists() or aside.is_symlink()))


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
