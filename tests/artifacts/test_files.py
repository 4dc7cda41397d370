"""Folders and files that are either whole or absent."""

import os

import pytest

from kareus.artifacts.files import replace_folder


def fill_with(text):
    return lambda folder: (folder / "file").write_text(text)


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    place = tmp_path / "pages"
    replace_folder(place, lambda folder: (folder / "former").write_text("1"))
    replace_folder(place, fill_with("2"))
    assert {path.name: path.read_text() for path in place.iterdir()} == {"file": "2"}
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_that_cannot_be_filled_leaves_the_old_one(tmp_path):
    place = tmp_path / "pages"
    replace_folder(place, fill_with("1"))
    with pytest.raises(ZeroDivisionError):
        replace_folder(place, lambda folder: 1 / 0)
    assert (place / "file").read_text() == "1"
    assert list(tmp_path.iterdir()) == [place]


def test_leftovers_of_a_process_with_this_number_do_no_harm(tmp_path):
    place = tmp_path / "pages"
    for name in (f".pages.{os.getpid()}.tmp", f".pages.{os.getpid()}.old.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("")
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
