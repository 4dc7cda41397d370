"""A pipeline job in virtual time on GPUs whose driver shows the times and energies of the GPU model.

Ranks are threads of this process. Each drives a real `StageDriver`, and lets the time of its own GPU pass.
"""

import contextlib
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.measured import TrueCosts
from kareus.adapters.choice import ClockChoice
from kareus.adapters.driver import StageDriver
from kareus.adapters.layout import RankLayout
from kareus.adapters.recorder import RankRecorder
from kareus.adapters.sampler import Sampler
from kareus.adapters.stopwatch import Mark
from kareus.device.controller import ClockChange
from kareus.graph.instruction import InstructionKey
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.solver.dag import earliest_starts, iteration_dag
from kareus.workload.config import Workload
from kareus.workload.slices import cut

COUNTER_S = 0.1
"""Between two updates of the energy counter."""
SEEN_S = 0.025
"""Longest time from an update of the counter until it is seen."""
SWITCHING_S = 0.01
"""From a request of a clock until it is there."""
NOISE = 0.005
"""Relative standard deviation of the time, and of the power, of an iteration on a GPU."""


class ThreadAgreement:
    """Implements `Agreement` among threads; `gathers` counts how often they agreed."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._told: list[Any] = [None] * ranks
        self.gathers = 0

    def of(self, rank: int) -> "_Ranks":
        return _Ranks(self, rank)

    def gather(self, rank: int, told: Any) -> list[Any]:
        self._told[rank] = told
        self._barrier.wait()
        gathered = list(self._told)
        if self._barrier.wait() == 0:
            self.gathers += 1
        return gathered

    def abort(self) -> None:
        self._barrier.abort()


@dataclass(frozen=True)
class _Ranks:
    agreement: ThreadAgreement
    rank: int

    def gather(self, told: Any) -> list[Any]:
        return self.agreement.gather(self.rank, told)


@dataclass(frozen=True)
class Cap:
    """What keeps a GPU below higher clocks, and what its driver says of it."""

    mhz: int
    reasons: tuple[str, ...]
    until_s: float = math.inf


class VirtualGpu:
    """Time, energy and clock of one GPU; implements what a rank's driver asks of stopwatch and clock control."""

    rests = False

    def __init__(self, waiting_power_w: float, maximum_mhz: int) -> None:
        self.now_s, self.power_w = 0.0, waiting_power_w
        self._energy_j, self._counter_s = 0.0, 0.0
        self._mhz, self._next_mhz, self._next_s = maximum_mhz, maximum_mhz, 0.0
        self._maximum_mhz = maximum_mhz
        self.cap: Cap | None = None
        self.asked: list[int | None] = []
        self.sampler = Sampler(self)  # read at updates of the counter, by no thread
        self._random = np.random.default_rng(0)
        self._read()

    def pass_until(self, end_s: float, power_w: float) -> None:
        """Let time pass at a power; the counter shows the energy of its last update."""
        while self._counter_s + COUNTER_S <= end_s:
            self._counter_s += COUNTER_S
            self._energy_j += (self._counter_s - self.now_s) * power_w
            self.now_s = self._counter_s
            self._read()
        self._energy_j += (end_s - self.now_s) * power_w
        self.now_s = end_s

    def clock_mhz(self) -> int:
        return min(self._wished_mhz(), self.capped_mhz())

    def capped_mhz(self) -> int:
        """The highest clock that it may have now."""
        return self.cap.mhz if self.cap is not None and self.now_s < self.cap.until_s else self._maximum_mhz

    def _wished_mhz(self) -> int:
        return self._next_mhz if self.now_s >= self._next_s else self._mhz

    def energy_j(self) -> float:
        return round(self._energy_j, 3)

    def request(self, frequency_mhz: int) -> "Future[ClockChange]":
        self.asked.append(frequency_mhz)
        self._mhz, self._next_mhz, self._next_s = self._wished_mhz(), frequency_mhz, self.now_s + SWITCHING_S
        return Future()

    def leave(self) -> None:
        self.asked.append(None)
        self._mhz, self._next_mhz, self._next_s = self._wished_mhz(), self._maximum_mhz, self.now_s + SWITCHING_S

    def throttle_reasons(self) -> tuple[str, ...]:
        return self.cap.reasons if self.cap is not None and self._wished_mhz() > self.clock_mhz() else ()

    def check(self) -> None:
        """Nothing fails."""

    def drain(self) -> list[ClockChange]:
        return []

    def mark(self) -> Mark:
        return Mark(self.now_s, None)

    def times_s(self, marks: Sequence[Mark]) -> list[float]:
        return [mark.host_s for mark in marks]

    def _read(self) -> None:
        self.sampler._energies.append((self.now_s + self._random.uniform(0, SEEN_S), self.energy_j()))
        self.sampler._clocks.append((self.now_s, self.clock_mhz(), self.throttle_reasons()))


@dataclass(frozen=True, kw_only=True)
class VirtualJob:
    """A pipeline of one GPU for each stage, at one clock in each iteration."""

    workload: Workload
    costs: TrueCosts

    def orders(self) -> list[list[InstructionKey]]:
        """Instructions of each stage, in order."""
        keys = [i.key for i in instructions_of(cut(self.workload, "pipeline"))]
        return [[key for key in keys if key.stage == stage] for stage in range(self.workload.parallelism.pp)]

    def layout(self, rank: int) -> RankLayout:
        stages = self.workload.parallelism.pp
        return RankLayout(
            rank=rank, gpus=stages, stage=rank, stages=stages, microbatches=self.workload.num_microbatches
        )

    def starts_s(self, frequency_mhz: int) -> tuple[dict[InstructionKey, float], float]:
        """When each instruction starts in an iteration at a clock, and how long that takes."""
        config = cut(self.workload, "pipeline")
        keys = [i.key for i in instructions_of(config)]
        times_s = [self.costs[key.kind][frequency_mhz][0] for key in keys]
        starts_s = earliest_starts(iteration_dag(config), times_s)
        return dict(zip(keys, starts_s, strict=True)), max(s + t for s, t in zip(starts_s, times_s, strict=True))

    def length_s(self, frequency_mhz: int) -> float:
        """Time from the begin of an iteration at a clock to that of the next."""
        return self.starts_s(frequency_mhz)[1] * 1.01  # stages begin together, hardly any of them slower than planned

    def run(
        self, choices: Sequence[ClockChoice], iterations: int, seed: int = 0, cap: Cap | None = None
    ) -> list[VirtualGpu]:
        """Run the job on a thread for each stage, until a rank fails or all iterations are done.

        Args:
            choices: of the ranks.
            iterations: at most.
            seed: of the noise.
            cap: of the last stage's GPU.
        """
        gpus = [VirtualGpu(self.workload.gpu.blocking_power_w, self.workload.gpu.maximum_clock_mhz) for _ in choices]
        gpus[-1].cap = cap
        with ThreadPoolExecutor(len(choices)) as pool:
            ran = [
                pool.submit(self._run_rank, rank, choice, gpu, iterations, np.random.default_rng((seed, rank)))
                for rank, (choice, gpu) in enumerate(zip(choices, gpus, strict=True))
            ]
        for one in ran:
            one.result()
        return gpus

    def _run_rank(
        self, rank: int, choice: ClockChoice, gpu: VirtualGpu, iterations: int, random: np.random.Generator
    ) -> None:
        recorder = RankRecorder(gpu, gpu.sampler, None, choice.take_note)
        driver = StageDriver(choice, gpu, recorder, lambda: None, contextlib.ExitStack())
        order, timetables, start_s = self.orders()[rank], {}, 0.0
        for _ in range(iterations):
            gpu.pass_until(start_s, gpu.power_w)
            driver.begin_iteration()
            asked_mhz = driver.expected.frequency_mhz or self.workload.gpu.maximum_clock_mhz
            lowest_mhz = self.workload.gpu.search_frequencies.clocks_mhz[0]
            mhz = max(min(asked_mhz, gpu.capped_mhz()), lowest_mhz)  # costs of lower ones are not known
            starts_s, _ = timetables.setdefault(mhz, self.starts_s(mhz))
            slower, thirstier = np.exp(NOISE * random.standard_normal(2))
            for key in order:
                gpu.pass_until(max(start_s + starts_s[key], gpu.now_s), gpu.power_w)
                driver.begin(key)
                time_s, energy_j = self.costs[key.kind][mhz]
                gpu.pass_until(gpu.now_s + time_s * slower, energy_j / time_s * thirstier)
                driver.end(key)
            start_s += self.length_s(mhz)
            driver.end_iteration()
