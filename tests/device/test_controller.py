"""Clocks: what is asked for, what is really set, and that it is undone however the process ends."""

import errno
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from helpers.fake_device import FakeDevice, kill, start, wait_until

from kareus.device.claims import FOLDER_VARIABLE, claim, setting_of
from kareus.device.controller import DryClocks, controlled_clocks
from kareus.errors import DeviceError


@pytest.fixture(autouse=True)
def _own_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))


@pytest.fixture
def device(tmp_path: Path) -> FakeDevice:
    return FakeDevice(tmp_path)


def test_a_request_is_acknowledged_and_the_clock_read_back_later(device):
    with controlled_clocks(device, reads_back=True) as clocks:
        change = clocks.request(1200).result()
        assert change.requested_s <= change.locked_s
        assert device.clock_mhz() == 1200
        clocks.request(900).result()
        assert [(c.frequency_mhz, c.observed_mhz) for c in clocks.drain()] == [(1200, 1200), (900, 900)]


def test_a_clock_is_left_to_the_driver_until_the_next_request(device):
    with controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        clocks.leave()
        wait_until(lambda: not device.locked.exists())
        clocks.request(1200).result()
    assert device.calls() == ["lock 1200", "reset", "lock 1200", "reset"]


def test_a_reset_that_is_refused_is_raised_by_the_next_check(device):
    with pytest.raises(DeviceError, match="no right to set clocks"), controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        device.allowed = False
        clocks.leave()
        clocks.request(1200).exception()  # its thread has answered both
    device.allowed = True


def test_a_clock_that_does_not_arrive_is_reported_as_it_is(device):
    device.capped_mhz = 1000
    with controlled_clocks(device, reads_back=True) as clocks:
        clocks.request(1410).result()
        (change,) = clocks.drain()
    assert change.locked_s is not None
    assert change.observed_mhz == 1000


@pytest.mark.parametrize("reads_back", [False, True])
def test_a_clock_is_read_at_most_once_for_each_that_is_locked(device, monkeypatch, reads_back):
    """Also at the power limit, where it never is what it was locked to."""
    device.capped_mhz, reads = 1000, []
    monkeypatch.setattr(FakeDevice, "clock_mhz", lambda self: reads.append(True) or 1000)
    asked_mhz = (1410, 1200) * 3
    with controlled_clocks(device, reads_back=reads_back) as clocks:
        for frequency_mhz in asked_mhz:
            clocks.request(frequency_mhz).result()
        changes = clocks.drain()
    assert len(reads) <= (len(asked_mhz) + 1) * reads_back
    assert {change.observed_mhz for change in changes} == ({1000} if reads_back else {None})


def test_asking_does_not_wait_for_the_driver(device):
    device.lock_s = 0.5
    with controlled_clocks(device) as clocks:
        answer = clocks.request(1200)
        assert not answer.done()
        assert answer.result().locked_s is not None
        assert device.clock_mhz() == 1200


def test_an_overtaken_request_is_logged_as_never_set(device):
    device.lock_s = 0.1
    with controlled_clocks(device) as clocks:
        for frequency_mhz in (900, 1200, 1410):
            clocks.request(frequency_mhz)
        clocks.request(1410).result()
        changes = clocks.drain()
        assert clocks.drain() == []
    assert [c.frequency_mhz for c in changes] == [900, 1200, 1410]
    assert changes[1].locked_s is None
    assert "lock 1200" not in device.calls()
    assert [f"lock {c.frequency_mhz}" for c in changes if c.locked_s] == device.calls()[:-1]


def test_the_clock_that_is_set_already_is_not_set_again(device):
    with controlled_clocks(device) as clocks:
        first = clocks.request(1200)
        assert clocks.request(1200) is first
        first.result()
    assert device.calls() == ["lock 1200", "reset"]


def test_a_signal_to_a_forked_process_leaves_the_clock(device, tmp_path):
    with controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        worker = os.fork()
        if not worker:
            (tmp_path / "started").touch()
            time.sleep(60)
            os._exit(0)
        wait_until((tmp_path / "started").exists)
        os.kill(worker, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGTERM
        time.sleep(0.05)
        assert device.calls() == ["lock 1200"]
    assert device.calls() == ["lock 1200", "reset"]


def test_an_unsupported_clock_is_refused_with_its_neighbours(device):
    with controlled_clocks(device) as clocks, pytest.raises(DeviceError) as refused:
        clocks.request(1000)
    assert str(refused.value) == (
        "GPU-fake: Fake has no SM clock of 1000 MHz; the nearest are 900 and 1200 "
        "(`nvidia-smi -q -d SUPPORTED_CLOCKS`)."
    )
    assert device.calls() == []


def test_a_driver_that_refuses_is_heard_at_the_next_request(device):
    device.allowed = False
    with pytest.raises(DeviceError, match="no right to set clocks"), controlled_clocks(device) as clocks:
        answer = clocks.request(1200)
        assert isinstance(answer.exception(), DeviceError)
        device.allowed = True  # so that only the request is refused
        clocks.request(1200)


def test_a_refusal_is_raised_once_and_may_be_overcome(device):
    with controlled_clocks(device) as clocks:
        device.allowed = False
        clocks.request(1200).exception()
        device.allowed = True  # as a daemon that was started again
        with pytest.raises(DeviceError, match="no right to set clocks"):
            clocks.check()
        clocks.check()
        assert clocks.request(1200).result().locked_s is not None
    assert device.calls() == ["lock 1200", "reset"]


def test_a_restored_clock_is_set_again_once_requests_are_resumed(device):
    with controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        clocks.restore()
        assert clocks.rests
        assert isinstance(clocks.request(900).exception(), DeviceError)
        clocks.resume()
        clocks.request(1200).result()
    assert device.calls() == ["lock 1200", "reset", "lock 1200", "reset"]


def test_a_claim_that_cannot_be_written_is_a_refusal(device, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DeviceError, match="cannot be written"), controlled_clocks(device) as clocks:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            clocks.request(1200).exception()
        clocks.check()
    assert "lock 1200" not in device.calls()


def test_a_refusal_that_nobody_waited_for_is_raised_in_the_end(device):
    with pytest.raises(DeviceError, match="no right to set clocks"), controlled_clocks(device) as clocks:
        device.allowed = False
        clocks.request(1200).exception()
        device.allowed = True


def test_a_failed_restore_is_an_error_and_keeps_the_claim(device):
    with pytest.raises(DeviceError, match="no right to set clocks"), controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        device.allowed = False
    assert setting_of(device.uuid).frequency_mhz == 1200


def test_nothing_is_touched_unless_a_clock_is_asked_for(device):
    with controlled_clocks(device):
        assert setting_of(device.uuid) is None
    assert device.calls() == []


def test_an_exception_restores_the_clock(device):
    with pytest.raises(ZeroDivisionError), controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        raise ZeroDivisionError
    assert device.calls() == ["lock 1200", "reset"]
    assert setting_of(device.uuid) is None


def test_restoring_once_more_after_the_end_touches_nothing(device, tmp_path):
    with controlled_clocks(device) as clocks:
        clocks.request(1200).result()
    victim = tmp_path / "victim"
    victim.write_text("content")
    with victim.open("r+"):  # gets the descriptor that the claim had
        clocks.restore()
    assert victim.read_text() == "content"
    assert device.calls() == ["lock 1200", "reset"]


def test_what_will_be_set_is_noted_before_it_is_set(device, monkeypatch):
    noted = []
    lock = FakeDevice.lock_clock
    monkeypatch.setattr(
        FakeDevice, "lock_clock", lambda self, f: (noted.append(setting_of(self.uuid).frequency_mhz), lock(self, f))
    )
    with controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        clocks.request(900).result()
    assert noted == [1200, 900]


def test_two_processes_do_not_share_a_clock(device):
    holder = start(device, "python")
    try:
        with pytest.raises(DeviceError) as refused, controlled_clocks(device):
            pass
        assert str(refused.value).startswith(
            f"GPU-fake: in use, its clock is locked to 1200 MHz by process {holder.pid}"
        )
    finally:
        holder.kill()
        holder.wait()


def test_one_that_may_wait_gets_the_clock_when_it_is_free(device):
    order = []

    def wait() -> None:
        with claim(device.uuid, patience_s=60):
            order.append("second")

    with claim(device.uuid):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, None)])
def test_a_signal_restores_the_clock_and_ends_the_process(device, number, code):
    holder = start(device, "python")
    assert device.clock_mhz() == 1200
    holder.send_signal(number)
    assert holder.wait() == (code or -signal.SIGINT)
    assert device.calls() == ["lock 1200", "reset"]
    assert setting_of(device.uuid) is None


def test_a_signal_restores_the_clock_during_a_blocking_c_call(device):
    holder = start(device, "c")
    try:
        holder.send_signal(signal.SIGTERM)
        wait_until(lambda: not device.locked.exists())
        assert holder.poll() is None
        assert setting_of(device.uuid) is None
    finally:
        holder.kill()
        holder.wait()


def test_the_run_after_a_kill_restores_what_was_left(device, caplog):
    killed = kill(device)
    assert device.clock_mhz() == 1200
    with controlled_clocks(device):
        assert device.calls() == ["lock 1200", "reset"]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"GPU-fake: restored the clock, which was left locked to 1200 MHz by process {killed}"
    )


def test_an_unreadable_claim_counts_as_a_locked_clock(device, tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "GPU-fake.claim").write_bytes(b"\xff{")
    with controlled_clocks(device):
        pass
    assert device.calls() == ["reset"]


def test_a_claim_in_the_place_of_a_link_is_not_followed(device, tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "GPU-fake.claim").symlink_to(tmp_path / "victim")
    with pytest.raises(DeviceError, match="cannot be used"), controlled_clocks(device):
        pass
    assert not (tmp_path / "victim").exists()


def test_dry_clocks_say_what_would_be_set_once():
    said = []
    clocks = DryClocks(said.append)
    for frequency_mhz in (1200, 1200, 900):
        assert clocks.request(frequency_mhz).result().locked_s is None
    assert said == ["would lock the SM clock to 1200 MHz", "would lock the SM clock to 900 MHz"]
    assert clocks.drain() == []
