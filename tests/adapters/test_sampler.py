"""Energies between two moments, from a counter that moves in steps, and clocks that were read meanwhile."""

import time
from pathlib import Path

import pytest
from helpers.fake_device import FakeDevice, wait_until

from kareus.adapters import sampler as sampler_module
from kareus.adapters.sampler import Sampler
from kareus.errors import DeviceError

STEP_S = 0.05


class Stepping(FakeDevice):
    """A GPU at 200 W whose counter moves every 50 ms."""

    def energy_j(self) -> float:
        return 200.0 * STEP_S * (time.perf_counter() // STEP_S)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "PERIOD_S", 0.002)


def test_energy_is_interpolated_between_movements(tmp_path: Path) -> None:
    sampler = Sampler(Stepping(tmp_path)).start()
    wait_until(lambda: len(sampler._energies) > 2)
    start_s = time.perf_counter()
    time.sleep(0.12)
    end_s = time.perf_counter()
    wait_until(lambda: sampler.covers(end_s))
    half_s = (start_s + end_s) / 2
    whole_j, first_j, second_j = sampler.energies_j([start_s, start_s, half_s], [end_s, half_s, end_s])
    sampler.close()
    assert whole_j is not None
    assert whole_j == pytest.approx(200.0 * (end_s - start_s), rel=0.25)  # readings come when the machine lets them
    assert first_j is not None
    assert second_j is not None
    assert first_j + second_j == pytest.approx(whole_j)


def test_energy_after_the_last_movement_is_not_known(tmp_path: Path) -> None:
    sampler = Sampler(Stepping(tmp_path)).start()
    sampler.close()
    now_s = time.perf_counter() + 10.0
    assert sampler.covers(now_s)  # it never will be
    assert sampler.energies_j([now_s - 1.0], [now_s]) == [None]


def test_a_counter_that_stands_still_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "STANDING_S", 0.05)
    device = FakeDevice(tmp_path)
    device.energy_j = lambda: 7.0  # type: ignore[method-assign]
    sampler = Sampler(device).start()
    end_s = time.perf_counter()
    wait_until(lambda: sampler.covers(end_s))
    assert sampler.energies_j([end_s - 0.01], [end_s]) == [None]
    sampler.close()


def test_the_energy_until_the_end_is_known(tmp_path: Path) -> None:
    sampler = Sampler(Stepping(tmp_path)).start()
    end_s = time.perf_counter()
    sampler.close()
    assert sampler.energies_j([end_s - 0.01], [end_s]) != [None]


def test_clocks_are_those_that_were_read_meanwhile(tmp_path: Path) -> None:
    device = FakeDevice(tmp_path)
    sampler = Sampler(device).start()
    device.lock_clock(900)
    start_s = time.perf_counter()
    wait_until(lambda: sampler.last_clock_mhz(start_s + 0.01, time.perf_counter()) is not None)
    end_s = time.perf_counter()
    assert sampler.last_clock_mhz(start_s + 0.01, end_s) == 900
    assert sampler.median_clock_mhz(start_s + 0.01, end_s) == 900
    assert sampler.last_clock_mhz(end_s + 10.0, end_s + 11.0) is None
    sampler.forget(end_s)
    assert sampler.last_clock_mhz(start_s, end_s - 1e-9) is None
    sampler.close()


def test_a_driver_that_stops_answering_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    device = FakeDevice(tmp_path)
    sampler = Sampler(device).start()

    def refuse() -> int:
        raise DeviceError("GPU 0: is lost; see `nvidia-smi -q`.")

    device.clock_mhz = refuse  # type: ignore[method-assign]
    wait_until(lambda: bool(caplog.messages))
    assert sampler.covers(time.perf_counter() + 10.0)
    sampler.close()
    assert caplog.messages[0] == "GPU 0: is lost; see `nvidia-smi -q`. Energy and clocks are not recorded from here on."
