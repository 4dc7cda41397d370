"""What Kareus promises of whole runs, measured: `make acceptance`, or `python benchmarks/acceptance.py [part ...]`.

Parts, each of which prints rows of one table (what, measured, asked for, whether that holds):

- `startup`: CPU time of starting the stages, the least of three starts.
- `paper`: `campaign=paper` from cold: time, CPU time and peak memory; then once more, which has nothing to do.
- `kills`: `campaign=quickstart`, killed by SIGKILL at random moments and run again at once, each time in another
  folder; all tables, measurements and plans must be those of a run that nobody disturbed.
- `clone`: `make run` in a fresh clone, installation included, and once more.

Times are wall times unless they say CPU; on a busy machine only CPU times and memory mean something.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from runs.artifacts import artifacts, differences
from runs.checkout import ROOT, checkout, command, snakemake
from runs.effort import run
from runs.kills import kill_and_run_again
from runs.startup import LIMITS_S, starts

COLD_S, AGAIN_S, MEMORY_GIB, AGAIN_DEFAULT_S = 600, 20, 6, 15
"""Asked for: of `campaign=paper` and of `make run`."""

Row = tuple[str, str, str, bool]
"""What, measured, asked for, whether that holds."""


def at_most(what: str, measured: float, unit: str, limit: float, *, done: bool) -> Row:
    """A figure that holds if what was measured is `done` and not above its limit."""
    return what, f"{measured:.3g} {unit}", f"<= {limit} {unit}", done and measured <= limit


def startup(_: argparse.Namespace) -> Iterator[Row]:
    """CPU time of starting the stages."""
    for (name, heavy), effort in starts().items():
        what = f"start of `{name}`{f' with {heavy}' if heavy else ''}, CPU"
        yield at_most(what, effort.cpu_s, "s", LIMITS_S[heavy], done=effort.returncode == 0)


def paper(arguments: argparse.Namespace) -> Iterator[Row]:
    """The whole campaign from cold, and once more."""
    with tempfile.TemporaryDirectory() as folder:
        place = checkout(Path(folder) / "paper")
        line = command("--cores", str(arguments.cores), "--config", "campaign=paper")
        effort = run(line, place)
        done = effort.returncode == 0
        yield at_most(f"campaign=paper from cold, {arguments.cores} cores", effort.wall_s, "s", COLD_S, done=done)
        yield "campaign=paper, CPU", f"{effort.cpu_s:.0f} s", "", done
        yield at_most("campaign=paper, peak memory", effort.peak_gib, "GiB", MEMORY_GIB, done=done)
        again = run(line, place)
        idle = again.returncode == 0 and "Nothing to be done" in again.output
        yield at_most("campaign=paper once more, nothing to do", again.wall_s, "s", AGAIN_S, done=idle)


def kills(arguments: argparse.Namespace) -> Iterator[Row]:
    """Kills at random moments of the default campaign."""
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = checkout(Path(folder) / "undisturbed")
        start_s = time.perf_counter()
        snakemake(undisturbed).check_returncode()
        whole_s = time.perf_counter() - start_s
        expected = artifacts(undisturbed / "results")
        yield "campaign=quickstart undisturbed", f"{whole_s:.0f} s, {len(expected)} artifacts", "", bool(expected)
        number = 0
        while number < arguments.kills:
            place = checkout(Path(tempfile.mkdtemp(dir=folder)) / "killed")
            killed = kill_and_run_again(place, moments.uniform(0, whole_s))
            if killed is None:  # another moment, then
                continue
            number += 1
            different = differences(expected, artifacts(place / "results"))
            outcome = killed.failure or (f"differs: {', '.join(different)}" if different else "identical data")
            what = f"kill {number} after {killed.after_s:.1f} s"
            yield what, f"{outcome}, {killed.again_s:.1f} s", "identical data", not (killed.failure or different)


def clone(_: argparse.Namespace) -> Iterator[Row]:
    """A first-time user's first command."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True)
        environment = {"PYTHONPATH": "", "MAKEFLAGS": ""}
        first = run(["make", "run"], place, environment)
        yield at_most("make run in a fresh clone", first.wall_s, "s", COLD_S, done=first.returncode == 0)
        again = run(["make", "run"], place, environment)
        yield at_most("make run once more", again.wall_s, "s", AGAIN_DEFAULT_S, done=again.returncode == 0)


PARTS = {"startup": startup, "paper": paper, "kills": kills, "clone": clone}


def main() -> int:
    """Measure, print a table; 1 if something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--kills", type=int, default=20, help="moments (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--cores", type=int, default=2, help="for campaign=paper (default: 2)")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]}: allowed: {', '.join(PARTS)}.")
    print("| what | measured | asked for | holds |\n| --- | --- | --- | --- |")
    holds = True
    for part in arguments.parts or PARTS:
        for what, measured, asked, is_met in PARTS[part](arguments):
            print(f"| {what} | {measured} | {asked} | {'yes' if is_met else 'NO'} |", flush=True)
            holds = holds and is_met
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
