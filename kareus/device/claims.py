"""Claims: one process at a time controls a GPU's clock, power limit or profiles, and a file has what it has set.

A claim is a lock file, which the kernel frees when its holder dies; its content outlives the holder. The content is
written before the clock is set and removed after it is reset, so content in a file that nobody has locked means that
the owner died with the clock locked. One short write at the start of a file is whole or absent after `kill -9`, and a
power cut resets clocks too, so nothing is synced to disk. Any content that cannot be read counts as "something is set".

All users of a machine may write to the files, so nothing about them is trusted. A lock counts only on the file that is
still at its path. A holder whose file was deleted puts it back, and keeps others away meanwhile by a name that no file
system has: an abstract Unix socket. A link, a pipe or a device at the path is refused.
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kareus.artifacts.records import from_plain, parse_json, to_plain
from kareus.device.protocol import PROFILES
from kareus.errors import ConfigError, DeviceError

FOLDER_VARIABLE = "KAREUS_CLAIMS"
"""Environment variable that names another folder, for where no default folder is shared by all jobs of a machine."""
DEFAULT_FOLDERS = (Path("/run/lock/kareus"), Path("/tmp/kareus-claims"))
"""The first is emptied by a reboot, as clocks are, and by nothing else; the second serves systems on which only root
may write in /run/lock. Root uses the same folder as everybody else, or their claims would not meet."""

_POLL_S = 0.1
_LONGEST = 256
"""Bytes of content; blanks fill up what is written, so that one write replaces the whole."""


MOST_W = 1e6
"""Power limits above this were not set by anybody."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSetting:
    """Clock, power limit or profiles that are set, by a claim's file."""

    process: int
    frequency_mhz: int = 0
    """SM clock that is locked; 0 if the content could not be read, or if it is a power limit."""
    limit_w: float = 0.0
    """Power limit that is set; 0 if none is, as the next."""
    former_w: float = 0.0
    """The one that was there before, and is to be there again."""
    profiles: str = ""
    """Power profiles that are asked for, with + between; empty if none is."""
    since: str
    """Coordinated universal time, ISO 8601."""

    @property
    def subject(self) -> str:
        """What is set."""
        return "power limit" if self.limit_w else "power profiles" if self.profiles else "clock"

    @property
    def verb(self) -> str:
        """How it is set, before `it to ...` or `to ...`."""
        return "limited" if self.limit_w else "set" if self.profiles else "locked"

    @property
    def is_known(self) -> bool:
        """Whether it is one that Kareus writes."""
        is_limit = 0 < self.limit_w < MOST_W and 0 < self.former_w < MOST_W and not self.frequency_mhz
        is_clock = self.frequency_mhz > 0 and not self.limit_w
        is_profile = set(self.profiles.split("+")) <= set(PROFILES) and not self.frequency_mhz and not self.limit_w
        return self.process > 0 and (is_profile if self.profiles else is_limit or is_clock)

    def __str__(self) -> str:
        what = f"{self.limit_w:g} W" if self.limit_w else self.profiles or f"{self.frequency_mhz or '?'} MHz"
        return f"{what} by process {self.process or '?'} since {self.since}"


UNREADABLE = DeviceSetting(process=0, since="an unknown time")
"""Result for damaged content: a clock may be locked, or anything else be set."""


class Claim:
    """A GPU's clock, power limit and profiles, held by this process."""

    def __init__(self, uuid: str, descriptor: int) -> None:
        """Hold the locked file that `claim` opened."""
        self._uuid = uuid
        self._descriptor = descriptor
        self._setting = _read(descriptor)  # kept, since others may empty the file

    def setting(self) -> DeviceSetting | None:
        """Return what is set, or None."""
        return self._setting

    def note(self, frequency_mhz: int = 0, *, limit_w: float = 0.0, former_w: float = 0.0, profiles: str = "") -> None:
        """Record the clock, the power limit beside the former one, or the profiles that are about to be set.

        Raises:
            DeviceError: the file cannot be written, or was deleted and cannot be put back.
        """
        self.put_back()
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._setting = DeviceSetting(
            process=os.getpid(),
            frequency_mhz=frequency_mhz,
            limit_w=limit_w,
            former_w=former_w,
            profiles=profiles,
            since=since,
        )
        self._write()

    def is_intact(self) -> bool:
        """Whether the file is where others look for it, with content if a clock is set; takes microseconds."""
        emptied = self._setting is not None and not os.fstat(self._descriptor).st_size
        return not emptied and _in_place(self._descriptor, self._uuid)

    def put_back(self) -> None:
        """Make the file again if it was deleted, moved, replaced or emptied.

        Raises:
            DeviceError: another process has locked the file that is there now, or none can be made.
        """
        if not _in_place(self._descriptor, self._uuid):
            self._open_again()
        if self._setting is not None:
            self._write()

    def clear(self) -> None:
        """Record that nothing is set any longer."""
        os.ftruncate(self._descriptor, 0)
        self._setting = None

    def _open_again(self) -> None:
        descriptor = _open(self._uuid, make=True)
        try:
            if not _try_lock(descriptor):
                raise DeviceError(
                    f"{self._uuid}: the file of its claim was deleted and another process has taken the GPU; end one "
                    "of the two."
                )
            os.dup2(descriptor, self._descriptor, inheritable=False)
        finally:
            os.close(descriptor)

    def _write(self) -> None:
        try:
            os.pwrite(self._descriptor, json.dumps(to_plain(self._setting)).encode().ljust(_LONGEST), 0)
        except OSError as error:
            raise DeviceError(f"{_path(self._uuid)}: cannot be written ({error.strerror}); make room there.") from error


@contextlib.contextmanager
def claim(uuid: str, *, patience_s: float = 0.0) -> Iterator[Claim]:
    """Hold the claim of GPU `uuid`.

    Args:
        uuid: of the GPU.
        patience_s: longest wait for its holder; may be infinite.

    Raises:
        DeviceError: another process holds it, or its file cannot be used.
    """
    deadline_s = time.monotonic() + patience_s
    with contextlib.ExitStack() as locks:
        while (descriptor := _take(uuid, locks)) is None:
            if time.monotonic() >= deadline_s:
                setting = setting_of(uuid)
                using = (
                    f"its {setting.subject.split()[0]} is {setting.verb} to {setting}"
                    if setting
                    else "another process is about to use it"
                )
                raise DeviceError(f"{uuid}: in use, {using}; wait until it has ended, or choose another GPU.")
            time.sleep(min(_POLL_S, patience_s))
        yield Claim(uuid, descriptor)


def setting_of(uuid: str) -> DeviceSetting | None:
    """Return what is set on GPU `uuid` by anybody, alive or dead; None if nothing is.

    Raises:
        DeviceError: the file of its claim cannot be used.
    """
    try:
        descriptor = _open(uuid, make=False)
    except FileNotFoundError:
        return None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _take(uuid: str, locks: contextlib.ExitStack) -> int | None:
    """Take the claim unless another process has it; return the locked file, which `held` releases."""
    with contextlib.ExitStack() as taken:
        if not _bind_name(uuid, taken):
            return None
        while True:
            descriptor = _open(uuid, make=True)
            taken.callback(os.close, descriptor)
            if not _try_lock(descriptor):
                return None
            if _in_place(descriptor, uuid):
                locks.push(taken.pop_all())
                return descriptor
            # Deleted between opening and locking: the next process locks another file, so lock that one.


def _bind_name(uuid: str, taken: contextlib.ExitStack) -> bool:
    """Bind the claim's name in the kernel if it is free; it ends with its process and cannot be deleted."""
    if sys.platform != "linux":
        return True
    name = hashlib.sha256(str(_path(uuid).absolute()).encode()).hexdigest()
    bound = taken.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        bound.bind(f"\0kareus-claim-{name}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_place(descriptor: int, uuid: str) -> bool:
    """Whether an open file is the one at the claim's path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(_path(uuid)))
    except OSError:  # opening it next raises the reason
        return False


def _path(uuid: str) -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or _default_folder()) / f"{uuid}.claim"


def _default_folder() -> Path:
    """Return the first folder that is there or that any user can make."""
    for folder in DEFAULT_FOLDERS[:-1]:
        if folder.exists() or _is_shared(folder.parent):
            return folder
    return DEFAULT_FOLDERS[-1]


def _is_shared(folder: Path) -> bool:
    """Whether all users can write in a folder, and delete only what is theirs."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX) and os.access(folder, os.W_OK)


def _open(uuid: str, *, make: bool) -> int:
    """Open the file of a claim for whichever user, making it if it is missing and `make`."""
    path = _path(uuid)
    try:
        folder = _open_folder(path.parent, make=make)
        try:
            descriptor = _open_file(path.name, folder, make=make)
        finally:
            os.close(folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not make:
            raise
        reason = "a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise DeviceError(
            f"{path}: cannot be used ({reason}); remove it, or name a folder of this machine that all its "
            f"users can write in {FOLDER_VARIABLE}."
        ) from error
    return descriptor


def _open_folder(path: Path, *, make: bool) -> int:
    """Open the folder of all claims, so that it cannot be exchanged for another between two steps."""
    if make and not path.exists():
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            path.chmod(0o1777)
    is_default = path in DEFAULT_FOLDERS
    # A default folder may be anybody's; a link in its place could have root make files where its maker may not.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if is_default else 0))
    if is_default and not os.fstat(descriptor).st_mode & stat.S_ISVTX:
        os.close(descriptor)
        raise OSError(errno.EPERM, "its folder lets users delete each other's files: its sticky bit is not set")
    return descriptor


def _open_file(name: str, folder: int, *, make: bool) -> int:
    """Open a claim's file, which must be a plain one, without following a link or waiting for anything."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            # Linux refuses O_CREAT on another user's file in a sticky folder (fs.protected_regular): try without it.
            descriptor = os.open(name, flags, dir_fd=folder)
            break
        except FileNotFoundError:
            if not make:
                raise
        with contextlib.suppress(FileExistsError):  # another process created it first: open that one
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, dir_fd=folder)
            os.fchmod(descriptor, 0o666)
            break
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EPERM, "a hard link" if stat.S_ISREG(status.st_mode) else "not a regular file")


def _read(descriptor: int) -> DeviceSetting | None:
    """Parse and validate the content of a claim, which is printed to a terminal."""
    content = os.pread(descriptor, _LONGEST + 1, 0)
    if not content:
        return None
    try:
        setting = from_plain(DeviceSetting, parse_json(content.decode()))
        since = datetime.datetime.fromisoformat(setting.since).isoformat(timespec="seconds")
    except (ConfigError, ValueError):  # of which UnicodeDecodeError is one
        return UNREADABLE
    if not setting.is_known:
        return UNREADABLE
    return dataclasses.replace(setting, since=since)
