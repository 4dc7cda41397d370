"""Provenance: where an artifact comes from, carried in its metadata and handed on to all that derives from it."""

import ast
import datetime
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import kareus
from kareus.errors import ArtifactError


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedIdentity:
    """The testbed on which something was measured."""

    kind: str
    """`simulated`, or `cuda` for a real GPU."""
    gpu: str
    """Name of the GPU, such as `A100-SXM4-40GB`."""
    detail: str
    """What else identifies it: version of the GPU model; UUIDs, driver and clocks of real GPUs."""

    @property
    def label(self) -> str:
        """What figures and headers print, such as `simulated testbed, A100-SXM4-40GB`."""
        return f"simulated testbed, {self.gpu}" if self.kind == "simulated" else f"measured on {self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of one artifact."""

    config_hash: str
    """Hash of the resolved configuration slice of the stage that made it."""
    testbed: TestbedIdentity | None = None
    """Testbed behind its numbers; None where nothing was measured."""
    seed: int | None = None
    kareus_version: str = kareus.__version__
    created_at: str = ""
    """Coordinated universal time, ISO 8601; set when the file is written."""

    def stamped(self) -> "Provenance":
        """Return a copy that says it was created now."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return replace(self, created_at=now)


def derived(config_hash: str, parents: Iterable[Provenance]) -> Provenance:
    """Return the provenance of what is computed from `parents`: one testbed, one seed, or an error.

    Raises:
        ArtifactError: the parents were measured on different testbeds or with different seeds.
    """
    measured = [p for p in parents if p.testbed is not None]
    if len({(p.testbed, p.seed) for p in measured}) > 1:
        labels = sorted({f"{p.testbed.label} (seed {p.seed})" for p in measured if p.testbed})
        raise ArtifactError(f"inputs of one stage come from different testbeds: {'; '.join(labels)}. Rerun all on one.")
    first = measured[0] if measured else Provenance(config_hash=config_hash)
    return Provenance(config_hash=config_hash, testbed=first.testbed, seed=first.seed)


@cache
def code_hash(module: str) -> str:
    """Return a hash of the source of `module` and of every module of this package that it imports.

    Snakemake does not see package code behind a `shell:` line; rules carry this hash among their
    parameters, so that editing the package reruns what it must and nothing else.
    """
    root = Path(kareus.__file__).parent.parent
    pending, sources = [module], dict[str, bytes]()
    while pending:
        path = _source(root, pending.pop())
        if path is None or str(path) in sources:
            continue
        sources[str(path)] = path.read_bytes()
        pending += _imported(ast.parse(sources[str(path)]))
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(sources[name])
    return digest.hexdigest()[:16]


def _source(root: Path, module: str) -> Path | None:
    """Path of the source of a dotted name, or None if it is no module (an imported function, say)."""
    stem = root.joinpath(*module.split("."))
    return next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)


def _imported(tree: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith("kareus.")]
