"""Measuring changes of clock, rehearsed on a driver that takes its time: what it finds, restores, asks and writes."""

import contextlib
import dataclasses
import json
import math
import subprocess
import sys
import threading
import time
from datetime import date

import pytest
import yaml
from helpers.fake_device import FakeDevice

from kareus.cli import main
from kareus.device import stage as clocks
from kareus.device.claims import FOLDER_VARIABLE
from kareus.device.held_clock import ClockOutcome
from kareus.doctor import change_timing
from kareus.doctor.change_timing import (
    ClockChangeTimes,
    Load,
    MeasuredChanges,
    clocks_between,
    measured_changes,
    process_load,
)
from kareus.doctor.changes_answer import change_findings, gpu_text
from kareus.doctor.diagnoses import State
from kareus.errors import DeviceError

LATENCY_S, PIECE_S, COUNTER_S = 0.03, 0.002, 0.02


@dataclasses.dataclass
class SlowDevice(FakeDevice):
    """Its clock holds some time after a lock, and its counter moves in steps; idle until something is measured."""

    changed_s: float = 0.0
    former_mhz: int = 1410
    reasons: tuple[str, ...] = ("idle",)

    def lock_clock(self, frequency_mhz):
        self.former_mhz = super().clock_mhz()
        super().lock_clock(frequency_mhz)
        self.changed_s = time.monotonic()

    def clock_mhz(self):
        return super().clock_mhz() if time.monotonic() - self.changed_s > LATENCY_S else self.former_mhz

    def throttle_reasons(self):
        return self.reasons

    def energy_j(self):
        return 200.0 * (time.monotonic() // COUNTER_S) * COUNTER_S


@contextlib.contextmanager
def busy(device: SlowDevice):
    load, ended = Load(), threading.Event()

    def work():
        while not ended.is_set():
            start_s = time.monotonic()
            time.sleep(PIECE_S)
            load.add(f"{start_s} {time.monotonic()}\n")

    device.reasons = ()
    worker = threading.Thread(target=work)
    worker.start()
    while not load.has_worked:
        time.sleep(PIECE_S)
    try:
        yield load
    finally:
        ended.set()
        worker.join()
        device.reasons = ("idle",)


@pytest.fixture
def device(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    for name, value in {"ROUNDS": 1, "SETTLED_S": 0.02, "WATCHED_S": 0.15, "POWER_S": 0.05}.items():
        monkeypatch.setattr(change_timing, name, value)
    one = SlowDevice(tmp_path)
    monkeypatch.setattr(clocks, "open_devices", lambda: (one,))
    monkeypatch.setattr(change_timing, "process_load", lambda _: busy(one))
    return one


def test_what_the_driver_does_is_found_and_undone(device):
    began_s = time.monotonic()
    measured = measured_changes([device], lambda _: busy(device))
    assert len(measured.changes) == 3 * 2
    assert measured.lost == 0
    assert LATENCY_S <= measured.latency_s < time.monotonic() - began_s  # however busy the machine is
    assert all(one.latency_s >= max(LATENCY_S, one.accepted_s) for one in measured.changes)
    assert measured.counter_period_s >= 0.9 * COUNTER_S
    assert measured.counter_step_j == pytest.approx(200 * COUNTER_S)
    assert (measured.limit_outcome, measured.delays, measured.interval_s) == (ClockOutcome.KEPT, (), None)
    assert device.calls()[-1] == "reset"
    assert not device.locked.exists()


def test_clocks_that_never_come_are_lost(device, monkeypatch):
    monkeypatch.setattr(change_timing, "PATIENCE_S", 0.1)
    device.cap(1200, "power-limit")
    measured = measured_changes([device], lambda _: busy(device))
    assert all(math.isinf(one.latency_s) for one in measured.changes if 1410 in (one.from_mhz, one.to_mhz))
    assert measured.lost >= 4
    assert next(change_findings(measured)).state is State.LIMITED


def test_a_host_that_hardly_gets_a_turn_still_reads_the_clock_at_the_limit(device, monkeypatch):
    """Its only reading comes after the whole time."""
    monkeypatch.setattr(change_timing, "POWER_S", -1.0)
    device.cap(1200, "power-limit")
    measured = measured_changes([device], lambda _: busy(device))
    assert measured.limit_mhz == 1200


def test_a_load_that_dies_ends_it_with_the_clock_restored(device):
    @contextlib.contextmanager
    def dying(_):
        load = Load()
        load.add("0 1")
        yield load

    with pytest.raises(DeviceError, match="the load has stopped"):
        measured_changes([device], dying)
    assert not device.locked.exists()


def test_nothing_is_locked_unless_somebody_agrees(device, capsys):
    assert main(["doctor", "--measure"]) == 2
    assert "nothing was done; it locks clocks, so answer y, or give --yes." in capsys.readouterr().err
    assert device.calls() == []


def test_a_gpu_that_works_is_left_alone(device, capsys, monkeypatch):
    monkeypatch.setattr("kareus.calibrate.stage.LOOK_S", 0.0)
    device.reasons = ()
    assert main(["doctor", "--measure", "--yes"]) == 2
    assert "something runs on Fake" in capsys.readouterr().err
    assert device.calls() == []


def test_the_file_is_one_of_the_group_gpu(device, tmp_path, capsys):
    output, began_s = tmp_path / "here.yaml", time.monotonic()
    assert main(["doctor", "--measure", "--yes", "--json", "--gpu", "h100-sxm5-80gb", "--output", str(output)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in found["findings"]] == [
        "changes of clock", "energy counter", "clock at the power limit", "collectives under locks", "written",
    ]  # fmt: skip
    written = yaml.safe_load(output.read_text())
    assert written["defaults"] == ["h100-sxm5-80gb", "_self_"]
    assert LATENCY_S <= written["clock_change"]["latency_s"] < time.monotonic() - began_s
    output.write_text("mine")
    assert main(["doctor", "--measure", "--yes", "--gpu", "h100-sxm5-80gb", "--output", str(output)]) == 2
    assert output.read_text() == "mine"


WORKING = """\
import os, subprocess, sys, time
if "child" not in sys.argv:
    subprocess.Popen([sys.executable, __file__, "child"])
sys.stderr.write("warning\\n" * 20000)
sys.stdout.write("NCCL INFO of no interest\\n")
while True:
    start = time.monotonic()
    time.sleep(0.002)
    sys.stdout.write(f"{start:.6f} {time.monotonic():.6f}\\n")
    sys.stdout.flush()
"""
"""A load with a rank of its own, more warnings than a pipe holds, and lines that are no piece of work."""


def test_a_load_is_read_and_gone_with_all_its_processes(tmp_path, monkeypatch):
    script = tmp_path / "load.py"
    script.write_text(WORKING)
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **more: real([sys.executable, str(script)], **more))
    monkeypatch.setattr(change_timing, "ENDED_S", 60.0)
    threads = threading.active_count()
    with process_load([0]) as load:
        begin_s = time.monotonic()
        time.sleep(0.1)
        assert 0.002 <= load.usual_s(begin_s, time.monotonic()) <= time.monotonic() - begin_s
    assert threading.active_count() == threads, "a rank holds the pipe open, which is read to its end"


def test_a_load_that_cannot_run_says_why(monkeypatch):
    real = subprocess.Popen
    code = "import sys; sys.exit('no CUDA here')"
    monkeypatch.setattr(subprocess, "Popen", lambda _, **more: real([sys.executable, "-c", code], **more))
    with pytest.raises(DeviceError, match=r"the load does not run on GPU 0,1: no CUDA here\."), process_load([0, 1]):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--measure", "--gpu", "h900", "--output", "mine.yaml"], "h900"),
        (["--yes"], "--yes: goes with --measure; give that, too"),
        (["--measure", "--gpu", "h200"], "go together"),
        (["--measure", "--gpu", "h200", "--output", "h200.yaml"], "based on itself"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(device, arguments, message, capsys):
    assert main(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert device.calls() == []


CHANGE = ClockChangeTimes(from_mhz=900, to_mhz=1410, accepted_s=0.01, latency_s=0.02, pause_s=0.001)
MEASURED = MeasuredChanges(
    changes=(CHANGE,),
    limit_mhz=1320.0,
    limit_outcome=ClockOutcome.POWER_LIMITED,
    counter_period_s=0.1,
    counter_step_j=5.0,
    delays=((0.25, 0.0), (0.1, 0.015), (0.05, 0.08)),
)


def test_the_shortest_period_that_delays_nothing_counts(tmp_path):
    assert MEASURED.interval_s == 0.1
    text = gpu_text(MEASURED, FakeDevice(tmp_path), "h200", date(2026, 11, 27))
    assert yaml.safe_load(text)["clock_change"] == {"latency_s": 0.02, "pause_s": 0.001, "interval_s": 0.1}
    delayed = dataclasses.replace(MEASURED, delays=((0.25, 0.5), (0.1, 0.6)))
    text = gpu_text(delayed, FakeDevice(tmp_path), "h200", date(2026, 11, 27))
    assert "interval_s" not in yaml.safe_load(text)["clock_change"]


@pytest.mark.parametrize(
    ("changes", "check", "state"),
    [
        ({}, "clock at the power limit", State.LIMITED),
        ({"limit_outcome": ClockOutcome.KEPT}, "clock at the power limit", State.OK),
        ({"delays": ()}, "collectives under locks", State.ABSENT),
        ({"delays": ((0.25, 0.5),)}, "collectives under locks", State.LIMITED),
        ({"counter_period_s": math.inf}, "energy counter", State.BROKEN),
        ({"changes": (dataclasses.replace(CHANGE, latency_s=math.inf),)}, "changes of clock", State.BROKEN),
    ],
)
def test_what_is_amiss_has_a_remedy(changes, check, state):
    (found,) = [one for one in change_findings(dataclasses.replace(MEASURED, **changes)) if one.check == check]
    assert found.state is state
    assert bool(found.remedy) == (state not in (State.OK, State.ABSENT))


def test_clocks_are_those_that_the_driver_has():
    assert clocks_between(range(210, 1981, 15)) == [1185, 1485, 1785, 1980]
