"""A hash of the code behind a stage, so that Snakemake, which does not see it, reruns what an edit changes."""

import ast
import hashlib
from functools import cache
from pathlib import Path

import kareus


@cache
def code_hash(module: str) -> str:
    """Return a hash of `module`, of every module of this package that it imports, and of data files in their folders.

    Rules carry it among their parameters: editing the package reruns what it must and nothing else.
    """
    root = Path(kareus.__file__).parent.parent
    pending, sources = [module], dict[str, bytes]()
    while pending:
        path = _source(root, pending.pop())
        if path is None or str(path) in sources:
            continue
        sources[str(path)] = path.read_bytes()
        pending += _imported(ast.parse(sources[str(path)]))
    for folder in {Path(name).parent for name in sources}:
        sources |= {str(path): path.read_bytes() for path in _data_files(folder)}
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


def _data_files(package: Path) -> list[Path]:
    """Files that a package reads at run time, which live in its folder `static`."""
    return [path for path in (package / "static").rglob("*") if path.is_file()]
