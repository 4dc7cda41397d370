"""Records of iterations whose end the GPU reaches long after the host has gone on."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.fake_device import FakeDevice, wait_until

from kareus.adapters import sampler as sampler_module
from kareus.adapters.recorder import RankRecorder
from kareus.adapters.records import IterationRecord
from kareus.adapters.sampler import Sampler
from kareus.adapters.stopwatch import Mark

BEHIND_S = 0.2


class Behind:
    """A GPU that reaches every mark so long after the host asked for it, and says so once."""

    def __init__(self) -> None:
        self.used: set[float] = set()

    def mark(self) -> Mark:
        return Mark(time.perf_counter(), None)

    def times_s(self, marks: Sequence[Mark]) -> list[float] | None:
        hosts_s = {mark.host_s for mark in marks}
        assert not self.used & hosts_s, "marks are used up"
        times_s = [mark.host_s + BEHIND_S for mark in marks]
        if times_s[-1] > time.perf_counter():
            return None
        self.used |= hosts_s
        return times_s


class Moving(FakeDevice):
    """A GPU at 100 W whose counter moves every 0.1 s."""

    def energy_j(self) -> float:
        return 10.0 * (time.perf_counter() // 0.1)


def test_the_energy_is_that_until_the_gpu_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter had moved after the host went on, and not yet after the GPU had ended."""
    monkeypatch.setattr(sampler_module, "PERIOD_S", 0.002)
    records: list[IterationRecord] = []
    recorder = RankRecorder(Behind(), Sampler(Moving(tmp_path)).start(), None, records.append)

    def step() -> bool:
        recorder.begin_iteration(0, "fastest")
        time.sleep(0.005)
        recorder.end_iteration()
        return len(records) > 40

    wait_until(step)
    recorder.close()
    assert all(record.energy_j is not None for record in records[:40])
