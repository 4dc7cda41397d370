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
PREDICT = ("-m", "kareus", "predict", "--json", "--config-dir", "config")
SCRIPTS = ("-c", "from kareus.report.vega import vega_scripts; print(vega_scripts()[-2000:])")
EVIL = "alert(document.domain)"
OWN_EDITS = 6

Spoil = Callable[[Target, Path], object]
"""What is done to one file of a cache."""


def attacks(target: Target) -> Iterator[Row]:
    """Fill a cache by each command, then spoil copies of it."""
    for name, command, spoils in (("traces", PREDICT, TRACES), ("Vega's scripts", SCRIPTS, VEGA)):
        cache = target.folder("cache")
        expected = _said(target, command, cache)
        assert expected.code == 0, expected.output
        every = SPOILS | spoils
        tries = [Try(how, partial(_spoilt, target, command, cache, every[how], expected)) for how in every]
        if command is PREDICT:
            edits = [partial(_edited, number) for number in range(OWN_EDITS)]
            tries += [Try(f"own edit {n}", partial(_spoilt, target, command, cache, e)) for n, e in enumerate(edits)]
        yield row(f"folder of caches spoilt: {name}", target.some(tries), target.jobs)


def _said(target: Target, command: tuple[str, ...], cache: Path, limit_s: float = HANG_S) -> Done:
    return target.python(target.source, *command, limit_s=limit_s, KAREUS_CACHE=str(cache))


def _spoilt(target: Target, command: tuple[str, ...], cache: Path, spoil: Spoil, expected: Done | None = None) -> str:
    """Spoil a copy and ask again; None for `expected` accepts whatever is said."""
    copy = target.folder() / "cache"
    shutil.copytree(cache, copy)
    for path in sorted(copy.glob("*/*.json")):
        spoil(target, path)
    done = _said(target, command, copy, limit_s=120)
    is_other = expected is not None and done.output != expected.output
    return broken_promise(done) or (f"says something else: {done.output[:60]!a}" if is_other else "")


def _resealed(target: Target, path: Path, document: object) -> None:
    path.write_text(json.dumps(document))
    target.python(path.parent, "-c", SEAL, path)


def _edited(number: int, target: Target, path: Path) -> None:
    chance = random.Random(f"caches {target.seed} {number}")
    _resealed(target, path, mutated_document(json.loads(path.read_text()), chance))


def _replaced(make: Callable[[Path], object]) -> Spoil:
    return lambda _, path: (path.unlink(), make(path))


def _of_another_structure(target: Target, path: Path) -> None:
    """A sound trace of a model with context parallelism and norms of queries, under the name of the default's."""
    cache = target.folder("cache")
    done = _said(target, (*PREDICT, "model=qwen3-1.7b", "parallelism=cp2tp4"), cache)
    assert done.code == 0, done.output
    shutil.copy(next(cache.glob("*/*.json")), path)


def _told(key: str, value: object, *, by_another: bool = False) -> Spoil:
    """Give a key of the content another value, and seal it again; `by_another` user."""

    def spoil(target: Target, path: Path) -> None:
        document = json.loads(path.read_text())
        document.get("content", document)[key] = value  # in versions before, the content was the document
        _resealed(target, path, document)
        if by_another and os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        elif by_another:
            path.chmod(0o666)

    return spoil


SPOILS: dict[str, Spoil] = {
    "a FIFO": _replaced(os.mkfifo),
    "a folder": _replaced(Path.mkdir),
    "a link that leads nowhere": _replaced(lambda path: path.symlink_to("nowhere")),
    "no text": lambda _, path: path.write_bytes(b"\xff\xfe"),
    "deep JSON": lambda _, path: path.write_text("[" * 200_000),
    "damaged": lambda target, path: path.write_bytes(mutated(path.read_bytes(), target.random("caches"))),
    "a folder that is a file": lambda _, path: (
        shutil.rmtree(path.parent, ignore_errors=True),
        path.parent.write_text("a file"),
    ),
}
TRACES: dict[str, Spoil] = {
    "traces of another structure": _of_another_structure,
    "another user's edit, sealed again": _told("lasting", [], by_another=True),
}
VEGA: dict[str, Spoil] = {
    "another user's script, sealed again": _told("scripts", EVIL, by_another=True),
    "the end of the element": _told("scripts", f"</script><script>{EVIL}</script>"),
    "a number": _told("scripts", 5),
    "nothing": _told("scripts", None),
}
