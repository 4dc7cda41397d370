"""`kareus verify --repair` where users have files of their own, and links that lead outside.

Whatever a user has put there is still there afterwards, under whatever name; nothing outside of the folder changes;
and no name of a file stops `verify` or Snakemake.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import polars as pl

from attacks.commands import broken_promise
from attacks.plans import SEAL
from attacks.rows import Row, Try, row
from attacks.target import Target, workload_in

Put = Callable[[Path, Path], None]
"""Puts something into a workload's results; the other folder is outside."""
ODD_NAMES = (".x.99999999999999999999999.tmp", ".x.-1.tmp", ".x.0.tmp", ".x.٣.tmp", ".x.1.old.tmp", "..tmp")
"""Names that look like those of temporary files, and are a user's."""


def attacks(target: Target) -> Iterator[Row]:
    """Put something there, repair, look for it."""
    tries = [Try(name, partial(_repaired, target, put)) for name, put in PUT.items()]
    tries += [Try(f"a file {name!a}", partial(_repaired, target, partial(_named, name))) for name in ODD_NAMES]
    yield row("users' files and links, then `verify --repair`", tries, target.jobs)
    tries = [Try(f"a file {name!a}", partial(_listed, target, name)) for name in ODD_NAMES]
    yield row("users' files with odd names, then `snakemake -n`", target.some(tries), target.jobs)


def _repaired(target: Target, put: Put) -> str:
    folder, outside = target.planned(), target.folder("outside")
    workload, results = workload_in(folder), folder / "results"
    (outside / "precious.txt").write_text("precious")
    (outside / "values.yaml").write_text("a: 1\n")
    before = _contents(results)
    put(workload, outside)
    for document in [path for path in results.rglob("*.json") if "to seal" in path.read_text(errors="replace")]:
        target.python(folder, "-c", SEAL, document)
    users, others = _contents(results) - before, _names(outside)
    done = target.kareus(folder, "verify", "results", "--repair")
    if _names(outside) != others:
        return "a file outside is gone, or has another name"
    return "what a user put there is gone" if users - _contents(results) else broken_promise(done)


def _listed(target: Target, name: str) -> str:
    folder = target.planned()
    _named(name, workload_in(folder), folder)
    done = target.snakemake(folder, "-n")
    return broken_promise(done) or ("" if done.code == 0 else f"no run is possible: {done.last_line}")


def _contents(folder: Path) -> set[str]:
    """Hashes of all files below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _names(folder: Path) -> set[tuple[str, bytes]]:
    return {(path.name, path.read_bytes()) for path in folder.iterdir()}


def _named(name: str, workload: Path, _outside: Path) -> None:
    (workload / name).write_text(f"a user's {name!a}")


def _filtered(workload: Path, _outside: Path) -> None:
    frame = pl.read_parquet(workload / "pipeline/iteration.parquet")
    frame.filter(pl.col("method") == "kareus").write_parquet(workload / "best.parquet")


def _by_hand(workload: Path, _outside: Path) -> None:
    plan = json.loads((workload / "plan/fastest.json").read_text())
    (workload / "plan/mine.json").write_text(json.dumps(plan | {"selector": "mine"}))


def _cut(workload: Path, _outside: Path) -> None:
    content = (workload / "pipeline/iteration.parquet").read_bytes()
    (workload / "cut.parquet").write_bytes(content[: len(content) // 2])


def _notes(workload: Path, _outside: Path) -> None:
    (workload / "plan/notes.json").write_text('["a user\'s notes"]')


def _folder(workload: Path, _outside: Path) -> None:
    (workload / ".work.2000000000.tmp").mkdir()
    (workload / ".work.2000000000.tmp/thesis.txt").write_text("years of work")


def _manifest(workload: Path, outside: Path) -> None:
    (workload / "elsewhere").symlink_to(outside)
    listed = {"to seal": 1, "files": {"elsewhere/precious.txt": "0" * 64}}
    (workload / "manifest.json").write_text(json.dumps(listed))


def _outputs(workload: Path, outside: Path) -> None:
    campaign = workload.parent / "campaigns/mine"
    (workload / "elsewhere").symlink_to(outside)
    campaign.mkdir(parents=True)
    names = [f"{workload.name}/elsewhere/{name}" for name in ("values.yaml", "precious.txt")]
    (campaign / "outputs.json").write_text(json.dumps({"to seal": 1, "outputs": names}))


PUT: dict[str, Put] = {
    "rows of a table, written by polars": _filtered,
    "a plan edited by hand": _by_hand,
    "half a table": _cut,
    "notes among plans": _notes,
    "a folder named like a temporary": _folder,
    "a manifest that names what is behind a link": _manifest,
    "a list of outputs that names what is behind a link": _outputs,
}
