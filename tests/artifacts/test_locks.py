"""Locks between processes, and what is said where a filesystem has none."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kareus.artifacts.locks import exclusive_lock, lock_until_exit, require_locked
from kareus.errors import ArtifactError

HOLD = "import sys, time; from pathlib import Path; from kareus.artifacts.locks import lock_until_exit; " \
    "lock_until_exit(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"  # fmt: skip


@pytest.fixture
def held(tmp_path):
    """A lock that another process holds, and that process."""
    path = tmp_path / "run.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    yield path, holder
    holder.kill()
    holder.communicate()


def test_a_lock_of_a_living_process_is_seen_and_cannot_be_taken(held):
    path, _ = held
    require_locked(path)
    with pytest.raises(ArtifactError, match="another run is at work in this folder; wait until it has ended"):
        lock_until_exit(path)


def test_a_lock_ends_with_its_holder_however_that_ends(held):
    path, holder = held
    holder.kill()
    holder.wait()
    with pytest.raises(ArtifactError, match="not locked as seen from this node"):
        require_locked(path)
    with pytest.raises(ArtifactError):  # asking does not take it
        require_locked(path)


def test_a_lock_that_is_not_there_is_told_in_one_line(tmp_path):
    with pytest.raises(ArtifactError) as refused:
        require_locked(tmp_path / "run.lock")
    assert "cannot be locked from this node (No such file or directory); the filesystem" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_filesystem_without_locks_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(ArtifactError, match="does not carry locks from node to node"),
        exclusive_lock(tmp_path / "lock"),
    ):
        pass
    (tmp_path / "lock").touch()
    with pytest.raises(ArtifactError, match="does not carry locks from node to node"):
        require_locked(tmp_path / "lock")
