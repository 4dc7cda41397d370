"""The folder of caches, in which others may have written: it costs time, and nothing else.

What a command says is what it says without a cache. As root, files are given to another user; else others get the right
to write to them. Edits that are sealed again and this user's own cannot be told from his: they may change what is
said, but end in no traceback.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from attacks.commands import HANG_S, Done, broken_promise
from attacks.mutations import mutated, mutated_document
from attacks.plans import SEAL
from attacks.rows import Row, Try, row
from attacks.target import Target

NOBODY = 65534
PREDICT = ("-m", "kareus", "predict", "--json")
SCRIPTS = ("-c", "from kareus.report.vega import vega_scripts; print(vega_scripts()[-2000:])")
EVIL = "</script><script>alert(document.domain)</script>"
OWN_EDITS = 20
"""Edits of a trace, sealed again."""

Spoil = Callable[[Target, Path], None]


def attacks(target: Target) -> Iterator[Row]:
    """Fill a cache by each command, then spoil copies of it."""
    for name, command, spoils in (("traces", PREDICT, TRACES), ("Vega's scripts", SCRIPTS, VEGA)):
        cache = target.folder("cache")
        expected = _said(target, command, cache)
        assert expected.code == 0, expected.output
        tries = [
            Try(how, partial(_spoilt, target, command, cache, spoil, expected))
            for how, spoil in (SPOILS | spoils).items()
        ]
        if command is PREDICT:
            edits = range(OWN_EDITS // 6 if target.quick else OWN_EDITS)
            tries += [Try(f"own edit {n:04d}", partial(_edited, target, cache, n)) for n in edits]
        yield row(f"folder of caches spoilt: {name}", tries, target.jobs)


def _said(target: Target, command: tuple[str, ...], cache: Path, limit_s: float = HANG_S) -> Done:
    return target.python(target.folder(), *command, limit_s=limit_s, KAREUS_CACHE=str(cache))


def _spoilt(target: Target, command: tuple[str, ...], cache: Path, spoil: Spoil, expected: Done) -> str:
    copy = target.folder() / "cache"
    shutil.copytree(cache, copy)
    spoil(target, copy)
    done = _said(target, command, copy, limit_s=120)
    return broken_promise(done) or (
        "" if done.output == expected.output else f"says something else: {done.output[:60]!a}"
    )


def _edited(target: Target, cache: Path, number: int) -> str:
    copy = target.folder() / "cache"
    shutil.copytree(cache, copy)
    for path in _files(copy):
        chance = random.Random(f"caches {target.seed} {number}")
        _resealed(target, path, mutated_document(json.loads(path.read_text()), chance))
    return broken_promise(_said(target, PREDICT, copy))


def _files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*.json"))


def _resealed(target: Target, path: Path, document: object) -> None:
    path.write_text(json.dumps(document))
    target.python(path.parent, "-c", SEAL, path)


def _another_users(path: Path) -> None:
    """Make a file one that another user wrote."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        path.chmod(0o666)


def _each(spoil: Callable[[Path], object]) -> Spoil:
    return lambda _, cache: [spoil(path) for path in _files(cache)] and None


def _replaced(make: Callable[[Path], object]) -> Spoil:
    return _each(lambda path: (path.unlink(), make(path)))


def _file_for_folder(_: Target, cache: Path) -> None:
    shutil.rmtree(cache)
    cache.write_text("a file")


def _of_another_structure(target: Target, cache: Path) -> None:
    """Sound traces of a model with context parallelism and norms of queries, under the names of the default's."""
    other = target.folder("cache")
    arguments = ("model=qwen3-1.7b", "parallelism=cp2tp4")
    done = _said(target, (*PREDICT, *arguments), other)
    assert done.code == 0, done.output
    for path in _files(cache):
        shutil.copy(_files(other)[0], path)


def _told(key: str, value: object, *, by_another: bool) -> Spoil:
    """Give a key of the content another value, and seal it again."""

    def spoil(target: Target, cache: Path) -> None:
        for path in _files(cache):
            document = json.loads(path.read_text())
            document.get("content", document)[key] = value  # in earlier versions the content was the document
            _resealed(target, path, document)
            if by_another:
                _another_users(path)

    return spoil


SPOILS: dict[str, Spoil] = {
    "a FIFO": _replaced(os.mkfifo),
    "a folder": _replaced(Path.mkdir),
    "a link that leads nowhere": _replaced(lambda path: path.symlink_to("nowhere")),
    "no text": _each(lambda path: path.write_bytes(b"\xff\xfe")),
    "deep JSON": _each(lambda path: path.write_text("[" * 200_000)),
    "damaged": _each(lambda path: path.write_bytes(mutated(path.read_bytes(), random.Random(0)))),
    "a file for the folder": _file_for_folder,
}
TRACES: dict[str, Spoil] = {
    "traces of another structure": _of_another_structure,
    "another user's edit, sealed again": _told("lasting", [], by_another=True),
}
VEGA: dict[str, Spoil] = {
    "another user's script, sealed again": _told("scripts", "alert(document.domain)", by_another=True),
    "the end of the element": _told("scripts", EVIL, by_another=False),
    "a number": _told("scripts", 5, by_another=False),
    "nothing": _told("scripts", None, by_another=False),
}
