"""Truncations and flipped bits of every kind of artifact, each followed by two runs.

Half of them keep their time of change, as they do where a disk is at fault. After the second run at the latest the
data must be those of an undisturbed run, and no run may end well while the damage is there.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attacks.rows import Row, Try, row
from attacks.state import declared, differences, state
from attacks.target import Target

KINDS_OF_DAMAGE = ("truncated", "flipped")


def attacks(target: Target) -> Iterator[Row]:
    """Damage one file of every kind in every way, then the measurements."""
    kinds = kinds_of_artifacts(target.undisturbed / "results")
    tries = [
        Try(
            f"{kind} {damage}{', time kept' * keep_time}", partial(_artifact, target, path, damage, keep_time=keep_time)
        )
        for number, (kind, path) in enumerate(kinds.items())
        for damage, keep_time in _ways(number, kind)
    ]
    yield row("artifact truncated or with a flipped bit, then two runs", target.some(tries), target.jobs)
    tables = sorted(target.undisturbed.glob("results/measurements/**/*.parquet"))
    store = [
        Try(
            f"{_kind(str(path.relative_to(target.undisturbed)))} {damage}", partial(_measurements, target, path, damage)
        )
        for path, damage in zip(tables * 2, KINDS_OF_DAMAGE * len(tables), strict=True)
    ]
    yield row("table of measurements damaged, then a search again", target.some(store), target.jobs)


def _ways(number: int, kind: str) -> list[tuple[str, bool]]:
    """How a kind is damaged, and whether its time is kept: in both ways; a campaign's copies of a report in one."""
    ways = [*zip(KINDS_OF_DAMAGE[:: 1 if number % 2 else -1], (False, True), strict=True)]
    return [ways[number // 2 % 2]] if kind.startswith("campaigns/") else ways


def kinds_of_artifacts(results: Path) -> dict[str, str]:
    """One path of each kind below `results`, by the kind."""
    paths = [path for path in declared(results) if (results / path).stat().st_size]
    return {_kind(path): path for path in reversed(paths)}


def _kind(path: str) -> str:
    """Path with its long names cut: files of one stage and suffix are of one kind, but for tables."""
    folder, _, name = re.sub(r"[^/]*_[0-9a-f]{8,16}(?=/)", "*", path).rpartition("/")
    folder = re.sub(r"(search|campaigns)/[^/]+", r"\1/*", folder)
    stem, dot, suffix = name.rpartition(".")
    grouped = "report/" in path or suffix in ("yaml", "svg", "pdf", "csv")
    return f"{folder}/{'*' if grouped and suffix != 'html' else stem}{dot}{suffix}"


def spoil(path: Path, damage: str, target: Target, *, keep_time: bool) -> bytes:
    """Damage a file; returns its new content."""
    before, content = path.stat(), path.read_bytes()
    chance = target.random("damage", path.name, damage)
    if damage == "truncated":
        content = content[: chance.randrange(len(content))]
    else:
        letters = [match.start() for match in re.finditer(rb"[a-z]", content)]  # a digit might be that of a time
        at = chance.choice(letters) if path.suffix != ".parquet" else chance.randrange(4, len(content) - 8)
        content = content[:at] + bytes([content[at] ^ 1 << chance.randrange(5)]) + content[at + 1 :]
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return content


def _artifact(target: Target, path: str, damage: str, *, keep_time: bool) -> str:
    folder = target.planned()
    results = folder / "results"
    spoilt = spoil(results / path, damage, target, keep_time=keep_time)
    expected, different = state(target.undisturbed / "results"), list[str]()
    for number in ("first run", "second run"):
        done = target.snakemake(folder)
        if done.hung or "Traceback" in done.output:
            return f"{number}: hung or traceback: {done.last_line}"
        different = differences(expected, state(results))
        if (results / path).is_file() and (results / path).read_bytes() == spoilt:
            different.append("the damaged file is still there")
        if done.code == 0 and different:
            return f"{number}: exit code 0{', up to date' * done.idle}, but {', '.join(different[:3])}"
    return f"second run: exit code {done.code}: {', '.join(different[:3]) or done.last_line}" if done.code else ""


def _measurements(target: Target, table: Path, damage: str) -> str:
    """Damaged measurements are measured again, or refused by name until they are moved away; no other number comes."""
    folder = target.planned()
    path = folder / table.relative_to(target.undisturbed)
    spoil(path, damage, target, keep_time=True)
    name = path.relative_to(folder).parts[3]
    for stage in folder.glob(f"results/*/search/{name.rpartition('_')[0]}"):
        (stage / "candidates.parquet").unlink()
    for stage in folder.glob("results/*/profile"):
        for lost in stage.rglob("*.parquet"):
            lost.unlink()
    expected = state(target.undisturbed / "results")
    first = target.snakemake(folder)
    if first.hung or "Traceback" in first.output:
        return f"hung or traceback: {first.last_line}"
    if first.code and path.name not in first.output:
        return f"exit code {first.code} without the name of the file"
    if first.code:
        path.unlink()
    done = first if first.code == 0 else target.snakemake(folder)
    different = differences(expected, state(folder / "results"))
    return f"exit code {done.code}, but {', '.join(different[:3])}" if done.code or different else ""
