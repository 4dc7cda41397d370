"""What the doctor says of GPUs, on GPUs that are folders; it sets no clock."""

import socket

import pytest
from helpers.fake_device import FakeDevice, kill

from kareus.device.claims import FOLDER_VARIABLE
from kareus.doctor.diagnoses import State
from kareus.doctor.gpus import HOST_PORT, SOCKET, gpu_findings, has_capability, rights
from kareus.errors import DeviceError

ROOT, USER = "CapEff:\t000001ffffffffff\n", "Name:\tx\nCapEff:\t0000000000000000\n"


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    for name in (SOCKET, HOST_PORT):
        monkeypatch.delenv(name, raising=False)


def by_check(devices):
    return {finding.check: finding for finding in gpu_findings(lambda: devices)}


def test_every_gpu_has_a_line_and_no_clock_is_set(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    devices = [FakeDevice(tmp_path / name, uuid=f"GPU-{name}") for name in ("a", "b")]
    found = by_check(devices)
    assert list(found) == [
        "driver",
        "GPU 0",
        "GPU 1",
        "setting clocks",
        "setting power limits",
        "setting power profiles",
    ]
    assert (found["driver"].result, found["GPU 1"].state) == ("1.0", State.OK)
    assert "3 clocks" in found["GPU 0"].result
    assert [device.calls() for device in devices] == [[], []]


def test_power_limits_are_named_with_what_remains_without_the_right(tmp_path, monkeypatch):
    device = FakeDevice(tmp_path)
    for may, state in ((True, State.OK), (False, State.ABSENT)):
        monkeypatch.setattr("kareus.doctor.gpus.has_capability", lambda _, may=may: may)
        finding = by_check([device])["setting power limits"]
        assert (finding.state, finding.result.split(";")[0]) == (state, "from 200 to 700 W, now 700")
    assert "--actuator none" in finding.remedy

    def refuse(self):
        raise DeviceError("GPU 0: get_power_management_limit_constraints failed (Not Supported); see `nvidia-smi -q`.")

    monkeypatch.setattr(FakeDevice, "power_limits_w", refuse)
    assert by_check([device])["setting power limits"].state is State.ABSENT


def test_profiles_of_the_vendor_are_named_where_the_driver_has_some(tmp_path, monkeypatch):
    monkeypatch.setattr("kareus.doctor.gpus.has_capability", lambda _: True)
    finding = by_check([FakeDevice(tmp_path)])["setting power profiles"]
    assert (finding.state, finding.result.split(";")[0]) == (State.OK, "max-q, llm-training")
    assert "--actuator profile=max-q+llm-training" in finding.result
    assert by_check([FakeDevice(tmp_path, profiles=())])["setting power profiles"].state is State.ABSENT


def test_a_clock_that_a_killed_run_left_is_named(tmp_path):
    device = FakeDevice(tmp_path)
    kill(device)
    finding = by_check([device])["GPU 0"]
    assert (finding.state, "kareus clocks reset" in finding.remedy) == (State.LIMITED, True)


def test_what_holds_a_clock_down_is_named(tmp_path):
    finding = by_check([FakeDevice(tmp_path, capped_mhz=1200)])["GPU 0"]
    assert (finding.state, "held down by power-limit" in finding.result) == (State.LIMITED, True)


def test_a_gpu_that_does_not_answer_is_broken(tmp_path):
    class Silent(FakeDevice):
        def energy_j(self):
            raise DeviceError("GPU 0: get_total_energy_consumption failed.")

    found = by_check([Silent(tmp_path), FakeDevice(tmp_path, uuid="GPU-other")])
    assert [found[f"GPU {n}"].state for n in (0, 1)] == [State.BROKEN, State.OK]


def test_a_machine_without_gpus_plans_on_the_simulated_testbed():
    def none():
        raise DeviceError("no GPU can be used here (no driver); check `nvidia-smi` on this machine.")

    (finding,) = gpu_findings(none)
    assert (finding.check, finding.state) == ("GPUs", State.LIMITED)
    assert finding.result.endswith("(no driver)")
    assert "simulated testbed" in finding.remedy


def test_zeusd_is_asked_whether_it_listens(tmp_path, monkeypatch):
    path = tmp_path / "zeusd.sock"
    monkeypatch.setenv(SOCKET, str(path))
    assert rights().state is State.BROKEN
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        assert rights().state is State.OK
    monkeypatch.delenv(SOCKET)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv(HOST_PORT, f"127.0.0.1:{listening.getsockname()[1]}")
        assert rights().state is State.OK
    assert rights().state is State.BROKEN
    monkeypatch.setenv(HOST_PORT, "nonsense")
    assert rights().state is State.BROKEN


@pytest.mark.parametrize(("status", "may"), [(ROOT, True), (USER, False), ("", False), ("CapEff:\tx\n", False)])
def test_rights_are_those_of_the_process(tmp_path, status, may):
    (tmp_path / "status").write_text(status)
    assert has_capability(tmp_path / "status") is may
    assert not has_capability(tmp_path / "missing")
