"""Manifests: what is copied with one."""

import pytest

from kareus.artifacts.manifest import copy_listed, write_manifest
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


def test_a_listed_file_that_is_missing_is_named(manifest, tmp_path):
    (manifest.parent / "page.html").unlink()
    with pytest.raises(ArtifactError, match=r"page.html: cannot be copied \(No such file"):
        copy_listed(manifest, tmp_path / "copy")
