"""Deleted files of every kind, lost bookkeeping, and selections that must not cost a finished report."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attacks.rows import Row, Try, row
from attacks.state import differences, state
from attacks.target import Target

DELETED = (
    "workloads.parquet",
    "campaigns/*/campaign.parquet",
    "campaigns/*/report/index.html",
    "campaigns/*/report/summary.txt",
    "campaigns/*/report/data/comparison.csv",
    "campaigns/*/report/workloads/*/page.html",
    "graphs/*/config.yaml",
    "graphs/*/segments.parquet",
    "*/config/workload.yaml",
    "*/config/search.yaml",
    "*/partition/partitions.parquet",
    "*/schedule/space.parquet",
    "*/profile/components.parquet",
    "*/profile/*/trials.parquet",
    "*/search/backward-mlp-*/rounds.parquet",
    "*/frontier/microbatch.parquet",
    "*/pipeline/iteration.parquet",
    "*/plan/fastest.json",
    "*/engine/*/iterations.parquet",
    "*/emulate/*/fleet.parquet",
    "*/report/page.html",
    "*/report/summary.txt",
    "*/report/figures/power.svg",
    "*/report/figures/iteration.pdf",
    "*/report/data/timeline.csv",
    "*/report/timelines/fastest.svg",
    "*/report/fleets.html",
)
"""Patterns below `results/`, each of one kind of artifact."""


def attacks(target: Target) -> Iterator[Row]:
    """Delete one file at a time; then take away the bookkeeping, and ask for odd selections."""
    tries = [Try(pattern, partial(_deleted, target, pattern)) for pattern in DELETED]
    yield row("one artifact deleted, then one run", target.some(tries), target.jobs)
    selections = [
        Try("select=edp without .snakemake", partial(_without_bookkeeping, target)),
        *(Try(asked, partial(_selected, target, asked)) for asked in ("select=[]", 'select=["fastest","fastest"]')),
    ]
    yield row("selections: another one without bookkeeping, none, one twice", selections, target.jobs)


def _deleted(target: Target, pattern: str) -> str:
    folder = target.planned()
    (path, *_) = sorted(folder.glob(f"results/{pattern}"))
    path.unlink()
    done = target.snakemake(folder)
    different = differences(state(target.undisturbed / "results"), state(folder / "results"))
    if done.code:
        return f"exit code {done.code}: {done.last_line}"
    return f"exit code 0{', up to date' * done.idle}, but {', '.join(different[:3])}" if different else ""


def _without_bookkeeping(target: Target) -> str:
    folder = target.planned()
    shutil.rmtree(folder / ".snakemake")
    done = target.snakemake(folder, "select=edp")
    if done.code:
        return f"exit code {done.code}: {done.last_line}"
    missing = [name for name in ("plan/edp.json", "report/timelines/edp.svg") if not _of(target, folder, name).exists()]
    if missing:
        return f"exit code 0{', up to date' * done.idle}, but {', '.join(missing)} missing"
    again = target.snakemake(folder, "select=edp")
    return "" if again.code == 0 and again.idle else "the next run finds something to do"


def _selected(target: Target, asked: str) -> str:
    """A selection that is refused, or works; in either case the report that was there is there."""
    folder = target.planned()
    done = target.snakemake(folder, asked)
    if done.hung or "Traceback" in done.output:
        return f"hung or traceback: {done.last_line}"
    reports = ("report/page.html", "report/summary.txt", "report/timelines/fastest.svg", "report/figures/power.svg")
    gone = [name for name in reports if not _of(target, folder, name).exists()]
    if gone:
        return f"exit code {done.code}, and it cost {', '.join(gone)}"
    return "" if done.code == 0 or "select" in done.output else f"exit code {done.code} without a word about `select`"


def _of(target: Target, folder: Path, name: str) -> Path:
    return folder / target.workload / name
