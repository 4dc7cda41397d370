"""Journals of killed runs with one clear fault.

What is faulty is measured again, or refused by the name of the journal; once the journal is removed, all is measured
again. No other number comes.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from attacks.commands import run
from attacks.rows import Row, Try, row
from attacks.state import differences, state
from attacks.target import KILLED_BEFORE_CLOSING, Target, workload_in


def attacks(target: Target) -> Iterator[Row]:
    """Put each fault into the journal that a killed search has left, then run the workflow twice."""
    tries = [Try(name, partial(_faulty, target, name)) for name in FAULTS]
    yield row("faults in a killed run's journal, then two runs", target.some(tries), target.jobs)


def _faulty(target: Target, name: str) -> str:
    folder = target.planned()
    journal = _left_by_a_kill(target, folder)
    journal.write_bytes(FAULTS[name](journal.read_bytes()))
    expected = state(target.undisturbed / "results")
    for _ in range(2):
        done = target.snakemake(folder)
        if done.hung or "Traceback" in done.output:
            return f"hung or traceback: {done.last_line}"
        different = differences(expected, state(folder / "results"))
        if done.code == 0 and different:
            return f"exit code 0, but {', '.join(different[:3])}"
        if done.code and "journal" not in done.output:
            return f"exit code {done.code} without the name of the journal"
        if done.code == 0:
            return ""
        journal.unlink(missing_ok=True)  # which is what a refusal may ask for
    return f"refused also without the journal: {done.last_line}"


def _left_by_a_kill(target: Target, folder: Path) -> Path:
    """Have a search die before it folds its journal; returns the journal."""
    workload, name = workload_in(folder), "backward-mlp-allreduce"
    for shelf in folder.glob(f"results/measurements/*/{name}_*"):
        shutil.rmtree(shelf)
    out = workload / "search" / name
    arguments = ["stage", "search", "--config", workload / "config/search.yaml", "--partition", name]
    arguments += ["--partitions", workload / "partition/partitions.parquet", "--store", folder / "results/measurements"]
    arguments += ["--space", workload / "schedule/space.parquet"]
    arguments += [text for table in TABLES for text in (f"--{table}", out / f"{table}.parquet")]
    run(KILLED_BEFORE_CLOSING + list(map(str, arguments)), folder, target.environment(folder))
    shutil.rmtree(out)
    (journal,) = (path for path in folder.glob(f"results/measurements/*/{name}_*/journal.jsonl") if path.stat().st_size)
    return journal


TABLES = ("candidates", "rounds", "proposals")


def _line(at: int, change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def fault(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        lines[at] = change(lines[at])
        return b"".join(lines)

    return fault


def _digit(line: bytes) -> bytes:
    """Flip the lowest bit of a digit in the middle of a number with a point."""
    at = line.index(b".") + 3
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "a digit flipped": _line(2, _digit),
    "a digit of the first line flipped": _line(0, _digit),
    "a letter flipped": _line(2, lambda line: line.replace(b"e", b"d", 1)),
    "an integer of 400 digits": _line(2, lambda line: line[:-2] + b', "x": ' + b"9" * 400 + b"}\n"),
    "a bad line in the middle": _line(2, lambda line: b"not a row\n" + line),
    "a line of zeros in the middle": _line(2, lambda line: b"\x00" * 300 + b"\n" + line),
    "an empty line": _line(2, lambda line: b"\n" + line),
    "a line twice": _line(2, lambda line: line + line),
    "a line cut in the middle": _line(2, lambda line: line[: len(line) // 2] + b"\n"),
    "two lines run together": _line(2, lambda line: line.rstrip(b"\n")),
    "a deep nesting": _line(2, lambda line: b"[" * 100_000 + b"\n" + line),
    "the last line cut": lambda content: content[:-20],
}
"""Changes of a journal's content."""
