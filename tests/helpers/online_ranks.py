"""Four pipelines as processes, in virtual time, which change plans together over gloo."""

import datetime
import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from helpers.fake_device import FakeDevice
from helpers.measured import FOUR_PIPELINES, SIMULATED, TrueCosts, measured_workload, true_costs, true_frontiers
from helpers.worlds import PRELOADED
from kareus.adapters import driver as driver_module
from kareus.adapters.driver import drive_by_plan
from kareus.adapters.layout import RankLayout
from kareus.adapters.online import PlanFolder
from kareus.adapters.stopwatch import Mark
from kareus.artifacts.layout import WorkloadFolder
from kareus.device.claims import FOLDER_VARIABLE
from kareus.pipeline.frontiers import solve_iteration
from kareus.pipeline.instructions import instructions_of
from kareus.plans.frontiers import Frontiers
from kareus.plans.planned_folder import write_frontiers
from kareus.workload.slices import cut

RANKS = 4
"""Processes; each stands for the `TENSOR_PARALLEL` ranks of its pipeline."""
TENSOR_PARALLEL = 8


def planned_pipelines(folder: Path) -> TrueCosts:
    """Write the plans of four pipelines to `folder`; returns what their instructions take."""
    workload = measured_workload(of=FOUR_PIPELINES)
    costs = true_costs(workload)
    microbatch = true_frontiers(workload, costs)
    iteration, _ = solve_iteration(cut(workload, "pipeline"), microbatch)
    write_frontiers(
        WorkloadFolder(folder), workload, Frontiers(iteration=iteration, microbatch=microbatch, testbed=SIMULATED)
    )
    return costs


@dataclass(frozen=True, kw_only=True)
class OnlineJob:
    """What all ranks are started with."""

    top: Path
    """Folder of everything: `plans`, `output`, and a folder of each GPU."""
    costs: TrueCosts
    iterations: int
    slow_rank: int = 2
    slowdown: float = 1.15
    slow_between: tuple[int, int] = (0, 0)
    """First iteration in which the rank is slow, and the first in which it no longer is."""
    pause_s: float = 0.0
    """Real time of an iteration, for those who want to interrupt it."""

    def gpu(self, rank: int) -> FakeDevice:
        clocks = tuple(range(900, 1411, 30))
        return FakeDevice(self.top / f"gpu{rank}", uuid=f"GPU-fake{rank}", clocks_mhz=clocks)


class VirtualStopwatch:
    """Implements `Stopwatch` by a time that only passes when it is told to."""

    now_s = 0.0

    def mark(self) -> Mark:
        return Mark(self.now_s, None)

    def times_s(self, marks):
        return [mark.host_s for mark in marks]


def start(job: OnlineJob) -> list[BaseProcess]:
    """Start all ranks."""
    for rank in range(RANKS):
        (job.top / f"gpu{rank}").mkdir(exist_ok=True)
    os.environ[FOLDER_VARIABLE] = str(job.top / "claims")
    multiprocessing.set_forkserver_preload([*PRELOADED, "helpers.online_ranks"])
    context = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=run_rank, args=(rank, job, str(job.top / "store"))) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    return ranks


def run_rank(rank: int, job: OnlineJob, store: str) -> None:
    """Train one pipeline."""
    torch.set_num_threads(1)
    os.environ[FOLDER_VARIABLE] = str(job.top / "claims")  # the fork server may have started with another
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timeout)
    stopwatch, gpu = VirtualStopwatch(), job.gpu(rank)
    driver_module.stopwatch_of = lambda device: stopwatch
    driver_module.gpu_of = lambda device: gpu
    config = cut(measured_workload(of=FOUR_PIPELINES), "pipeline")
    running = [i.key for i in instructions_of(config)]
    size = TENSOR_PARALLEL
    layout = RankLayout(rank=rank * size, gpus=RANKS * size, stage=0, stages=1, microbatches=config.num_microbatches)
    plans = PlanFolder(folder=job.top / "plans", conditions=job.top / "conditions.json")
    driver = drive_by_plan(plans, layout, torch.device("cpu"), running, output=job.top / "output")
    try:
        for iteration in range(job.iterations):
            is_slow = rank == job.slow_rank and job.slow_between[0] <= iteration < job.slow_between[1]
            for key in running:
                driver.begin_iteration()
                time_s, _ = job.costs[key.kind][driver.expected.frequency_mhz]
                driver.begin(key)
                stopwatch.now_s += time_s * (job.slowdown if is_slow else 1.0)
                driver.end(key)
            driver.end_iteration()
            time.sleep(job.pause_s)
    finally:
        driver.close()
        dist.destroy_process_group()
