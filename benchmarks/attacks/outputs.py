"""Outputs over artifacts, and below folders that a typo names: refused, with nothing overwritten and nothing made."""

from collections.abc import Iterator
from functools import partial

from attacks.commands import refusal_missing
from attacks.rows import Row, Try, row
from attacks.target import Target, workload_in

PLAN, ITERATION = "plan/fastest.json", "pipeline/iteration.parquet"
SPACE, PARTITIONS = "schedule/space.parquet", "partition/partitions.parquet"
OVER = {
    "select over a table": ("select fastest {w} --output {victim}", ITERATION),
    "select over its input": ("select edp {w} --output {victim}", "frontier/microbatch.parquet"),
    "select over a configuration": ("select edp {w} --output {victim}", "config/plan.yaml"),
    "select over the page": ("select edp {w} --output {victim}", "report/page.html"),
    "select over another plan": ("select edp {w} --output {victim}", PLAN),
    "export over its plan": ("export {w}/plan/fastest.json --format zeus --output {victim}", PLAN),
    "export over a table": ("export {w}/plan/fastest.json --format torchtitan --output {victim}", SPACE),
    "resolve into a file": ("resolve --output {victim}", "report/summary.txt"),
    "schedule over its input": (
        "schedule --config {w}/config/schedule.yaml --partitions {victim} --space {victim}",
        PARTITIONS,
    ),
    "end-to-end over the frontier": ("stage end-to-end {w} --iterations {victim}", ITERATION),
    "training into its plan": ("train {w}/plan/fastest.json --iterations 1 --output {victim}", PLAN),
    "training into a table": ("train {w}/plan/fastest.json --iterations 1 --output {victim}", ITERATION),
}
"""Commands, and what they would cost below the workload's results."""
MISSPELT = {
    "select into a folder that is not there": "select fastest {w} --output resutls/plan/fastest.json",
    "select of a workload that is not there": "select fastest resutls/mine",
    "export into a folder that is not there": "export {w}/plan/fastest.json --format zeus --output resutls/plan.py",
    "emulate with results that are not there": "emulate 1280gpus --results resutls",
    "results that are not there": "results resutls",
    "report of a campaign with results that are not there": "report-campaign reduced --results resutls",
    "end-to-end of a workload that is not there": "end-to-end resutls/mine --iterations resutls/mine/x.parquet",
    "fit into a folder that is not there": "fit --reference resutls.csv --output resutls/gpu.yaml",
}
"""Commands with the folder `resutls`, which is not there, nor shall it be."""


def attacks(target: Target) -> Iterator[Row]:
    """Ask for each output."""
    tries = [Try(name, partial(_over, target, name)) for name in OVER]
    yield row("outputs over artifacts", target.some(tries), target.jobs)
    tries = [Try(name, partial(_misspelt, target, name)) for name in MISSPELT]
    yield row("outputs and results below a folder that is not there", target.some(tries), target.jobs)


def _over(target: Target, name: str) -> str:
    folder = target.planned()
    command, victim = OVER[name]
    workload = workload_in(folder)
    before, below = (workload / victim).read_bytes(), workload.relative_to(folder)
    done = target.kareus(folder, *command.format(w=below, victim=below / victim).split())
    if not (workload / victim).is_file() or (workload / victim).read_bytes() != before:
        return f"{victim} overwritten (exit code {done.code})"
    return refusal_missing(done)


def _misspelt(target: Target, name: str) -> str:
    folder = target.planned()
    done = target.kareus(folder, *MISSPELT[name].format(w=workload_in(folder).relative_to(folder)).split())
    if (folder / "resutls").exists():
        return f"the folder was made (exit code {done.code})"
    return refusal_missing(done)
