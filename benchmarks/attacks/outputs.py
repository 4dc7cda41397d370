"""Outputs over artifacts, and below folders that a typo names: refused, with nothing overwritten and nothing made."""

import os
import socket
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

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


def _listening(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path has to be short
    os.close(folder)


NODES = {
    "a FIFO": os.mkfifo,
    "a socket": _listening,
    "a device": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7)),
    "a link to a device": lambda path: path.symlink_to("/dev/full"),
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to a file": lambda path: (path.with_name("target").write_text("a user's"), path.symlink_to("target")),
}
"""What exists and is no regular file. Only root makes devices."""
TO_NODES = (
    "select edp {w} --output {node}",
    "export {w}/plan/fastest.json --format trace --output {node}",
    "validate gpu=a100-sxm4-40gb --page {node}",
    "resolve --output {node}",
)


def attacks(target: Target) -> Iterator[Row]:
    """Ask for each output."""
    tries = [Try(name, partial(_over, target, name)) for name in OVER]
    yield row("outputs over artifacts", target.some(tries), target.jobs)
    tries = [Try(name, partial(_misspelt, target, name)) for name in MISSPELT]
    yield row("outputs and results below a folder that is not there", target.some(tries), target.jobs)
    nodes = [name for name in NODES if name != "a device" or os.geteuid() == 0]
    tries = [
        Try(f"{command.split()[0]} to {name}", partial(_to_node, target, command, name))
        for command in TO_NODES
        for name in nodes
    ]
    yield row("outputs over what is no regular file", target.some(tries), target.jobs)


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


def _to_node(target: Target, command: str, name: str) -> str:
    folder = target.planned()
    node = folder / "node"
    NODES[name](node)
    before, others = _kind(node), sorted(folder.iterdir())
    done = target.kareus(folder, *command.format(w=workload_in(folder).relative_to(folder), node="node").split())
    if _kind(node) != before:
        return f"replaced (exit code {done.code})"
    made = set(folder.iterdir()) - set(others)
    return f"{made.pop().name} made" if made else refusal_missing(done)


def _kind(node: Path) -> tuple[object, ...]:
    """What a node is, which one, and what it leads to."""
    status = node.lstat()
    leads_to = (str(node.readlink()), node.is_file() and node.read_text()) if node.is_symlink() else ()
    return (status.st_mode, status.st_ino, *leads_to)
