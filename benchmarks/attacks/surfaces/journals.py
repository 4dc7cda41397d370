"""Journals of measurements that a killed run left, read by the next `kareus stage profile`."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl

from attacks.commands import run
from attacks.mutations import NUMBERS, flipped, mutated, mutated_document
from attacks.surfaces.calls import call
from attacks.target import KILLED_BEFORE_CLOSING, variables_of_worker, workload_in

OUTPUTS = ("components", "instructions")


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that profiles from a journal with drawn damage."""
    workload, store = workload_in(folder), folder / "store"
    arguments = ["stage", "profile", "--config", str(workload / "config/profile.yaml"), "--store", str(store)]
    arguments += ["--segments", str(workload / "partition/segments.parquet")]
    arguments += [text for name in OUTPUTS for text in (f"--{name}", str(folder / f"{name}.parquet"))]
    run(KILLED_BEFORE_CLOSING + arguments, folder, variables_of_worker())
    (journal,) = store.rglob("journal.jsonl")
    content = journal.read_bytes()
    assert content.count(b"\n") > 1, "the killed run left no journal"
    expected = {name: pl.read_parquet(workload / f"profile/{name}.parquet") for name in OUTPUTS}

    def attempt(number: int) -> str:
        chance = random.Random(f"journals {seed} {number}")
        shutil.rmtree(journal.parent)
        journal.parent.mkdir()
        journal.write_bytes(_spoilt(content, chance))
        called = call(*arguments)
        if called.failure or called.code:
            return called.failure
        found = {name: pl.read_parquet(folder / f"{name}.parquet") for name in OUTPUTS}
        reached = [name for name in OUTPUTS if not found[name].equals(expected[name])]
        return f"damage reached the table {' and '.join(reached)}" if reached else ""

    return attempt


def _spoilt(content: bytes, chance: random.Random) -> bytes:
    way = chance.random()
    if way < 0.5:  # noqa: PLR2004
        return flipped(content, chance)
    lines = content.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    if way < 0.7:  # noqa: PLR2004
        document = mutated_document(json.loads(lines[at]), chance)
        lines[at] = json.dumps(document).encode(errors="surrogatepass") + b"\n"
    elif way < 0.8:  # noqa: PLR2004
        lines.insert(at, b'{"a line": "that is none"}\n' if chance.random() < 0.5 else b"\x00\xff\n")  # noqa: PLR2004
    elif way < 0.9:  # noqa: PLR2004
        key, _, value = lines[at].partition(b'": ')
        lines[at] = key + b'": ' + chance.choice(NUMBERS).encode() + value[value.find(b",") :]
    else:
        return mutated(content, chance)
    return b"".join(lines)
