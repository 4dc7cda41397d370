"""Trainings that cannot start: refused in one line within two seconds of processor time, start of `kareus` apart."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attacks.commands import CONTROL
from attacks.rows import Row, Try, row
from attacks.target import Target
from attacks.tiny import resolving, workload_below
from runs.effort import run

LIMIT_S = 2.0
"""Processor time of all processes together, beyond that of `kareus --version`."""


def attacks(target: Target) -> Iterator[Row]:
    """Start what this machine cannot run. One at a time: processor time of children is counted."""
    folder = target.folder("refusals")
    for name, arguments in (("one", resolving(1, "one")), ("two", resolving(2, "two")), ("four", _replicas(4))):
        done = target.kareus(folder, *arguments, "--config-dir", target.source / "config")
        assert done.code == 0, f"{name}: {done.output}"
    start_s = _effort(target, folder, ["--version"])[1]
    tries = [Try(name, partial(_refused, target, folder, options, start_s)) for name, options in REFUSED.items()]
    yield row("trainings that cannot start, refused within 2 s", tries)


def _replicas(ranks: int) -> list[str]:
    arguments = [argument for argument in resolving(1, "four") if not argument.startswith("parallelism.dp=")]
    return [*arguments, f"parallelism.dp={ranks}"]


def _refused(target: Target, folder: Path, options: str, start_s: float) -> str:
    name, _, rest = options.partition(" ")
    workload = workload_below(folder / name) if (folder / name).is_dir() else folder / name
    line = ["train", "--workload", str(workload), "--output", str(folder / "run"), *rest.split()]
    code, cpu_s, output = _effort(target, folder, [*line, *["--iterations", "1"] * ("--iterations" not in rest)])
    if "Traceback" in output or CONTROL.search(output) or code != 2:  # noqa: PLR2004 - the code of a refusal
        return f"exit code {code}: {' '.join(output.split())[-150:]}"
    lines = [text for text in output.splitlines() if text.startswith("kareus train:")]
    if len(lines) != 1:
        return f"refused in {len(lines)} lines"
    return f"took {cpu_s - start_s:.1f} s of processor time" if cpu_s - start_s > LIMIT_S else ""


def _effort(target: Target, folder: Path, arguments: list[str]) -> tuple[int, float, str]:
    effort = run([sys.executable, "-m", "kareus", *arguments], folder, target.environment(folder))
    return effort.returncode, effort.cpu_s, effort.output


REFUSED = {
    "no GPU for one rank": "one --communicator nccl",
    "no GPU, default communicator": "one",
    "no GPU for two ranks": "two --communicator nccl",
    "no GPU for four ranks": "four --communicator nccl",
    "mscclpp is not installed": "one --communicator mscclpp",
    "mscclpp is not installed, four ranks": "four --communicator mscclpp",
    "no such communicator": "one --communicator mpi",
    "no workload": "none.yaml --communicator gloo",
    "no iterations": "two --communicator gloo --iterations 0",
    "no data": "two --communicator gloo --data none.bin",
    "no weights": "two --communicator gloo --weights none",
    "no tokenizer": "two --communicator gloo --data . --tokenizer none.json",
    "a negative learning rate": "two --communicator gloo --learning-rate -1",
}
"""Workload (ranks, as a word) and options of each."""
