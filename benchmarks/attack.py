"""Attack a checkout and say what fails: `make attack`, or `python benchmarks/attack.py [part ...]`.

Each part is a module of `benchmarks/attacks`, whose docstring says what it does. All attacks go through commands and
documented functions, so that another checkout can be attacked, with `--checkout`: the same command says what failed
before a change and what fails after it. The table goes to standard output, each failure to standard error.
"""

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from attacks.rows import Row, counted
from attacks.target import Target
from runs.checkout import ROOT

PARTS = (
    "reruns",
    "deletions",
    "damage",
    "outputs",
    "repairs",
    "journals",
    "checkpoints",
    "plans",
    "inputs",
    "names",
    "numbers",
    "claims",
    "refusals",
    "ranks",
    "caches",
    "unpacking",
    "training",
)


def _rows(part: str, target: Target) -> Iterator[Row]:
    """Rows of a part; what keeps it from its end is a failure, and the other parts go on."""
    try:
        yield from importlib.import_module(f"attacks.{part}").attacks(target)
    except Exception as error:  # noqa: BLE001 - it is told
        yield counted(part, [("the part itself", f"{type(error).__name__}: {error}")])


def main() -> int:
    """Attack, print a table; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="what is attacked (default: this one)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="tries at a time (default: 2)")
    parser.add_argument("--quick", action="store_true", help="a fraction of the tries, in a few minutes")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]}: allowed: {', '.join(PARTS)}.")
    print("| attack | tries | failures | what failed |\n| --- | ---: | ---: | --- |", flush=True)
    failed = False
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as scratch:
        target = Target(arguments.checkout.resolve(), Path(scratch), arguments.seed, arguments.quick, arguments.jobs)
        for part in arguments.parts or PARTS:
            start_s = time.perf_counter()
            for row in _rows(part, target):
                print(row, flush=True)
                failed = failed or bool(row.failures)
            print(f"{part}: {time.perf_counter() - start_s:.0f} s", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
