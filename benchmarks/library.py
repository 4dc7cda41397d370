"""How fast planning is as plain function calls, and as a workflow.

    python benchmarks/library.py [--json] [--skip-campaigns] [--cores N]

- `predict_s`: median over 50 workloads of one structure of `kareus.predict`, after a first one.
- `plan_s`: `kareus.plan` of the default workload, after one of another seed.
- `import_kareus_s`: what `import kareus` adds to the start of the interpreter, the least of some starts of each.
- `quickstart_s`, `paper_campaign_s`: `snakemake` and `snakemake --config campaign=paper` from cold, in copies of what a
  clone has, without traces of an earlier run; null with `--skip-campaigns`.
- `paper_campaign_cpu_s`: CPU time of all processes of the latter.

The first three are CPU times, which other work on the machine disturbs least; campaigns are wall times but where said.
"""

import argparse
import dataclasses
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kareus
from runs.checkout import ROOT, checkout, command
from runs.effort import Effort, run

CONFIG = ROOT / "config"
SHAPES, STARTS = 50, 10


def main() -> None:
    """Measure, then print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--skip-campaigns", action="store_true", help="leave out the runs of the workflow (minutes)")
    parser.add_argument("--cores", type=int, default=2, help="for the campaigns (default: 2)")
    arguments = parser.parse_args()
    (workload,) = kareus.resolve([], CONFIG)
    planning = {"predict_s": predict_s(workload), "plan_s": plan_s(workload), "import_kareus_s": import_s()}
    quickstart, paper = (
        None if arguments.skip_campaigns else campaign(arguments.cores, *config) for config in ([], ["campaign=paper"])
    )
    measured: dict[str, float | None] = planning | {
        "quickstart_s": quickstart and quickstart.wall_s,
        "paper_campaign_s": paper and paper.wall_s,
        "paper_campaign_cpu_s": paper and paper.cpu_s,
    }
    if arguments.json:
        print(json.dumps(measured))
    else:
        for name, value in measured.items():
            print(f"{name:<20} {'not measured' if value is None else f'{value:.4g}'}")


def predict_s(workload: Any) -> float:
    """Return the median CPU time of predictions for models of other sizes, microbatches and sequences."""
    draw = random.Random(0)
    kareus.predict(workload)
    return statistics.median(cpu_s(kareus.predict, other_shape(workload, draw)) for _ in range(SHAPES))


def other_shape(workload: Any, draw: random.Random) -> Any:
    """Return a workload of the same structure and other sizes."""
    model = dataclasses.replace(
        workload.model,
        hidden_size=128 * draw.randint(8, 64),
        intermediate_size=512 * draw.randint(4, 56),
        vocab_size=512 * draw.randint(64, 500),
    )
    return dataclasses.replace(
        workload,
        model=model,
        microbatch_size=4 * draw.randint(1, 8),
        sequence_length=512 * draw.randint(1, 32),
        num_microbatches=draw.randint(4, 64),
    )


def plan_s(workload: Any) -> float:
    """Return the CPU time of planning a workload in this process."""
    kareus.plan(dataclasses.replace(workload, seed=workload.seed + 1))  # imports what planning needs
    return cpu_s(kareus.plan, workload)


def cpu_s(function: Callable[[Any], object], argument: Any) -> float:
    """Return the CPU time of one call."""
    start_s = time.process_time()
    function(argument)
    return time.process_time() - start_s


def import_s() -> float:
    """Return the CPU time that importing the package takes beyond the interpreter's start."""
    scripts: dict[str, list[float]] = {"pass": [], "import kareus": []}
    for _ in range(STARTS):
        for script, starts_s in scripts.items():
            starts_s.append(run([sys.executable, "-c", script], ROOT).cpu_s)
    return min(scripts["import kareus"]) - min(scripts["pass"])


def campaign(cores: int, *config: str) -> Effort:
    """Return what a run of the workflow from cold takes.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = checkout(Path(folder) / "checkout")
        line = command("--cores", str(cores), *(["--config", *config] if config else []))
        effort = run(line, place, {"KAREUS_CACHE": str(Path(folder) / "cache")})
    if effort.returncode:
        print(effort.output, file=sys.stderr)
        raise subprocess.CalledProcessError(effort.returncode, line)
    return effort


if __name__ == "__main__":
    main()
