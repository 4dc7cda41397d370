"""Manifests: what is copied with one, and what comes into a folder with one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.files import write_json, write_text
from kareus.artifacts.manifest import copy_listed, fill_listed, read_manifest, write_manifest
from kareus.artifacts.seals import sealed
from kareus.errors import ArtifactError


@pytest.fixture
def manifest(tmp_path):
    """A manifest of a page and a folder, beside which is a file that it does not list."""
    folder = tmp_path / "report"
    (folder / "data").mkdir(parents=True)
    for name in ("page.html", "data/costs.csv"):
        (folder / name).write_text(name)
    write_manifest(folder / "manifest.json", [folder / "page.html", folder / "data"])
    (folder / "data/damaged.parquet").write_text("not one")
    return folder / "manifest.json"


def test_copying_by_manifest_copies_listed_files_only(manifest, tmp_path):
    copy_listed(manifest, tmp_path / "copy")
    copied = {path.relative_to(tmp_path / "copy"): path.read_bytes() for path in (tmp_path / "copy").rglob("*.*")}
    assert {str(name) for name in copied} == {"manifest.json", "page.html", "data/costs.csv"}
    assert all(content == (manifest.parent / name).read_bytes() for name, content in copied.items())


@pytest.mark.parametrize("name", ["page.html", "data"])
def test_what_a_link_leads_to_is_not_copied(manifest, tmp_path, name):
    path = manifest.parent / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="is no regular file, or behind a link; rerun the stage"):
        copy_listed(manifest, tmp_path / "copy")


@pytest.mark.timeout(10)
def test_a_pipe_is_not_copied(manifest, tmp_path):
    (manifest.parent / "page.html").unlink()
    os.mkfifo(manifest.parent / "page.html")
    with pytest.raises(ArtifactError, match="is no regular file, or behind a link"):
        copy_listed(manifest, tmp_path / "copy")


@given(st.text() | st.sampled_from(["", ".", "/", "a/../../b", "a\0b", "\ud800", "x" * 256, "a/" * 600 + "a"]))
def test_whatever_a_manifest_names_is_below_its_folder_or_refused(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "named"
    write_json(folder / "manifest.json", sealed({"files": {name: "0" * 64}}))
    try:
        (listed,) = read_manifest(folder / "manifest.json")
    except ArtifactError:
        return
    assert (folder / listed).resolve().is_relative_to(folder.resolve())
    assert (folder / listed).resolve() != folder.resolve()
    assert not (folder / listed).exists()  # what a file system does not take, it would refuse to look for


def test_a_listed_file_that_is_missing_is_named(manifest, tmp_path):
    (manifest.parent / "page.html").unlink()
    with pytest.raises(ArtifactError, match=r"page.html: cannot be copied \(No such file"):
        copy_listed(manifest, tmp_path / "copy")


def listing(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def filling(text: str, *names: str, end: type[BaseException] | None = None) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        for name in names:
            write_text(folder / name, text)
        if end is not None:
            raise end
        write_manifest(folder / "manifest.json", [folder])

    return fill


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("is_there", [False, True])
def test_what_ends_while_it_fills_a_folder_leaves_it_as_it_was(tmp_path, end, is_there):
    folder = tmp_path / "report"
    if is_there:
        folder.mkdir()
    with pytest.raises(end):
        fill_listed(folder, "manifest.json", filling("1", "a", "data/b", end=end))
    assert list(tmp_path.rglob("*")) == ([folder] if is_there else [])
    fill_listed(folder, "manifest.json", filling("1", "a", "data/b"))
    before = listing(folder)
    assert before.keys() == {"a", "data/b", "manifest.json"}
    with pytest.raises(end):
        fill_listed(folder, "manifest.json", filling("2", "a", "data/c", end=end))
    assert listing(folder) == before


def test_files_that_a_former_manifest_lists_are_removed_and_no_others(tmp_path):
    folder = tmp_path / "report"
    fill_listed(folder, "manifest.json", filling("1", "a", "data/b", "data/link"))
    (folder / "data/mine").write_text("mine")
    (folder / "data/link").unlink()
    (folder / "data/link").symlink_to(folder / "data/mine")
    fill_listed(folder, "manifest.json", filling("2", "a", "data/c"))
    assert set(listing(folder)) == {"a", "data/c", "data/link", "data/mine", "manifest.json"}
    assert set(read_manifest(folder / "manifest.json")) == {"a", "data/c"}
    assert (folder / "a").read_text() == "2"


def test_nothing_moves_where_a_file_cannot_be_replaced(tmp_path):
    folder = tmp_path / "report"
    (folder / "b").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="is no regular file"):
        fill_listed(folder, "manifest.json", filling("1", "a", "b"))
    assert list(folder.iterdir()) == [folder / "b"]
