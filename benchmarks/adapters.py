"""What an adapter costs the trainer for each microbatch, as a share of the shortest one.

    python benchmarks/adapters.py           # a table
    python benchmarks/adapters.py --json    # one object

Each adapter is told of iterations of 32 microbatches on the first of 4 stages, as its trainer would tell it, by a plan
that asks for another clock at each instruction, on a GPU that answers at once. `host_us` is CPU time of the thread that
trains for the forward and backward of a microbatch, beyond the same calls without the adapter; `process_us` is that of
all threads, with those that set clocks and read the GPU. Both are the least of many runs. A GPU adds four CUDA events
for each microbatch, and the time of its driver, for which other threads wait: neither is measured here.

`share` is `host_us` in the shortest microbatch, which is the shortest forward of the campaign `testbed` as predicted
for its simulated A100 at the maximum clock. The backward takes longer than its forward and is left out. Exits with 1 if
a share is above `allowed_share`.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import torch

import kareus
from kareus.adapters.choice import ChosenIteration
from kareus.adapters.driver import StageDriver, open_driver
from kareus.adapters.layout import RankLayout
from kareus.adapters.pipelining import PlannedSchedule
from kareus.adapters.records import IterationRecord
from kareus.campaign.resolve import resolve_campaign
from kareus.device.claims import FOLDER_VARIABLE
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions
from kareus.runtime.follower import PlannedStep

STAGES, MICROBATCHES, ITERATIONS, RUNS = 4, 32, 20, 15
CLOCKS_MHZ = (1410, 1200)
ALLOWED_SHARE = 0.005
"""Of the shortest microbatch."""
US = 1e6


@dataclass(frozen=True)
class InstantGpu:
    """Implements `kareus.device.protocol.Device`: answers at once, and is always where it should be."""

    uuid: str = "GPU-benchmark"
    name: str = "made up"
    driver: str = "0"

    def supported_clocks_mhz(self) -> tuple[int, ...]:
        """Two."""
        return CLOCKS_MHZ

    def lock_clock(self, frequency_mhz: int) -> None:
        """Do nothing."""

    def reset_clock(self) -> None:
        """Do nothing."""

    def clock_mhz(self) -> int:
        """Always the first."""
        return CLOCKS_MHZ[0]

    def throttle_reasons(self) -> tuple[str, ...]:
        """None."""
        return ()

    def energy_j(self) -> float:
        """A steady 300 W."""
        return 300.0 * time.perf_counter()

    def temperature_c(self) -> float:
        """Always 40."""
        return 40.0


Call = Callable[[], None]
"""What a trainer calls in one iteration."""
Make = Callable[[StageDriver, tuple[InstructionKey, ...]], tuple[Call, Call]]
"""Returns what a trainer calls without an adapter and with it, from the driver and the order of a stage."""


def main() -> None:
    """Measure, then print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    shortest_s = shortest_microbatch_s()
    figures: dict[str, float] = {"shortest_microbatch_us": US * shortest_s}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER_VARIABLE] = folder
        for adapter, make in ADAPTERS.items():
            host_s, process_s = overhead_s(make, Path(folder) / adapter)
            figures |= {
                f"{adapter}_host_us": US * host_s,
                f"{adapter}_process_us": US * process_s,
                f"{adapter}_share": host_s / shortest_s,
            }
    figures["allowed_share"] = ALLOWED_SHARE
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<24} {100 * value:.3f} %" if name.endswith("share") else f"{name:<24} {value:.1f}")
    sys.exit(any(figures[f"{adapter}_share"] > ALLOWED_SHARE for adapter in ADAPTERS))


def overhead_s(make: Make, output: Path) -> tuple[float, float]:
    """Return CPU time for each microbatch beyond that without the adapter: of the thread that trains, and of all."""
    instructions = pipeline_instructions(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, STAGES, MICROBATCHES)
    keys = tuple(i.key for i in instructions if i.key.stage == 0)
    layout = RankLayout(rank=0, gpus=STAGES, stage=0, stages=STAGES, microbatches=MICROBATCHES)
    driver = open_driver(EachAnother(keys), layout, InstantGpu(), torch.device("cpu"), output=output)
    with closing(driver):
        bare, driven = make(driver, keys)
        passed = [(_cpu_s(driven), _cpu_s(bare)) for _ in range(RUNS)]
    with_it, without = (tuple(map(min, zip(*runs, strict=True))) for runs in zip(*passed, strict=True))
    host_s, process_s = (max(a - b, 0.0) for a, b in zip(with_it, without, strict=True))
    return host_s / (ITERATIONS * MICROBATCHES), process_s / (ITERATIONS * MICROBATCHES)


def through_megatron(driver: StageDriver, keys: tuple[InstructionKey, ...]) -> tuple[Call, Call]:
    """What Megatron-Core's schedules call in an iteration: with its own timers, and with ours in front of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not installed
        from megatron.core.timers import Timers  # noqa: PLC0415 - takes seconds, and other adapters do not need it

        from kareus.adapters.megatron import PlanTimers  # noqa: PLC0415 - as above
    real = Timers(0, "max")
    planned = PlanTimers(real, driver, keys, tokens=None)
    names = ["forward-compute" if key.direction is Direction.FORWARD else "backward-compute" for key in keys]

    def call(timers: Timers | PlanTimers) -> None:
        timers("forward-backward", log_level=1).start(barrier=False)
        for name in names:
            timers(name, log_level=2).start()
            timers(name).stop()
        timers("forward-backward").stop()

    return lambda: call(real), lambda: call(planned)


def through_pipelining(driver: StageDriver, keys: tuple[InstructionKey, ...]) -> tuple[Call, Call]:
    """What a schedule of torch.distributed.pipelining calls in an iteration: methods of its stage, bare and wrapped."""
    bare, planned = ScheduleOfNothing(keys), ScheduleOfNothing(keys)
    PlannedSchedule(planned, driver, tokens=None)  # type: ignore[arg-type]
    return bare.step, planned.step


ADAPTERS = {"megatron": through_megatron, "pipelining": through_pipelining}


class StageOfNothing:
    """A stage of PyTorch's pipelines that computes nothing."""

    group_rank, group_size, stage_index, has_backward = 0, STAGES, 0, True

    def forward_one_chunk(self, fwd_chunk_id: int) -> None:
        """Return at once."""

    def backward_one_chunk(self, bwd_chunk_id: int) -> None:
        """Return at once."""

    def backward_weight_one_chunk(self, bwd_chunk_id: int) -> None:
        """Return at once."""


class ScheduleOfNothing:
    """A schedule of PyTorch that runs a stage in an order."""

    _has_backward = True

    def __init__(self, keys: tuple[InstructionKey, ...]) -> None:
        """Run `keys`."""
        self._keys = keys
        self._stage = StageOfNothing()

    def step(self) -> None:
        """Run one iteration."""
        for key in self._keys:
            if key.direction is Direction.FORWARD:
                self._stage.forward_one_chunk(key.microbatch)
            else:
                self._stage.backward_one_chunk(key.microbatch)


class EachAnother:
    """Implements `ClockChoice`: another clock at each instruction."""

    def __init__(self, keys: Sequence[InstructionKey]) -> None:
        """Run `keys` in this order."""
        steps = (PlannedStep(key, clock_mhz) for key, clock_mhz in zip(keys, cycle(CLOCKS_MHZ), strict=False))
        self._chosen = ChosenIteration(steps=tuple(steps), selector="benchmark")

    def iteration(self, number: int) -> ChosenIteration:
        """The same in all."""
        return self._chosen

    def take_note(self, record: IterationRecord) -> None:
        """Nothing is learned."""


def shortest_microbatch_s() -> float:
    """Return the time of the shortest forward of the campaign `testbed`."""
    return min(
        stage.forward_s / workload.num_microbatches
        for workload in resolve_campaign("testbed", []).workloads.values()
        for stage in kareus.predict(workload).stages
    )


def _cpu_s(call: Call) -> tuple[float, float]:
    """Return CPU time of this thread and of the process for some iterations."""
    thread_s, process_s = time.thread_time(), time.process_time()
    for _ in range(ITERATIONS):
        call()
    return time.thread_time() - thread_s, time.process_time() - process_s


if __name__ == "__main__":
    main()
