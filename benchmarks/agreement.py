"""What it takes a rank to agree with all others on the plan of the next iteration.

    python benchmarks/agreement.py          # a table
    python benchmarks/agreement.py --json   # one object

Ranks are processes of this machine, and agree over gloo as those of a job do that changes plans while it runs; each
decides among 64 plans. `agree_ms` is the median time from the first to the last line of that on one rank, waiting for
the others included. On fewer cores than ranks, that is mostly waiting for a core.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing

from kareus.adapters.agreement import job_agreement
from kareus.adapters.governor import Governor, PlanCosts, RankReport
from kareus.plans.selectors import parse_selector

RANKS, ITERATIONS = (2, 4), 300


def agree(rank: int, ranks: int, folder: str) -> None:
    """Agree many times, and write how long it took."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    numbers = range(64)
    costs = PlanCosts(times_s=tuple(1.0 + n / 64 for n in numbers), energies_j=tuple(99.0 - n for n in numbers), gpus=8)
    governor = Governor(costs, ranks, parse_selector("fastest"), parse_selector("min-energy"))
    agreement, times_s = job_agreement(), []
    for iteration in range(ITERATIONS):
        began_s = time.perf_counter()
        report = RankReport(pipeline=rank, iteration=iteration, slowdown=1.0)
        governor.decide(agreement.gather(report))
        times_s.append(time.perf_counter() - began_s)
    if rank == 0:
        Path(folder, "median").write_text(str(statistics.median(times_s)))
    dist.destroy_process_group()


def median_ms(ranks: int) -> float:
    """Median time of an agreement of so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(agree, (ranks, folder), nprocs=ranks, start_method="forkserver")
        return 1e3 * float(Path(folder, "median").read_text())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    as_json = parser.parse_args().json
    found = [{"ranks": ranks, "agree_ms": round(median_ms(ranks), 3)} for ranks in RANKS]
    if as_json:
        print(json.dumps({"cores": os.cpu_count(), "agreements": found}))
        return
    print(f"{os.cpu_count()} cores\nranks  agree_ms")
    for row in found:
        print(f"{row['ranks']:>5}  {row['agree_ms']:>8.3f}")


if __name__ == "__main__":
    main()
