"""Outputs of commands: what is replaced, and where folders are made, only with `--force`.

A file may be replaced by one of its own kind: a plan by a plan, a table by one of the same schema, settings that people
add to as long as they have not. Any other existing file, above all an input of the same command, was named by mistake.
What is no regular file, such as a device, a pipe or a link, is never replaced: writing renames a new file over what is
there.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kareus.artifacts.files import NOT_REGULAR, is_temporary, require_replaceable
from kareus.artifacts.manifest import SUFFIX as MANIFEST_SUFFIX
from kareus.artifacts.manifest import read_manifest
from kareus.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from kareus.artifacts.tables import TableSchema

RESULTS = ("measurements", "campaigns", "workloads.parquet")
"""What only a folder of results of the workflow has."""


@dataclass(frozen=True, slots=True)
class OutputKind:
    """A kind of file that a command writes."""

    name: str
    """Name with its article, for messages: "a plan"."""
    recognises: Callable[[Path], bool]
    """Whether an existing file is of this kind."""
    is_as_written: Callable[[Path], bool] = lambda _: True
    """Whether one of this kind is as Kareus wrote it, where people are asked to add to it."""


def table(schema: "TableSchema") -> OutputKind:
    """Return the kind of output of a table of `schema`, in any of its versions."""
    from kareus.artifacts.tables import table_name  # noqa: PLC0415 - polars is slow to import, and few commands need it

    return OutputKind(f"a table '{schema.name}'", lambda path: table_name(path) == schema.name)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Declare `--force`."""
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace an output file whatever it is, be it an input, and make missing folders",
    )


def check_outputs(
    arguments: argparse.Namespace, outputs: Sequence[tuple[Path, OutputKind]], inputs: Iterable[Path] = ()
) -> None:
    """Check, before anything is computed, that no output takes the place of something else.

    Args:
        arguments: of the command; its paths that are no outputs are inputs.
        outputs: files to write.
        inputs: files that are read although no argument names them.

    Raises:
        ConfigError: two outputs are one file.
        ArtifactError: an output is there and is no regular file; or it is an input, or a file of another kind, and
            there is no `--force`.
    """
    for path, _ in outputs:
        _check_regular(path)
    paths = [path for path, _ in outputs]
    for number, path in enumerate(paths):
        if any(_is_same(path, other) for other in paths[:number]):
            raise ConfigError(f"{path}: named for two outputs; give each a path of its own.")
    if arguments.force:
        return
    # Compared by identity: an input may have the same path as the output.
    named = [path for path in _paths(vars(arguments).values()) if not any(path is output for output in paths)]
    read = [*named, *inputs]
    for path, kind in outputs:
        if any(_is_same(path, other) for other in read):
            raise ArtifactError(f"{path}: is an input of this command; give another path, or --force to replace it.")
        if path.is_file() and not kind.recognises(path):
            raise ArtifactError(
                f"{path}: there is a file that is not {kind.name}, or a damaged one; give another path, or --force to "
                "replace it."
            )
        if path.is_file() and not kind.is_as_written(path):
            raise ArtifactError(
                f"{path}: was changed after Kareus wrote it; give another path (--output), or --force to replace it, "
                "changes and all."
            )


def _check_regular(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        raise ArtifactError(f"{path}: is a folder; give the path of a file, such as {path / 'NAME'}.")
    try:
        require_replaceable(path)
    except FileExistsError:
        raise ArtifactError(f"{path}: {NOT_REGULAR}; give the path of a regular file, or a new one.") from None


def check_files(
    arguments: argparse.Namespace, outputs: Sequence[tuple[Path, OutputKind]], inputs: Iterable[Path] = ()
) -> None:
    """Check outputs that arguments name, each with `check_place`, and together with `check_outputs`.

    Raises:
        ConfigError: two outputs are one file.
        ArtifactError: an output cannot be written without `--force`, which is not given.
    """
    check_outputs(arguments, outputs, inputs)
    for path, _ in outputs:
        check_place(path, force=arguments.force)


def check_place(path: Path, *, force: bool) -> None:
    """Check that the folder of an output file is there: a missing one is more often a typo than a wish.

    Raises:
        ArtifactError: it is not, and there is no `--force`; or the path is a folder itself, or no regular file.
    """
    _check_regular(path)
    if not (force or path.parent.exists()):
        raise ArtifactError(f"{path}: there is no folder {path.parent}; make it, give another path, or --force.")
    _check_writable(path, path.parent)


def _check_writable(path: Path, folder: Path) -> None:
    """Check that files can be made in a folder, or where it will be; permissions alone do not tell, as in /proc."""
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not place.is_dir():
        named = path if path.exists() else f"{path}: {place}"
        raise ArtifactError(f"{named}: is a file; give the path of a folder.")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ArtifactError(f"{path}: {place} cannot be written; give another path.") from error


def check_folder(path: Path, *, force: bool) -> None:
    """Check that an output folder is there, or is one to make: in a folder that is there, or below the current one.

    Raises:
        ArtifactError: it is neither, and there is no `--force`; or it is a file, is below one, or cannot be written.
    """
    _check_writable(path, path)
    is_below = path.absolute().is_relative_to(Path.cwd()) and ".." not in path.parts
    if not (force or is_below or path.exists() or path.absolute().parent.exists()):
        raise ArtifactError(f"{path}: there is no folder {path.parent}; make it, give another path, or --force.")


def check_not_results(path: Path) -> None:
    """Check that a folder is neither results of the workflow nor in them.

    Raises:
        ConfigError: it is.
    """
    here = path.resolve()
    results = [folder for folder in (here, *here.parents) if any((folder / mark).exists() for mark in RESULTS)]
    if results or here.is_relative_to(Path("results").resolve()):
        raise ConfigError(
            f"{path}: belongs to the workflow, and only snakemake writes there; give another folder, such as look."
        )


def check_report_folder(path: Path, *, force: bool) -> None:
    """Check that a folder for a report is new, is empty, or has the manifest of an earlier report.

    A report writes many files, and removes those of an earlier report that it does not have. In any other folder these
    could be files of the user's.

    Raises:
        ArtifactError: the folder is none of these, or it cannot be made, and there is no `--force`.
    """
    check_folder(path, force=force)
    if force or not path.is_dir() or all(map(is_temporary, path.iterdir())):
        return
    if not any(_is_manifest(file) for file in path.glob(f"*{MANIFEST_SUFFIX}")):
        raise ArtifactError(
            f"{path}: the folder has files, and no manifest of a report; give a new or empty folder, or --force to "
            "replace files of the same names."
        )


def _is_manifest(path: Path) -> bool:
    try:
        read_manifest(path)
    except ArtifactError:
        return False
    return True


def _is_same(path: Path, other: Path) -> bool:
    """Whether both paths lead to one file, directly or by links."""
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _paths(values: Iterable[Any]) -> Iterator[Path]:
    """Paths among the values of arguments, each a path or a list of them."""
    for value in values:
        if isinstance(value, Path):
            yield value
        elif isinstance(value, list):
            yield from _paths(value)
