"""Claims: one process at a time has a GPU's clock, and a file says what it has set.

A claim is a lock file, which the kernel frees when its holder dies; its content outlives the holder. It is written
before the clock is set and emptied after it is reset, so a content that nobody holds means a clock that nobody owns.
One short write at the start of a file is whole or absent after `kill -9`, and a power cut resets clocks too, so
nothing is synced to disk. Any content that cannot be read counts as "something is set".
"""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kareus.artifacts.records import from_plain, parse_json, to_plain
from kareus.errors import ConfigError, DeviceError

FOLDER_VARIABLE = "KAREUS_CLAIMS"
"""Environment variable that names another folder, for where /tmp is not shared by all jobs of a machine."""
DEFAULT_FOLDER = Path("/tmp/kareus-claims")  # shared by all users; O_NOFOLLOW and the sticky bit guard it

_POLL_S = 0.1
_EMPTY = b" " * 256
"""As long as any content; blanks make one write of it replace the whole."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a claim's file says is set."""

    process: int
    frequency_mhz: int
    """SM clock that is locked; 0 if the content could not be read."""
    since: str
    """Coordinated universal time, ISO 8601."""

    def __str__(self) -> str:
        return f"{self.frequency_mhz or '?'} MHz by process {self.process or '?'} since {self.since}"


class Claim:
    """A GPU's clock, held by this process."""

    def __init__(self, descriptor: int) -> None:
        """Hold what `claim` opened."""
        self._descriptor = descriptor

    def setting(self) -> Setting | None:
        """What is set, or None."""
        return _read(self._descriptor)

    def note(self, frequency_mhz: int) -> None:
        """Say that this clock is about to be locked."""
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        setting = Setting(process=os.getpid(), frequency_mhz=frequency_mhz, since=since)
        text = json.dumps(to_plain(setting)).encode()
        os.pwrite(self._descriptor, text.ljust(len(_EMPTY)), 0)

    def clear(self) -> None:
        """Say that nothing is set any more."""
        os.ftruncate(self._descriptor, 0)


@contextlib.contextmanager
def claim(uuid: str, *, patience_s: float = 0.0) -> Iterator[Claim]:
    """Hold the claim of GPU `uuid`.

    Args:
        uuid: of the GPU.
        patience_s: how long to wait for whoever holds it; may be infinite.

    Raises:
        DeviceError: somebody else holds it, or its file cannot be used.
    """
    descriptor = _open(_path(uuid))
    try:
        _lock(descriptor, uuid, patience_s)
        yield Claim(descriptor)
    finally:
        os.close(descriptor)


def setting_of(uuid: str) -> Setting | None:
    """What is set on GPU `uuid` by anybody, alive or dead; None if nothing is."""
    if not _path(uuid).exists():
        return None
    descriptor = _open(_path(uuid))
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _path(uuid: str) -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER) / f"{uuid}.claim"


def _open(path: Path) -> int:
    """Open the file of a claim for whichever user, making it if it is missing."""
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o1777)
        # Linux refuses O_CREAT on another user's file in a sticky folder (fs.protected_regular), so try without it.
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT)
        with contextlib.suppress(PermissionError):  # somebody else was quicker and opened it for all already
            os.fchmod(descriptor, 0o666)
    except OSError as error:
        raise DeviceError(
            f"{path}: cannot be used ({error.strerror}); remove it, or name a folder of this machine that all its "
            f"users can write in {FOLDER_VARIABLE}."
        ) from error
    return descriptor


def _lock(descriptor: int, uuid: str, patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                setting = _read(descriptor)
                using = f"its clock is locked to {setting}" if setting else "another process is about to use it"
                raise DeviceError(f"{uuid}: in use, {using}; wait until it has ended, or choose another GPU.") from None
            time.sleep(_POLL_S if math.isinf(patience_s) else min(_POLL_S, patience_s))
        else:
            return


def _read(descriptor: int) -> Setting | None:
    text = os.pread(descriptor, len(_EMPTY), 0).strip()
    if not text:
        return None
    try:
        return from_plain(Setting, parse_json(text.decode()))
    except (ConfigError, UnicodeDecodeError):
        return Setting(process=0, frequency_mhz=0, since="an unknown time")
