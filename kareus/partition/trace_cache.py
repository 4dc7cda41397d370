"""The trace of each structure, made once: kept in this process, and in a folder for other processes.

A file in the folder of caches (`kareus.artifacts.cache`) holds one structure for one version of the code and of torch.
What is read must be a template of that structure from which an operator graph follows; else it is traced and written
anew.
"""

import hashlib
import logging
from functools import cache
from importlib import metadata
from pathlib import Path

import kareus
from kareus.artifacts import records
from kareus.artifacts.cache import keep, kept, place_of
from kareus.partition.detect import graph_of
from kareus.partition.structure import Structure, probes
from kareus.partition.template import TraceTemplate, from_plain, template_of, to_plain

TRACED_ROOMS = ("graph", "model", "partition")
"""Packages whose code decides what is traced."""
_KIND = "traces"

logger = logging.getLogger(__name__)


@cache
def cached_template(structure: Structure) -> TraceTemplate:
    """Return the template of a structure: as read from the folder, or traced and written there.

    Raises:
        KareusError: it has to be traced, and this process already runs distributed training.
    """
    key = _key(structure)
    template = _read(structure, key)
    if template is None:
        template = _traced(structure)
        keep(_KIND, key, to_plain(template))
    return template


def is_kept(structure: Structure) -> bool:
    """Return whether the folder has a file of a structure, whole or not."""
    path = place_of(_KIND, _key(structure))
    return path is not None and path.exists()


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


def _read(structure: Structure, key: str) -> TraceTemplate | None:
    """Read a template; None where none is kept that is sound."""
    plain = kept(_KIND, key)
    if plain is None:
        return None
    try:
        template = from_plain(plain)
        sizes = probes(structure)[0]
        trace = template.trace(sizes, {"tp": 2, "cp": structure.cp})
        graph_of(trace)
        if template_of([(trace, sizes)]) != template:
            raise ValueError("no template")
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the trace is made anew
        logger.debug("%s: a damaged trace (%r); traced anew", key, error)
        return None
    return template
