"""Parquet files of a results folder, read by `kareus select` and `kareus.open_results`."""

import random
from collections.abc import Callable
from pathlib import Path

import polars as pl

from attacks.mutations import flipped, mutated
from attacks.state import normal_form
from attacks.surfaces.calls import call
from attacks.target import workload_in

SELECTED_FROM = ("frontier/microbatch.parquet", "pipeline/iteration.parquet")
OPENED = {
    "candidates": "search/backward-mlp-allreduce/candidates.parquet",
    "components": "profile/components.parquet",
    "space": "schedule/space.parquet",
    "segments": "partition/segments.parquet",
    "fleet": "emulate/*/fleet.parquet",
}


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that reads a table with drawn damage."""
    workload = workload_in(folder)

    def attempt(number: int) -> str:
        chance = random.Random(f"tables {seed} {number}")
        if chance.random() < 0.6:  # noqa: PLR2004
            return _selected(workload, chance.choice(SELECTED_FROM), chance)
        return _opened(workload, chance.choice(list(OPENED)), chance)

    return attempt


def _selected(workload: Path, table: str, chance: random.Random) -> str:
    plan, path = workload / "plan/fastest.json", workload / table
    expected, content = normal_form(plan), path.read_bytes()
    kept = plan.read_bytes()
    path.write_bytes(_spoilt(path, content, chance))
    called = call("select", "fastest", workload)
    path.write_bytes(content)
    found = normal_form(plan)
    plan.write_bytes(kept)
    if called.failure or called.code:
        return called.failure
    return "" if found == expected else f"another plan from a damaged {path.name}"


def _opened(workload: Path, name: str, chance: random.Random) -> str:
    import kareus  # noqa: PLC0415 - of the checkout
    from kareus.errors import KareusError  # noqa: PLC0415

    (path, *_) = workload.glob(OPENED[name])
    content = path.read_bytes()
    expected = kareus.open_results(workload.parent)[name].collect()
    path.write_bytes(_spoilt(path, content, chance))
    try:
        found = kareus.open_results(workload.parent)[name].collect()
    except KareusError:
        return ""
    except BaseException as error:  # noqa: BLE001 - whatever comes is what we look for
        return f"open_results: {type(error).__name__}: {' '.join(str(error).split())[:80]!a}"
    finally:
        path.write_bytes(content)
    return "" if found.equals(expected) else f"open_results: other data from a damaged {path.name}"


def _spoilt(path: Path, content: bytes, chance: random.Random) -> bytes:
    way = chance.random()
    if way < 0.6:  # noqa: PLR2004
        return flipped(content, chance)
    if way < 0.95:  # noqa: PLR2004
        return mutated(content, chance)
    other = path.with_suffix(".other")
    pl.read_parquet(path).write_parquet(other)  # no longer says what it is
    spoilt = other.read_bytes()
    other.unlink()
    return spoilt
