"""Command `init`: lay out a folder for campaigns, with the workflow and a configuration to change."""

import argparse
import shlex
from pathlib import Path

from kareus.artifacts.files import is_regular, write_atomically
from kareus.artifacts.names import check_path
from kareus.artifacts.outputs import add_force, check_folder
from kareus.artifacts.shipped import campaign_files
from kareus.errors import ArtifactError, printable

NAMED = 3
"""Files of a refusal that are named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folder."""
    parser.add_argument("folder", type=Path, help="a new folder, or one to bring up to date with --force")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Copy what is missing, and say what to type next."""
    folder, force = arguments.folder, arguments.force
    check_path(str(folder.absolute()), "folder")
    check_folder(folder, force=force)
    missing, changed = _differing(folder)
    if changed and not force:
        names = ", ".join(sorted(changed)[:NAMED])
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        raise ArtifactError(
            f"{folder}: has files that are not those of this version: {names}{more}; give a new folder, or --force to "
            "replace them."
        )
    for name, content in (missing | changed).items():
        write_atomically(folder / name, lambda path, content=content: path.write_bytes(content))  # type: ignore[misc]
    for line in _lines(folder, len(missing), len(changed)):
        print(printable(line))  # noqa: T201 - the answer of the command


def _differing(folder: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Contents to write, by name below the folder: of files that are not there, and of those that differ."""
    missing, changed = dict[str, bytes](), dict[str, bytes]()
    for name, source in campaign_files().items():
        content, path = source.read_bytes(), folder / name
        if not path.exists():
            missing[name] = content
        elif not is_regular(path) or path.read_bytes() != content:
            changed[name] = content
    return missing, changed


def _lines(folder: Path, missing: int, changed: int) -> list[str]:
    """What was done, and what to type next."""
    if not missing + changed:
        return [f"{folder}: has all of it already"]
    done = [f"{number} files {word}" for number, word in ((missing, "written"), (changed, "replaced")) if number]
    return [
        f"{folder}: {', '.join(done)}; config/ is yours to change, and to write campaigns into",
        f"next: cd {shlex.quote(str(folder))} && snakemake -n",
    ]
