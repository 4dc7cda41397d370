"""Folders and files that are either whole or absent."""

import contextlib
import os
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.files import (
    is_being_written,
    is_temporary,
    read_text,
    replace_folder,
    temporary_of,
    write_text,
)
from kareus.artifacts.locks import exclusive_lock
from kareus.errors import ArtifactError
from kareus.processes import start_of


def fill_with(text):
    return lambda folder: (folder / "file").write_text(text)


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    place = tmp_path / "pages"
    replace_folder(place, lambda folder: (folder / "former").write_text("1"))
    replace_folder(place, fill_with("2"))
    assert {path.name: path.read_text() for path in place.iterdir()} == {"file": "2"}
    assert list(tmp_path.iterdir()) == [place]


def test_users_who_share_a_folder_share_its_locks(tmp_path):
    before = os.umask(0o002)
    try:
        with exclusive_lock(tmp_path / "lock"):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_a_folder_that_cannot_be_filled_leaves_the_old_one(tmp_path):
    place = tmp_path / "pages"
    replace_folder(place, fill_with("1"))
    with pytest.raises(ZeroDivisionError):
        replace_folder(place, lambda folder: 1 / 0)
    assert (place / "file").read_text() == "1"
    assert list(tmp_path.iterdir()) == [place]


def test_leftovers_of_a_process_with_this_number_do_no_harm(tmp_path):
    place = tmp_path / "pages"
    for left in (temporary_of(place), temporary_of(place, ".old")):
        left.mkdir()
        (left / "half").write_text("")
    replace_folder(place, fill_with("1"))
    replace_folder(place, fill_with("2"))
    assert [path.name for path in place.iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [place]


def test_a_rename_that_fails_loses_no_folder(tmp_path, monkeypatch):
    place = tmp_path / "pages"
    replace_folder(place, fill_with("1"))
    rename = type(place).rename

    def fails_for_the_new_one(path, target):
        if target == place:
            raise OSError("the disk is gone")
        return rename(path, target)

    monkeypatch.setattr(type(place), "rename", fails_for_the_new_one)
    with pytest.raises(OSError, match="the disk is gone"):
        replace_folder(place, fill_with("2"))
    assert [(folder / "file").read_text() for folder in tmp_path.iterdir()] == ["1"]


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # paths of sockets are short
        made.bind(path.name)


def make_dangling_link(path):
    path.symlink_to(path.parent / "nowhere")


def make_link_to_a_file(path):
    (path.parent / "target").write_text("mine")
    path.symlink_to(path.parent / "target")


def make_link_to_a_device(path):
    path.symlink_to("/dev/null")


def make_device(path):
    try:
        os.mknod(path, 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


IRREGULAR = (make_pipe, make_socket, make_device, make_dangling_link, make_link_to_a_file, make_link_to_a_device)


@pytest.mark.parametrize("make", IRREGULAR)
def test_what_is_no_regular_file_is_not_replaced(tmp_path, make):
    path = tmp_path / "out"
    make(path)
    before = path.lstat()
    for write in (lambda: write_text(path, "new"), lambda: replace_folder(path, fill_with("new"))):
        with pytest.raises(OSError, match="out"):
            write()
        assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert {entry.name for entry in tmp_path.iterdir()} <= {"out", "target"}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", IRREGULAR)
def test_what_is_no_regular_file_is_not_waited_for(tmp_path, make):
    make(tmp_path / "text")
    if make is make_link_to_a_file:
        assert read_text(tmp_path / "text") == "mine"
        return
    with pytest.raises(ArtifactError, match=r"text: cannot be read \("):
        read_text(tmp_path / "text")


def test_a_temporary_file_is_being_written_while_its_process_runs(tmp_path):
    ours = temporary_of(tmp_path / "a.json")
    assert is_temporary(ours)
    assert is_being_written(ours)
    with subprocess.Popen(["sleep", "100"]) as other:
        name = f".a.json.{other.pid}-{start_of(other.pid)}.kareus.tmp"
        assert is_being_written(tmp_path / name)
        later = f".a.json.{other.pid}-{start_of(other.pid) + 1}.kareus.tmp"
        assert not is_being_written(tmp_path / later)
        other.kill()
        other.wait()
    assert not is_being_written(tmp_path / name)


NUMBERS = st.integers(min_value=0) | st.integers(min_value=2**31 - 1, max_value=10**24)


@given(st.text(st.characters(exclude_characters="/\0")), NUMBERS, NUMBERS)
def test_no_number_in_a_name_stops_what_asks_for_its_process(name, process, start):
    assert not is_being_written(Path(f".x{name}.{process}-{start}.kareus.tmp"))
