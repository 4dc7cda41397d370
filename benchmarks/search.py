"""Strategies of the search against one another, on simulated partitions whose GPU the GPU model does not describe.

    python benchmarks/search.py [--quick] [--json]

Every partition of four workloads under ten truths (`yardstick/truths.py`), with noise, and with the profiler and the
protocol of planning. Writes a table of every measurement, prints a summary. Nothing was measured on a GPU.
"""

import argparse
import dataclasses
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import write_table
from yardstick.runs import RUNS, Job, run
from yardstick.subjects import Subject, all_subjects, search_config
from yardstick.summary import STRATEGIES, figures, finite, partition_lines, read_runs, strategy_lines

SEEDS, QUICK_SEEDS = 10, 2
OUT = Path("results/benchmarks/search")


def main() -> None:
    """Run, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the summary")
    parser.add_argument("--seeds", type=int, help=f"truths, alternately of both kinds (default: {SEEDS})")
    parser.add_argument("--partitions", nargs="+", metavar="NAME", help="partitions to search (default: all)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at a time (default: one for each core)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help=f"where to write (default: {OUT})")
    arguments = parser.parse_args()
    began_s = time.perf_counter()
    subjects = all_subjects()
    chosen = [s for s in subjects if not arguments.partitions or s.partition.name in arguments.partitions]
    if not chosen:
        names = ", ".join(sorted({s.partition.name for s in subjects}))
        parser.error(f"--partitions: no partition {', '.join(arguments.partitions)}; there are {names}.")
    seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    frame = run_all(jobs(chosen, seeds), arguments.processes)
    write_table(arguments.out / "runs.parquet", frame, RUNS, provenance(chosen, seeds))
    runs = read_runs(frame)
    summary = dataclasses.asdict(figures(runs))
    if arguments.json:
        print(json.dumps({key: finite(value) for key, value in summary.items()}))
        return
    lines = [*partition_lines(runs), "", *strategy_lines(runs), ""]
    lines += [f"{key}: {'none' if value is None else f'{value:.4f}'}" for key, value in summary.items()]
    print("\n".join(lines))
    print(f"simulated testbed; {time.perf_counter() - began_s:.0f} s; {arguments.out}")


def jobs(subjects: list[Subject], seeds: int) -> list[Job]:
    """One for each partition and seed; long ones first, so that no core ends long after others."""
    by_size = sorted(subjects, key=lambda s: -len(s.partition.operators))
    configs = {strategy: search_config(strategy) for strategy in STRATEGIES}
    return [Job(subject, seed, configs) for subject in by_size for seed in range(seeds)]


def run_all(jobs: list[Job], processes: int) -> pl.DataFrame:
    """Run the jobs, each in one of so many processes, whose linear algebra has one thread: more get in their way."""
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return RUNS.frame([row for rows in pool.map(run, jobs) for row in rows])


def provenance(subjects: list[Subject], seeds: int) -> Provenance:
    """Says that nothing of this was measured on a GPU."""
    detail = f"truths of seeds 0 to {seeds - 1}: perturbed coefficients, with odd seeds other laws"
    return Provenance(
        config_hash=content_hash([s.workload for s in subjects]),
        testbed=TestbedIdentity(kind="simulated", gpu=subjects[0].workload.gpu.name, detail=detail),
    )


if __name__ == "__main__":
    main()
