"""Strategies of the search against one another, on simulated partitions whose GPU the GPU model does not describe.

    python benchmarks/search.py [--quick] [--json | --noise]

Every partition of four workloads under ten truths (`yardstick/truths.py`), with noise, and with the profiler and the
protocol of planning. Writes a table of every measurement and a figure, prints a summary. `--noise` prints instead how
the default strategy does where measurements are noisier than it presumes. Nothing was measured on a GPU.
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
from yardstick.figure import draw
from yardstick.noisy import noise_lines
from yardstick.overhead import MEASURED, Overhead, round_overhead
from yardstick.peers import PEERS
from yardstick.runs import Job, run
from yardstick.subjects import Subject, all_subjects, search_config
from yardstick.summary import figures, finite, partition_lines, read_runs, strategy_lines
from yardstick.tables import RUNS

STRATEGIES = ("random", "paper", "informed")
PEER_PARTITIONS = (
    ("llama3.2-3b_pp2-tp8_", "forward-mlp-allreduce"),
    ("llama3.2-3b_pp2-cp2-tp4_", "backward-projection-allreduce"),
    ("qwen3-1.7b_pp2-tp8_", "backward-attention-allreduce"),
    ("qwen3-1.7b_pp2-cp2-tp4_", "forward-qkv-allgather"),
)
"""Those that peers search, too, by the start of the workload's name: large and medium, of every workload one."""
SEEDS, QUICK_SEEDS, PEER_SEEDS = 10, 2, 3
OUT = Path("results/benchmarks/search")
LARGE = "forward-attention-allreduce"
"""The partition of the first workload on which overhead is measured: large, 720 candidates."""


def main() -> None:
    """Run, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds and no peers")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the summary")
    parser.add_argument("--noise", action="store_true", help="search testbeds of more noise, and write nothing")
    parser.add_argument("--seeds", type=int, help=f"truths, alternately of both kinds (default: {SEEDS})")
    parser.add_argument("--partitions", nargs="+", metavar="NAME", help="partitions to search (default: all)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at a time (default: one for each core)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help=f"where to write (default: {OUT})")
    arguments = parser.parse_args()
    began_s = time.perf_counter()
    subjects = all_subjects()
    if arguments.noise:
        lines = noise_lines(peer_subjects(subjects), arguments.seeds or QUICK_SEEDS)
        print(*lines, f"simulated testbed; {time.perf_counter() - began_s:.0f} s", sep="\n", flush=True)
        return
    overhead = round_overhead(next(s for s in subjects if s.partition.name == LARGE))
    chosen = [s for s in subjects if not arguments.partitions or s.partition.name in arguments.partitions]
    if not chosen:
        names = ", ".join(sorted({s.partition.name for s in subjects}))
        parser.error(f"--partitions: no partition {', '.join(arguments.partitions)}; there are {names}.")
    seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    planned = jobs(chosen, seeds, 0 if arguments.quick else PEER_SEEDS)
    frame = run_all(planned, arguments.processes)
    write_table(arguments.out / "runs.parquet", frame, RUNS, provenance(chosen, seeds))
    runs = read_runs(frame)
    draw(runs, arguments.out / "shares.svg", f"{chosen[0].workload.gpu.name}, {seeds} seeds")
    found = dataclasses.asdict(figures(runs)) | {"round_overhead_s": overhead.round_s}
    if arguments.json:
        print(json.dumps({key: finite(value) for key, value in found.items()}))
        return
    lines = [*partition_lines(runs), "", *strategy_lines(runs), "", overhead_line(overhead)]
    lines += [f"{key}: {'not run' if value is None else f'{value:.4f}'}" for key, value in found.items()]
    print("\n".join(lines))
    print(f"simulated testbed; {time.perf_counter() - began_s:.0f} s; {arguments.out}")


def jobs(subjects: list[Subject], seeds: int, peer_seeds: int) -> list[Job]:
    """One for each partition and seed, and for each peer; long ones first, so that no core ends long after others."""
    by_size = sorted(subjects, key=lambda s: -len(s.partition.operators))
    configs = {strategy: search_config(strategy) for strategy in STRATEGIES}
    own = [Job(subject, seed, configs) for subject in by_size for seed in range(seeds)]
    shared = peer_subjects(by_size)
    peers = [
        Job(s, seed, {peer: configs["paper"]})
        for peer in PEERS
        for s in shared
        for seed in range(min(seeds, peer_seeds))
    ]
    return peers[::-1] + own


def peer_subjects(subjects: list[Subject]) -> list[Subject]:
    """Those of `PEER_PARTITIONS`."""
    return [s for s in subjects for start, name in PEER_PARTITIONS if s.partition.name == name and start in s.name]


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


def overhead_line(overhead: Overhead) -> str:
    """One line on the cost of a round."""
    return (
        f"one round of paper, {MEASURED} measured, {overhead.offered} scored: {overhead.round_s:.3f} s of one core, "
        f"{overhead.training_s:.3f} s of them training XGBoost"
    )


if __name__ == "__main__":
    main()
