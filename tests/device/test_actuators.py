"""Settings that last: set, judged, and undone however the process ends."""

import logging
import os
import signal
import threading

import pynvml
import pytest
from helpers.doc_examples import run_examples
from helpers.fake_device import FakeDevice, wait_until

from kareus.device import actuators
from kareus.device.actuators import Actuator, ActuatorKind, actuated, parse_actuator
from kareus.device.claims import FOLDER_VARIABLE, claim, setting_of
from kareus.device.controller import controlled_clocks
from kareus.device.protocol import PROFILES
from kareus.errors import ConfigError, DeviceError

PROFILED = Actuator(kind=ActuatorKind.PROFILE, profiles=("max-q", "llm-training"))


def limited(limit_w):
    return Actuator(kind=ActuatorKind.POWER, limit_w=limit_w)


@pytest.fixture
def device(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    return FakeDevice(tmp_path)


def test_profiles_have_the_numbers_of_the_driver():
    assert {
        name: getattr(pynvml, f"NVML_POWER_PROFILE_{name.upper().replace('-', '_')}") for name in PROFILES
    } == PROFILES


@pytest.mark.parametrize("text", ["clocks", "power", "power=651.5W", "profile=max-q+training", "none"])
def test_an_actuator_is_read_back(text):
    assert parse_actuator(text).option == text


def test_the_example_runs():
    run_examples(Actuator)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "must be clocks, power, power=651W"),
        ("clocks=1200", "must be clocks, power"),
        ("power=much", "write the limit of one GPU in watts"),
        ("power=nan", "^power limit=nan: must be"),
        ("power=-5W", "^power limit=-5.0: must be"),
        ("profile", "must be one to 4, each once"),
        ("profile=max-q+max-q", "must be one to 4, each once"),
        ("profile=max-speed", "allowed: max-p, max-q"),
        (None, "must be clocks, power"),
    ],
)
def test_what_is_no_actuator_is_said(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_actuator(text)


def test_a_power_limit_is_set_and_the_former_one_comes_back(device):
    device.set_power_limit(650)
    with pytest.raises(KeyError), actuated(device, limited(500)):
        assert device.power_limit_w() == 500
        assert "500 W by process" in str(setting_of(device.uuid))
        raise KeyError
    assert device.calls() == ["limit 650", "limit 500", "limit 650"]
    assert setting_of(device.uuid) is None


@pytest.mark.parametrize("next_run", [controlled_clocks, lambda device: actuated(device, limited(400))])
def test_what_a_killed_run_limited_is_restored_by_the_next_one(device, next_run, caplog):
    child = os.fork()
    if not child:
        with actuated(device, limited(500)):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert device.power_limit_w() == 500
    with next_run(device):
        assert device.calls()[1] == "limit 700"
    assert f"restored the power limit, which was left limited to 500 W by process {child}" in caplog.text
    assert device.power_limit_w() == 700
    assert setting_of(device.uuid) is None


def test_a_signal_restores_the_power_limit_at_once(device):
    with pytest.raises(SystemExit), actuated(device, limited(500)):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: device.power_limit_w() == 700)
    assert device.calls() == ["limit 500", "limit 700"]


def test_a_power_limit_that_is_refused_leaves_nothing_behind(device):
    device.allowed = False
    with pytest.raises(DeviceError, match="no right"), actuated(device, limited(500)):
        raise AssertionError("it was refused")
    assert setting_of(device.uuid) is None
    with pytest.raises(DeviceError, match=r"Fake has no power limit of 900 W; must be from 200 to 700 W\.$"):
        actuated(device, limited(900)).__enter__()
    with limited_by_another(device), pytest.raises(DeviceError, match="in use, its power is limited to 300 W"):
        actuated(device, limited(500)).__enter__()


def limited_by_another(device):
    device.allowed = True
    return actuated(device, limited(300))


def test_profiles_are_asked_for_and_those_of_others_stay(device):
    device.request_power_profiles(["max-q"])
    with actuated(device, PROFILED):
        assert set(device.requested_power_profiles()) == {"max-q", "llm-training"}
        assert setting_of(device.uuid).profiles == "llm-training"
    assert device.requested_power_profiles() == ("max-q",)
    assert setting_of(device.uuid) is None


def test_profiles_that_a_killed_run_left_are_cleared_by_the_next_one(device, caplog):
    child = os.fork()
    if not child:
        with actuated(device, PROFILED):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with controlled_clocks(device):
        assert device.requested_power_profiles() == ()
    assert "restored the power profiles, which was left set to max-q+llm-training by process" in caplog.text


def test_a_profile_that_the_driver_has_not_is_refused(device):
    with pytest.raises(DeviceError, match=r"no power profile hpc; it has max-q, llm-training\.$"):
        actuated(device, Actuator(kind=ActuatorKind.PROFILE, profiles=("hpc",))).__enter__()
    assert device.calls() == []


@pytest.mark.parametrize("content", [b"{", b"x" * 300, b'{"process": 1, "profiles": "no-such", "since": "2026-01-01"}'])
def test_a_damaged_claim_puts_back_clock_limit_and_profiles(device, content, tmp_path, caplog):
    with actuated(device, limited(500)):
        pass
    device.lock_clock(900)
    device.set_power_limit(500)
    device.request_power_profiles(["max-q"])
    (tmp_path / "claims/GPU-fake.claim").write_bytes(content)
    with actuated(device, Actuator(kind=ActuatorKind.NONE)):
        assert not device.locked.exists()
        assert device.power_limit_w() == 700
        assert device.requested_power_profiles() == ()
    assert "its power limit is 700 W now, as after boot" in caplog.text


def test_a_damaged_claim_puts_back_the_limit_where_profiles_cannot_be_read(device, tmp_path, monkeypatch):
    (tmp_path / "claims").mkdir(exist_ok=True)
    (tmp_path / "claims" / f"{device.uuid}.claim").write_text("rubbish")
    device.set_power_limit(300.0)

    def fail(self):
        raise DeviceError("GPU-fake: not supported.")

    monkeypatch.setattr(type(device), "requested_power_profiles", fail)
    with actuated(device, Actuator(kind=ActuatorKind.NONE)):
        pass
    assert device.power_limit_w() == 700.0


def test_a_damaged_claim_of_a_gpu_without_limits_resets_the_clock(device, tmp_path, monkeypatch):
    with claim(device.uuid):
        pass
    (tmp_path / "claims/GPU-fake.claim").write_bytes(b"{")

    def refuse(self):
        raise DeviceError("GPU 0: not supported.")

    monkeypatch.setattr(FakeDevice, "default_power_limit_w", refuse)
    with controlled_clocks(device):
        pass
    assert device.calls() == ["reset"]


def test_nothing_looks_at_a_gpu_that_is_let_go_of(device):
    with actuated(device, limited(500)):
        assert any(thread.name == "actuator" for thread in threading.enumerate())
    assert not any(thread.name == "actuator" for thread in threading.enumerate())


def judged(device, actuator, caplog, meddle=lambda: None):
    with caplog.at_level(logging.INFO, logger="kareus.device.actuators"), actuated(device, actuator) as gpu:
        meddle()
        wait_until(lambda: gpu._clocks_mhz)
        gpu.judged()
    return caplog.records[-1].levelno, caplog.records[-1].message


def test_a_check_says_what_was_in_force_and_which_clocks_were_seen(device, caplog, monkeypatch):
    monkeypatch.setattr(actuators, "LOOK_S", 0.01)
    level, message = judged(device, limited(300), caplog)
    assert (level, "clocks from 1410 MHz, with a power limit of 300 W, which was kept." in message) == (
        logging.INFO,
        True,
    )
    level, message = judged(device, limited(300), caplog, lambda: device.set_power_limit(600))
    assert level == logging.WARNING
    assert "no longer in force: now 600 W; see who else sets it." in message
    level, message = judged(device, PROFILED, caplog)
    assert (level, "power profiles max-q+llm-training, in force." in message) == (logging.INFO, True)
    level, message = judged(device, PROFILED, caplog, lambda: device.clear_power_profiles(["max-q"]))
    assert (level, "not in force: max-q; see who else sets them." in message) == (logging.WARNING, True)
    level, message = judged(device, Actuator(kind=ActuatorKind.NONE), caplog)
    assert (level, message.endswith("nothing was set.")) == (logging.INFO, True)
    assert device.calls()[-1] != "reset"
