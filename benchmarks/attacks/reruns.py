"""Kills of single jobs on a rerun with another version of the code.

Of each kind of job, the module of its command gets a harmless line, so that its hash changes, and a line that kills on
demand: the job, or Snakemake, by SIGKILL, when the job starts or when it has written. The next two runs have the same
code and kill nothing.
"""

import datetime
import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import polars as pl

from attacks.rows import Row, Try, row
from attacks.state import declared, differences, state
from attacks.target import Target

COMMANDS = {
    "campaign": "resolve_campaign",
    "partition": "extract_partitions",
    "schedule": "enumerate_schedules",
    "profile": "profile_instructions",
    "sweep": "sweep_profiler",
    "search": "search_partition",
    "frontier": "compose_frontiers",
    "pipeline": "solve_pipeline",
    "select": "select_plan",
    "end-to-end": "run_end_to_end",
    "emulate": "emulate_fleet",
    "report": "write_report",
    "report-fleets": "report_fleets",
    "report-campaign": "report_campaign",
}
"""Rule of each command that the workflow runs."""
OWN = {
    "campaign": "campaigns/*/campaign.parquet",
    "partition": "graphs/*/*.parquet",
    "schedule": "*/schedule/*.parquet",
    "profile": "*/profile/*.parquet",
    "sweep": "*/profile/*/trials.parquet",
    "search": "*/search/*/*.parquet",
    "frontier": "*/frontier/*.parquet",
    "pipeline": "*/pipeline/*.parquet",
    "select": "*/plan/*.json",
    "end-to-end": "*/engine/*/*.parquet",
    "emulate": "*/emulate/*/*.parquet",
    "report": "*/report/data/timeline.parquet",
    "report-fleets": "*/report/data/fleet.parquet",
    "report-campaign": "campaigns/*/report/data/*.parquet",
}
"""Artifacts of each command that say when they were written."""
VICTIMS = ("job", "snakemake")
MOMENTS = ("starts", "has written")

ADDED = """

def _attacked(moment: str) -> None:
    import os, signal, time
    import psutil

    wanted = os.environ.get("ATTACK", "").split("|")
    if wanted == [{command!r}, "job", moment]:
        os.kill(os.getpid(), signal.SIGKILL)
    if wanted == [{command!r}, "snakemake", moment]:
        above = [p for p in psutil.Process().parents() if "snakemake" in " ".join(p.cmdline())]
        above[-1].kill()
        time.sleep(20)  # Linux ends it sooner, as its parent is gone
        os._exit(1)


_run_undisturbed = run


def run(*arguments, **options):  # noqa
    _attacked("starts")
    answer = _run_undisturbed(*arguments, **options)
    _attacked("has written")
    return answer
"""


def attacks(target: Target) -> Iterator[Row]:
    """Kill each kind of job once in each way."""
    ways = list(itertools.product(COMMANDS, VICTIMS, MOMENTS))
    target.random("reruns").shuffle(ways)
    chosen = {(command, victim): (command, victim, moment) for command, victim, moment in ways}
    tries = [Try(f"{victim} killed as {COMMANDS[c]} {moment}", partial(_try, target, c, victim, moment))
             for c, victim, moment in sorted(chosen.values())]  # fmt: skip
    yield row("job or Snakemake killed on a rerun with other code, then two runs", target.some(tries), target.jobs)


def _try(target: Target, command: str, victim: str, moment: str) -> str:
    folder = target.planned()
    edited_at = edit(target, folder, command)
    results = folder / "results"
    before = declared(results)
    killed = target.snakemake(folder, ATTACK=f"{command}|{victim}|{moment}")
    if killed.code == 0:
        return "the killed run ended with exit code 0" if not killed.idle else "the edited code was not noticed"
    lost = sorted(set(before) - set(declared(results)))
    failures = [f"{len(lost)} former artifacts gone, such as {Path(lost[0]).name}"] if lost else []
    expected = state(target.undisturbed / "results")
    for number in ("next run", "run after it"):
        done = target.snakemake(folder)
        different = differences(expected, state(results)) + _of_former_code(results, command, edited_at)
        if done.hung or "Traceback" in done.output:
            failures.append(f"{number}: hung or traceback")
        if done.code == 0 and different:
            failures.append(f"{number}: exit code 0{', up to date' * done.idle}, but {', '.join(different[:3])}")
        if done.code and number != "next run":
            failures.append(f"{number}: exit code {done.code}: {done.last_line}")
    return "; ".join(failures)


def edit(target: Target, folder: Path, command: str) -> str:
    """Give a copy another version of a command's code; returns when, as artifacts say when they were written."""
    module = folder.joinpath(*target.modules[command].split(".")).with_suffix(".py")
    module.write_text(module.read_text() + ADDED.format(command=command))
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _of_former_code(results: Path, command: str, edited_at: str) -> list[str]:
    """Artifacts of the edited command that were written before it was edited."""
    written = {path: _written_at(path) for path in sorted(results.glob(OWN[command]))}
    return [f"{path.name} of the former code" for path, at in written.items() if at < edited_at]


def _written_at(path: Path) -> str:
    """When an artifact says that it was written; an empty text if it cannot say so any more."""
    try:
        text = path.read_text() if path.suffix == ".json" else pl.read_parquet_metadata(path)["kareus"]
        document = json.loads(text)
    except (ValueError, KeyError, OSError, pl.exceptions.PolarsError):
        return ""
    return str((document.get("provenance") or document).get("created_at"))
