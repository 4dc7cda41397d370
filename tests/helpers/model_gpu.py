"""A GPU in virtual time whose training steps take what the GPU model says, for trainers that know of no GPU."""

from concurrent.futures import Future
from functools import cache
from typing import Any

import pytest

from helpers.measured import measured_workload, true_costs
from helpers.virtual_job import COUNTER_S, VirtualGpu
from kareus.adapters import driver, steps
from kareus.device import controller
from kareus.graph.records import Direction

CLOCKS_MHZ = (900, 1053, 1206, 1410)


@cache
def step_costs() -> dict[int, tuple[float, float]]:
    """Seconds and joules of a step at each clock, by the GPU model: the first stage of a small workload."""
    workload = measured_workload()
    own = [costs for kind, costs in true_costs(workload).items() if kind.stage == 0 and kind.direction in Direction]
    return {
        mhz: (
            workload.num_microbatches * sum(costs[mhz][0] for costs in own),
            workload.num_microbatches * sum(costs[mhz][1] for costs in own),
        )
        for mhz in CLOCKS_MHZ
    }


class ModelGpu(VirtualGpu):
    """Implements `kareus.device.protocol.Device`, and is stopwatch and sampler of the rank that computes on it."""

    uuid, name, driver = "GPU-model", "Model", "1.0"

    def __init__(self) -> None:
        super().__init__(waiting_power_w=85.0, maximum_mhz=max(CLOCKS_MHZ))
        self.calls: list[str] = []

    def run(self, share: float) -> None:
        """Let a share of a step pass at the clock that is locked."""
        time_s, energy_j = step_costs()[self.clock_mhz()]
        self.pass_until(self.now_s + share * time_s, energy_j / time_s)

    def wait(self, time_s: float) -> None:
        """Let time pass between two steps."""
        self.pass_until(self.now_s + time_s, 85.0)

    def supported_clocks_mhz(self) -> tuple[int, ...]:
        return CLOCKS_MHZ

    def lock_clock(self, frequency_mhz: int) -> None:
        self.calls.append(f"lock {frequency_mhz}")
        self._mhz = self._next_mhz = frequency_mhz

    def reset_clock(self) -> None:
        self.calls.append("reset")
        self._mhz = self._next_mhz = max(CLOCKS_MHZ)

    def throttle_reasons(self) -> tuple[str, ...]:
        return ()

    def temperature_c(self) -> float:
        return 40.0


class _AtOnce:
    """In place of the controller's thread: in virtual time a clock is there before the step that asked for it."""

    def __init__(self, **options: Any) -> None:
        """As `ThreadPoolExecutor`."""

    def submit(self, run: Any, *arguments: Any) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_result(run(*arguments))
        return answer

    def shutdown(self) -> None:
        """Nothing waits."""


class _Read:
    """In place of the thread that reads a GPU: the readings that the GPU takes of itself."""

    def __init__(self, gpu: ModelGpu) -> None:
        self._gpu = gpu

    def start(self) -> Any:
        return self._gpu.sampler


def model_gpu(monkeypatch: pytest.MonkeyPatch) -> ModelGpu:
    """The GPU that drivers of this process find."""
    gpu = ModelGpu()
    readings = gpu.sampler._energies
    gpu.sampler.covers = lambda end_s: readings[-1][0] >= end_s  # type: ignore[method-assign]
    gpu.sampler.close = lambda: gpu.wait(2 * COUNTER_S)  # type: ignore[method-assign]  # until the counter has moved
    monkeypatch.setattr(steps, "gpu_of", lambda device: gpu)
    monkeypatch.setattr(driver, "stopwatch_of", lambda device: gpu)
    monkeypatch.setattr(driver, "Sampler", _Read)
    monkeypatch.setattr(controller, "ThreadPoolExecutor", _AtOnce)
    return gpu
