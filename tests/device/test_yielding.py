"""Clocks that a training can do without: a refusal leaves all ranks at the driver's clock until it is over."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from helpers.fake_device import FakeDevice, wait_until

from kareus.device import yielding
from kareus.device.claims import FOLDER_VARIABLE
from kareus.device.yielding import YieldingClocks, yielding_clocks
from kareus.launch.rendezvous import shared_tally


@pytest.fixture
def store() -> dist.Store:
    """The store of a job of two ranks."""
    return dist.HashStore()


@pytest.fixture
def ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: dist.Store
) -> Iterator[list[tuple[FakeDevice, YieldingClocks]]]:
    """GPU and clocks of both."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.setattr(yielding, "LOOK_S", 0.0)
    gpus = [FakeDevice(tmp_path / str(rank), uuid=f"GPU-{rank}") for rank in range(2)]
    for gpu in gpus:
        gpu.folder.mkdir()
    tally = shared_tally(store, "refused")
    with yielding_clocks(gpus[0], tally) as first, yielding_clocks(gpus[1], tally) as second:
        yield [(gpus[0], first), (gpus[1], second)]


def run_step(clocks: YieldingClocks, clock_mhz: int = 1200) -> None:
    """A step, at whose end the driver has answered."""
    clocks.request(clock_mhz).exception()
    clocks.check()


def test_all_ranks_rest_while_one_is_refused(ranks, store, monkeypatch):
    (gpu, clocks), (other_gpu, other) = ranks
    for each in (clocks, other):
        run_step(each)
    gpu.allowed = False
    run_step(clocks, 900)
    assert clocks.rests
    other.check()
    assert other.rests
    assert other_gpu.calls() == ["lock 1200", "reset"]
    other.check()
    assert other.rests, "it is refused still"
    gpu.allowed = True
    monkeypatch.setattr(yielding, "RETRY_S", 0.0)
    clocks._look_s = 0.0
    clocks.check()
    wait_until(lambda: clocks.check() or store.add("refused", 0) == 0)
    other.check()
    wait_until(lambda: other_gpu.calls()[-1] == "lock 1200")
    assert gpu.calls()[-1] == "lock 900"
    assert not clocks.rests
    assert not other.rests


def test_two_refused_ranks_do_not_wait_for_each_other(ranks, store, monkeypatch):
    monkeypatch.setattr(yielding, "RETRY_S", 0.0)
    for gpu, clocks in ranks:
        gpu.allowed = False
        run_step(clocks)
    assert store.add("refused", 0) == 2
    for gpu, _ in ranks:
        gpu.allowed = True
    for _, clocks in ranks:
        wait_until(lambda clocks=clocks: clocks.check() or not clocks._is_refused)
    wait_until(lambda: [clocks.check() for _, clocks in ranks] and not any(clocks.rests for _, clocks in ranks))


def test_a_rank_that_ends_leaves_the_tally(ranks, store):
    (gpu, clocks), _ = ranks
    gpu.allowed = False
    run_step(clocks)
    assert store.add("refused", 0) == 1
    clocks.withdraw()
    assert store.add("refused", 0) == 0


def test_clocks_are_set_again_in_a_process_that_survives_a_signal(ranks, monkeypatch):
    (gpu, clocks), _ = ranks
    run_step(clocks)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_until(lambda: clocks.rests and not gpu.locked.exists())
    run_step(clocks, 900)
    run_step(clocks, 1200)
    assert gpu.calls() == ["lock 1200", "reset"]
    clocks._look_s = 0.0  # as after `SURVIVED_S`
    clocks.check()
    wait_until(gpu.locked.exists)
    assert gpu.calls() == ["lock 1200", "reset", "lock 1200"]


def test_a_signal_amid_a_refusal_keeps_the_clock_from_being_tried_again(ranks):
    (gpu, clocks), _ = ranks
    run_step(clocks)
    gpu.allowed = False
    run_step(clocks, 900)
    gpu.allowed = True
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_until(lambda: not gpu.locked.exists())
    clocks._look_s = 0.0  # as after `RETRY_S`
    run_step(clocks)
    run_step(clocks)
    assert clocks.rests
    assert gpu.calls() == ["lock 1200", "reset"]


def test_a_request_that_is_overtaken_ends_no_refusal(ranks, caplog):
    (gpu, clocks), _ = ranks
    run_step(clocks)
    gpu.allowed = False
    run_step(clocks, 900)
    clocks._look_s, driver = 0.0, threading.Event()
    clocks._controller._thread.submit(driver.wait)  # it is at work, and both requests wait
    clocks.check()
    overtaken = clocks._trial
    clocks.request(1410)
    with clocks._controller._driver:  # the second one waits, still
        driver.set()
        overtaken.result()
        clocks.check()
    assert "takes clocks again" not in caplog.text
    wait_until(lambda: clocks.check() or clocks.rests)


def test_a_rank_that_needs_no_clock_any_more_leaves_the_tally(ranks, store):
    (gpu, clocks), _ = ranks
    gpu.allowed = False
    run_step(clocks)
    gpu.allowed, clocks._look_s, driver = True, 0.0, threading.Event()
    clocks._controller._thread.submit(driver.wait)
    clocks.check()  # tries again
    clocks.leave()  # which overtakes it
    driver.set()
    assert store.add("refused", 0) == 0


def test_a_store_that_has_gone_counts_nobody():
    class Gone:
        def add(self, name: str, change: int) -> int:
            raise RuntimeError("Connection reset by peer")

    assert shared_tally(Gone(), "refused")(0) == 0  # type: ignore[arg-type]
