"""`kareus clocks`: what a user sees and does after a run was killed."""

import pytest
from helpers.fake_device import FakeDevice, kill, start
from zeus.device.gpu import ZeusGPUInitError

from kareus.cli import main
from kareus.device import nvml, stage
from kareus.device.claims import FOLDER_VARIABLE, claim, setting_of


@pytest.fixture
def device(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    fake = FakeDevice(tmp_path)
    monkeypatch.setattr(stage, "open_devices", lambda: (fake,))
    return fake


def test_reset_restores_what_a_killed_run_left(device, capsys):
    kill(device)
    assert main(["clocks", "reset", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would reset the SM clock of GPU-fake\n"
    assert device.clock_mhz() == 1200
    assert main(["clocks", "reset"]) == 0
    assert capsys.readouterr().out == "reset the SM clock of GPU-fake\n"
    assert device.calls() == ["lock 1200", "reset"]
    assert setting_of(device.uuid) is None
    assert main(["clocks", "reset"]) == 0
    assert capsys.readouterr().out == "no GPU of this machine has a clock that Kareus left locked.\n"


def test_reset_of_a_gpu_by_name_does_not_ask_who_locked_it(device, capsys):
    device.lock_clock(900)
    assert main(["clocks", "reset", "0"]) == 0
    assert device.calls() == ["lock 900", "reset"]


def test_reset_leaves_the_clock_of_a_run_at_work_alone(device, capsys):
    holder = start(device, "python")
    try:
        assert main(["clocks", "reset"]) == 2
        assert f"1200 MHz by process {holder.pid}" in capsys.readouterr().err
        assert device.calls() == ["lock 1200"]
    finally:
        holder.kill()
        holder.wait()


@pytest.fixture
def three(tmp_path, monkeypatch):
    """Three GPUs, of each of which a killed run left the clock locked."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    fakes = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        fakes.append(FakeDevice(tmp_path / name, uuid=f"GPU-{name}"))
        with claim(f"GPU-{name}") as claimed:
            claimed.note(900)
        fakes[-1].locked.write_text("900")
    monkeypatch.setattr(stage, "open_devices", lambda: tuple(fakes))
    return fakes


@pytest.mark.parametrize("gpus", [[], ["0", "1", "2"]])
def test_reset_goes_on_past_a_gpu_in_use_and_says_so(three, capsys, gpus):
    with claim("GPU-a"):
        assert main(["clocks", "reset", *gpus]) == 2
    printed = capsys.readouterr()
    assert printed.out == "reset the SM clock of GPU-b\nreset the SM clock of GPU-c\n"
    assert printed.err.startswith("kareus clocks: GPU-a: in use, ")
    assert [device.locked.exists() for device in three] == [True, False, False]


def test_reset_names_all_gpus_in_use_in_one_line(three, capsys):
    with claim("GPU-a"), claim("GPU-c"):
        assert main(["clocks", "reset", "--dry-run"]) == 2
        assert capsys.readouterr().out == "would reset the SM clock of GPU-b\n"
        assert main(["clocks", "reset"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "reset the SM clock of GPU-b\n"
    assert printed.err.startswith("kareus clocks: 2 of 3 GPUs were not reset: GPU-a: in use, ")
    assert " GPU-c: in use, " in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("action", ["show", "reset"])
def test_an_unusable_claim_does_not_hide_the_other_gpus(three, tmp_path, capsys, action):
    path = tmp_path / "claims/GPU-a.claim"
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    assert main(["clocks", action]) == 2
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 2
    assert printed.err.startswith(f"kareus clocks: {path}: cannot be used (a symbolic link); remove it, or name")
    assert not (tmp_path / "victim").exists()


def test_a_user_without_rights_gets_one_line_and_a_claim(device, capsys):
    kill(device)
    device.allowed = False
    assert main(["clocks", "reset"]) == 2
    assert capsys.readouterr().err.startswith("kareus clocks: GPU-fake: no right to ")
    assert setting_of(device.uuid) is not None


def test_show_says_where_the_clock_is_and_what_was_set(device, capsys):
    assert main(["clocks", "show"]) == 0
    assert capsys.readouterr().out == (
        "0  Fake  GPU-fake  now 1410 MHz (nothing holds it down), can be locked from 900 to 1410 MHz; "
        "Kareus has set nothing\n"
    )
    pid = kill(device)
    assert main(["clocks", "show", "GPU-fake"]) == 0
    shown = capsys.readouterr().out
    assert "now 1200 MHz" in shown
    assert f"1200 MHz by process {pid} since" in shown


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(device, capsys):
    assert main(["clocks", "show", "7"]) == 2
    assert capsys.readouterr().err == "kareus clocks: 7: no such GPU; this machine has 0 (GPU-fake).\n"


def test_a_machine_without_gpus_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(nvml, "get_gpus", _no_gpus)
    assert main(["clocks", "show"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kareus clocks: no GPU can ")
    assert err.count("\n") == 1


def _no_gpus():
    raise ZeusGPUInitError("NVML unavailable.")


def test_the_name_that_a_driver_gives_is_escaped(device, capsys, monkeypatch):
    monkeypatch.setattr(device, "name", "GPU \x1b[31m", raising=False)
    assert main(["clocks", "show"]) == 0
    shown = capsys.readouterr().out
    assert "GPU \\x1b[31m" in shown
    assert shown.removesuffix("\n").isprintable()


def test_reset_puts_back_the_power_limit_that_was_there_before(device, capsys):
    with claim(device.uuid) as claimed:
        claimed.note(limit_w=500, former_w=650)
    assert main(["clocks", "show"]) == 0
    assert "limited it to 500 W" in capsys.readouterr().out
    assert main(["clocks", "reset", "--dry-run"]) == 0
    assert main(["clocks", "reset"]) == 0
    assert capsys.readouterr().out == ("would reset the power limit of GPU-fake\nreset the power limit of GPU-fake\n")
    assert device.calls() == ["limit 650"]


def test_reset_of_a_damaged_claim_says_all_that_it_resets(device, capsys, tmp_path):
    with claim(device.uuid):
        pass
    (tmp_path / "claims/GPU-fake.claim").write_text("{")
    device.set_power_limit(500)
    assert main(["clocks", "reset"]) == 0
    assert capsys.readouterr().out == "reset the SM clock, power limit and profiles of GPU-fake\n"
    assert device.calls() == ["limit 500", "reset", "limit 700"]
