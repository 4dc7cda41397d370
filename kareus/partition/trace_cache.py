"""The trace of each structure, made once: kept in this process, and in a folder for other processes.

A file in the folder of caches holds one structure for one version of the code and of torch, sealed. It may be deleted
at any time; one that is damaged is ignored and written anew, and where nothing can be written every process traces for
itself.
"""

import hashlib
import logging
from functools import cache
from importlib import metadata
from pathlib import Path

import kareus
from kareus.artifacts import records
from kareus.artifacts.cache import cache_folder
from kareus.artifacts.files import read_json, write_text
from kareus.artifacts.seals import sealed, unsealed
from kareus.errors import ArtifactError, ConfigError
from kareus.partition.structure import Structure, probes
from kareus.partition.template import TraceTemplate, from_plain, template_of, to_plain

TRACED_ROOMS = ("graph", "model", "partition")
"""Packages whose code decides what is traced."""

logger = logging.getLogger(__name__)


@cache
def cached_template(structure: Structure) -> TraceTemplate:
    """Return the template of a structure: as read from the folder, or traced and written there.

    Raises:
        KareusError: it has to be traced, and this process already runs distributed training.
    """
    path = _place(structure)
    if path is None:
        return _traced(structure)
    known = _read(path)
    if known is None:
        known = _traced(structure)
        _write(path, known)
    return known


def is_kept(structure: Structure) -> bool:
    """Return whether the folder has a file of a structure, whole or not."""
    path = _place(structure)
    return path is not None and path.exists()


def _place(structure: Structure) -> Path | None:
    """Return the file of a structure; None where nothing is kept."""
    folder = cache_folder()
    return None if folder is None else folder / "traces" / f"{_key(structure)}.json"


def _traced(structure: Structure) -> TraceTemplate:
    from kareus.partition.trace import trace_structure  # noqa: PLC0415 - a cached structure needs no torch

    return template_of([(trace_structure(structure, sizes), sizes) for sizes in probes(structure)])


def _key(structure: Structure) -> str:
    """Return the name of a structure under this code and this torch."""
    return records.content_hash([structure, code_of(TRACED_ROOMS), metadata.version("torch")])


@cache
def code_of(rooms: tuple[str, ...]) -> str:
    """Return a hash of all modules of these packages."""
    root, digest = Path(kareus.__file__).parent, hashlib.sha256()
    for path in sorted(path for room in rooms for path in (root / room).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> TraceTemplate | None:
    """Read a template; None where there is none that is whole and may be read."""
    try:
        return from_plain(unsealed(read_json(path)))
    except (ArtifactError, ConfigError, KeyError, TypeError, ValueError, IndexError) as error:
        logger.debug("%s: not used (%s); traced anew", path, error)
        return None


def _write(path: Path, template: TraceTemplate) -> None:
    """Write a template; a folder that cannot be written costs time and nothing else."""
    try:
        write_text(path, records.canonical_json(sealed(to_plain(template))))
    except OSError as error:
        logger.debug("%s: not written (%s)", path, error)
