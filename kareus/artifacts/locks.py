"""Lock files, which a process holds no longer than it lives."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kareus.artifacts.files import make_folder
from kareus.errors import ArtifactError


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, waiting for its holder. The kernel frees it when its holder dies.

    Raises:
        ArtifactError: the filesystem has no locks.
    """
    make_folder(path.parent)
    descriptor = _open_lock(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be locked ({error.strerror}); {_LOCKS_NEEDED}") from error
        yield
    finally:
        os.close(descriptor)


def lock_until_exit(path: Path) -> None:
    """Take the lock file `path` or fail at once. The kernel frees it when this process ends, however it does.

    Raises:
        ArtifactError: another process holds it.
    """
    _lock_at_once(path)


@contextlib.contextmanager
def lock_at_once(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, or fail at once.

    Raises:
        ArtifactError: another process holds it.
    """
    descriptor = _lock_at_once(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock_at_once(path: Path) -> int:
    """Lock a file; returns its descriptor, with which the lock goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ArtifactError(f"{path}: another run is at work in this folder; wait until it has ended.") from None
    return descriptor


def _open_lock(path: Path) -> int:
    """Open a lock file, which is made if need be; for reading too, since a pipe opened for writing alone waits.

    Whoever may write in its folder, by the umask of its maker, may lock it, too.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def require_locked(path: Path) -> None:
    """Check that a process holds the lock file `path`, as seen from here.

    The head of a run holds one for as long as its jobs run. A job on another node that can take it has a filesystem on
    which locks do not reach from node to node, and would write to the measurement store at the same time as others.

    Raises:
        ArtifactError: no process holds it, or there is no such file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be locked from this node ({error.strerror}); {_LOCKS_NEEDED}") from error
    raise ArtifactError(f"{path}: not locked as seen from this node, so the run has ended, or {_LOCKS_NEEDED}")


_LOCKS_NEEDED = (
    "the filesystem does not carry locks from node to node; put the folder on one that does (NFS 4, Lustre mounted "
    "with `flock`), or run on one node."
)
