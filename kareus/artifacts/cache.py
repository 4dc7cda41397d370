"""The folder of caches: what costs time to make, and may be deleted at any time.

It is `KAREUS_CACHE` of the environment, else `kareus` in `XDG_CACHE_HOME`, else `~/.cache/kareus`.

Others may write to that folder, and a seal is no signature. So a file counts only if this user or root has made it, no
one else may write to it, and it holds the key that it is asked for by. Any other file costs time and nothing else.
"""

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kareus.artifacts.files import write_atomically
from kareus.artifacts.records import canonical_json, parse_json
from kareus.artifacts.seals import sealed, unsealed
from kareus.errors import ConfigError

CACHE_VARIABLE = "KAREUS_CACHE"
"""Environment variable with the folder of caches."""
_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

logger = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """Return the folder of caches; None where the environment names none and the user has no home."""
    chosen, shared = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen)
    try:
        return Path(shared or Path.home() / ".cache") / "kareus"
    except RuntimeError:  # a user whom the system does not know, as in a container
        return None


def place_of(kind: str, key: str) -> Path | None:
    """Return the file that is kept under a key among those of its kind; None where nothing is kept."""
    folder = cache_folder()
    return None if folder is None else folder / kind / f"{key}.json"


def kept(kind: str, key: str) -> dict[str, Any] | None:
    """Return what `keep` has kept; None where there is no such file, or one that does not count."""
    path = place_of(kind, key)
    if path is None:
        return None
    try:
        document = unsealed(parse_json(_read_own(path)))
        content = document.get("content")
        if document.get("key") != key or not isinstance(content, dict):
            raise ConfigError(f"kept under another key: {document.get('key')!r}")
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        logger.debug("%s: not used (%s); made anew", path, error)
        return None
    return content


def keep(kind: str, key: str, content: Mapping[str, Any]) -> None:
    """Keep plain data for other processes of this user; a folder that cannot be written costs time and nothing else."""
    path = place_of(kind, key)
    if path is None:
        return
    text = canonical_json(sealed({"key": key, "content": content}))
    try:
        write_atomically(path, lambda temporary: _write_own(temporary, text))
    except OSError as error:
        logger.debug("%s: not written (%s)", path, error)


def _read_own(path: Path) -> str:
    """Read a file that only this user and root could have written.

    Raises:
        OSError: it cannot be read, or is a link; ConfigError: others could have written it, or it is no regular file;
            UnicodeDecodeError: it is not text.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # without the last, a FIFO would be waited for
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError("no regular file")
        if status.st_uid not in (os.geteuid(), _ROOT) or status.st_mode & _OTHERS_WRITE:
            raise ConfigError("another user could have written it")
        return file.read().decode()


def _write_own(path: Path, text: str) -> None:
    """Write a new file to which no other user may write, whatever the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
