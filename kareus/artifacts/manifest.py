"""Manifests: sealed lists of the files of a folder with the hash of each, for files that have no seal of their own.

What a manifest lists comes into its folder at once (`fill_listed`).
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import kareus
from kareus.artifacts.files import (
    file_hash,
    is_regular,
    make_folder,
    read_json,
    require_replaceable,
    sync_folder,
    temporary_of,
    write_json,
)
from kareus.artifacts.names import is_below, leads_through_link
from kareus.artifacts.seals import sealed, unsealed
from kareus.errors import ArtifactError, ConfigError

SUFFIX = "manifest.json"
"""Names of manifests end with it; the rest of the name tells several of a folder apart."""


def write_manifest(path: Path, files: Iterable[Path]) -> None:
    """Write to `path` a manifest of `files`, which are below its folder; a folder includes all files in it."""
    hashes = {
        file.relative_to(path.parent).as_posix(): file_hash(file)
        for given in files
        for file in (sorted(_files_below(given)) if given.is_dir() else [given])
    }
    write_json(path, sealed({"kareus_version": kareus.__version__, "files": hashes}))


def read_manifest(path: Path) -> Mapping[str, str]:
    """Read a manifest: SHA-256 of every file by its path below the manifest's folder.

    Raises:
        ArtifactError: the manifest is missing or damaged.
    """
    try:
        files = unsealed(read_json(path)).get("files")
    except ConfigError as error:
        raise ArtifactError(f"{path}: {error}; delete it and rerun the stage that makes it.") from error
    if not isinstance(files, dict) or not all(is_below(name) for name in files):
        raise ArtifactError(f"{path}: does not list files below its folder; delete it and rerun the stage.")
    return files


def fill_listed(folder: Path, name: str, fill: Callable[[Path], object]) -> None:
    """Fill a temporary folder by `fill`, with a manifest, then move what is in it into `folder`, among its other files.

    An end before the move leaves `folder` as it was. A new folder comes into place whole; into one that is there the
    manifest comes first, so that the folder is known as its own whenever the move ends. What its former manifest lists
    and the new one does not is removed.

    Args:
        folder: that the files are for.
        name: of the manifest that `fill` writes.
        fill: writes files into a folder.

    Raises:
        FileExistsError: where a file should be is something that is no regular file; all stays as it was.
    """
    is_new = not os.path.lexists(folder)
    make_folder(folder.parent)
    filled = temporary_of(folder if is_new else folder / "report")
    shutil.rmtree(filled, ignore_errors=True)  # of this process, which could not remove it before
    try:
        filled.mkdir()
        fill(filled)
        if is_new:
            filled.rename(folder)
        else:
            _move_listed(filled, folder, name)
    finally:
        shutil.rmtree(filled, ignore_errors=True)
    sync_folder(folder.parent)


def _move_listed(filled: Path, folder: Path, name: str) -> None:
    try:
        former = read_manifest(folder / name)
    except ArtifactError:  # it is new, or was damaged
        former = {}
    listed = read_manifest(filled / name)
    targets = {filled / file: folder / file for file in (name, *listed)}
    for target in targets.values():
        require_replaceable(target)
    for made in (path for path in filled.rglob("*") if path.is_dir()):
        (folder / made.relative_to(filled)).mkdir(exist_ok=True)
    for file, target in targets.items():
        file.replace(target)
    for gone in former.keys() - listed.keys():
        if is_regular(folder / gone) and not leads_through_link(folder, gone):
            (folder / gone).unlink()
    for each in {target.parent for target in targets.values()}:
        sync_folder(each)


def copy_listed(manifest: Path, folder: Path) -> None:
    """Copy a manifest, and the files that it lists, to `folder`.

    Raises:
        ArtifactError: the manifest is missing or damaged, or a file that it lists is missing, is no regular file or is
            reached through a link.
    """
    for name in (*read_manifest(manifest), manifest.name):
        file = manifest.parent / name
        if leads_through_link(manifest.parent, name) or (file.exists() and not is_regular(file)):
            raise ArtifactError(f"{file}: is no regular file, or behind a link; rerun the stage that makes it.")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(file, folder / name)
        except OSError as error:
            raise ArtifactError(
                f"{file}: cannot be copied ({error.strerror}); check its permissions, or rerun the stage that makes it."
            ) from error


def _files_below(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if is_regular(path) and not path.name.startswith("."))
