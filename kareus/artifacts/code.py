"""A hash of the code behind a stage, so that Snakemake, which does not see it, reruns what an edit changes."""

import hashlib
import re
from functools import cache
from pathlib import Path

import kareus

_IMPORT = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+(?P<module>kareus[\w.]*)[ \t]+import\b[ \t]*"
    rb"(?P<names>\((?:[^)#]|#[^\n]*)*\)|(?:[^\\\n]|\\\r?\n)*)"
    rb"|import[ \t]+(?P<modules>(?:[^\\\n]|\\\r?\n)*))",
    re.MULTILINE,
)
"""A statement that imports, from this package or whole modules, at the start of a line or behind `;` or `:`.

A line of a text that looks like one counts as well, which reruns more than it must. Relative imports, which the linter
refuses, do not. Every start of Snakemake reads the whole package; parsing it takes five times as long.
"""
_COMMENT = re.compile(rb"#[^\n]*")


@cache
def code_hash(module: str) -> str:
    """Return a hash of `module`, of every module of this package that it imports, and of data files in their folders.

    Rules carry it among their parameters: editing the package reruns what it must and nothing else.
    """
    root = Path(kareus.__file__).parent.parent
    pending, seen, sources = [module], set[str](), dict[str, bytes]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        path = _source(root, name)
        if path is not None:
            sources[str(path)], imported = _read(path)
            pending += imported
    for folder in {Path(name).parent for name in sources}:
        sources |= {str(path): path.read_bytes() for path in _data_files(folder)}
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(sources[name])
    return digest.hexdigest()[:16]


@cache  # the modules of one stage are mostly those of another
def _read(path: Path) -> tuple[bytes, tuple[str, ...]]:
    """Return the content of a module, and dotted names of this package that it imports."""
    content = path.read_bytes()
    return content, _imported(content)


@cache
def _source(root: Path, module: str) -> Path | None:
    """Path of the source of a dotted name, or None if it is no module (an imported function, say)."""
    stem = root.joinpath(*module.split("."))
    return next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)


def _imported(content: bytes) -> tuple[str, ...]:
    """Return dotted names of this package that a module imports, anywhere in it; words such as `as` are no modules."""
    names = list[bytes]()
    for statement in _IMPORT.finditer(content):
        module = statement["module"]
        words = re.findall(rb"[\w.]+", _COMMENT.sub(b"", statement["names"] or statement["modules"]))
        names += [module, *(module + b"." + word for word in words)] if module else words
    return tuple(dict.fromkeys(name.decode() for name in names if name.startswith(b"kareus.")))


def _data_files(package: Path) -> list[Path]:
    """Return the files that a package reads at run time, which are in its folders `static` and `templates`."""
    return [path for name in ("static", "templates") for path in (package / name).rglob("*") if path.is_file()]
