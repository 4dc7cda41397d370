"""The solver of iteration frontiers against lowtime, the solver of Perseus, and its growth with the pipeline.

    python benchmarks/pipeline.py [--quick] [--json] [--write]

Needs the extra `bench` and no results: instruction frontiers come from the simulated testbed, searched exhaustively.

The protocol. lowtime runs to its end, in steps of 1 ms, from the slowest iteration to the fastest; counted is the CPU
time of its steps alone, not of fitting its cost curves or building its graph. After each step every instruction takes
the slowest real point that is not slower than planned (in whole milliseconds, rounded down, as lowtime and Perseus do);
time and energy of the plan are those of its real points. From its plans that no other dominates, 20 or a few more are
picked at even distances in time, from the fastest to the most frugal. Ours is timed on all of these at once, each with
exactly the makespan that lowtime reached as its deadline, and includes building its linear program. Energy is that of
the whole iteration, with what waiting costs; the gap is (plan - bound) / bound at the deadline. Both run on one core,
and CPU times compare within one run only. To see that these were not picked with luck, energies are compared at every
plan of lowtime, too. lowtime's runs share the cores, ours has the machine to itself.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from doc_tables import made, put, table_row
from iteration.compare import Comparison, compare
from iteration.growth import DEADLINES, solve_each
from iteration.instances import Instances
from iteration.peer import run_lowtime

PAGE = Path(__file__).parent / "README.md"
COMPARISON = (
    "| stages x microbatches | lowtime s | ours s | speedup | largest excess energy % | the same at all its plans | "
    "mean gap % | largest gap % | made |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
)
GROWTH = (
    "| stages x microbatches | instructions | ours s | bounds s | peak GiB | mean gap % | largest gap % | made |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
)
"""Heads of the tables of `PAGE`; each row has its date and its commit."""
COMPARED = ((2, 8), (4, 8), (4, 16), (10, 16))
GROWING = ((10, 16), (10, 32), (10, 64), (10, 128))


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only compare, do not grow (under 5 minutes)")
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON object")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    arguments = parser.parse_args()
    instances = Instances()
    output = sys.stderr if arguments.json else sys.stdout
    print(f"{instances.label}; stages x microbatches, 1F1B", *COMPARISON, sep="\n", file=output)
    compared, rows = dict[str, Comparison](), list[str]()
    problems = {
        f"{stages}x{microbatches}": instances.problem(stages, microbatches) for stages, microbatches in COMPARED
    }
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        longest_first = {name: pool.submit(run_lowtime, problem) for name, problem in reversed(problems.items())}
        runs = {name: running.result() for name, running in longest_first.items()}
    for name, problem in problems.items():
        compared[name] = compare(problem, runs[name])
        rows.append(_comparison_row(name, compared[name]))
        print(rows[-1], file=output, flush=True)
    if arguments.write:
        put(PAGE, COMPARISON, rows)
    if not arguments.quick:
        print(f"{DEADLINES} deadlines", *GROWTH, sep="\n", file=output)
        rows = list(_grow(instances, output))
        if arguments.write:
            put(PAGE, GROWTH, rows)
    if arguments.json:
        print(json.dumps(_summary(instances.label, compared)))


def _comparison_row(name: str, c: Comparison) -> str:
    figures = [f"{c.peer_cpu_s:.2f}", f"{c.cpu_s:.3f}", f"{c.speedup:.0f}"]
    shares = (c.excesses.max(), c.everywhere.max(), c.gaps.mean(), c.gaps.max())
    return table_row([name.replace("x", " x "), *figures, *(f"{100 * share:.3f}" for share in shares), made()])


def _grow(instances: Instances, output: TextIO) -> Iterator[str]:
    """Print and yield the row of each size."""
    problems = (instances.problem(*size) for size in GROWING)
    for (stages, microbatches), solved in zip(GROWING, solve_each(problems), strict=True):
        figures = (f"{solved.cpu_s:.2f}", f"{solved.relaxation_cpu_s:.2f}", f"{solved.peak_gib:.2f}")
        gaps = (sum(solved.gaps) / len(solved.gaps), max(solved.gaps))
        size = f"{stages} x {microbatches}", str(solved.instructions)
        row = table_row([*size, *figures, *(f"{100 * gap:.3f}" for gap in gaps), made()])
        print(row, file=output, flush=True)
        yield row


def _summary(label: str, compared: Mapping[str, Comparison]) -> dict[str, Any]:
    """What was found, over all pipelines; shares, not percent."""
    return {
        "instances": label,
        "deadlines": {name: len(c.gaps) for name, c in compared.items()},
        "speedup": {name: c.speedup for name, c in compared.items()},
        "cpu_s": {name: c.cpu_s for name, c in compared.items()},
        "lowtime_cpu_s": {name: c.peer_cpu_s for name, c in compared.items()},
        "energy_excess_vs_lowtime_max": max(float(c.excesses.max()) for c in compared.values()),
        "energy_excess_at_all_plans_of_lowtime_max": max(float(c.everywhere.max()) for c in compared.values()),
        "certified_gap_max": max(float(c.gaps.max()) for c in compared.values()),
    }


if __name__ == "__main__":
    main()
