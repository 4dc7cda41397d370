"""The command `doctor`: a table, one JSON object, and an exit code by severity."""

import json

import pytest
from helpers.fake_device import FakeDevice

from kareus.cli import main
from kareus.device import stage as clocks
from kareus.device.claims import FOLDER_VARIABLE
from kareus.doctor import gpus, stage

ANSWER = {
    "torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.3", "gpus": ["Fake"] * 2, "overrides": {}, "ctas": {"2": 2},
    "refused": "",
}  # fmt: skip


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with one GPU, whose user may set clocks."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    device = FakeDevice(tmp_path)
    monkeypatch.setattr(clocks, "open_devices", lambda: (device,))
    monkeypatch.setattr(gpus, "has_capability", lambda _: True)
    monkeypatch.setattr(stage, "torch_answer", lambda: ANSWER)
    return device


def test_a_good_machine_ends_with_0(machine, capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] in ("ok", "absent")
    assert {"driver", "GPU 0", "setting clocks", "torch", "CTA limits", "Slurm"} <= {
        f["check"] for f in found["findings"]
    }


def test_every_line_that_is_not_ok_has_its_remedy_below(machine, monkeypatch, capsys):
    monkeypatch.setattr(gpus, "has_capability", lambda _: False)
    assert main(["doctor"]) == 3
    out = capsys.readouterr().out.splitlines()
    at = next(n for n, line in enumerate(out) if "setting clocks" in line)
    assert out[at].startswith("limited")
    assert out[at + 1].strip().startswith("-> run as root, or have an administrator start `zeusd")
    assert out[-1].endswith("1 limited")


def test_what_is_broken_ends_with_4(machine, monkeypatch, capsys):
    monkeypatch.setattr(stage, "torch_answer", lambda: ANSWER | {"overrides": {"NCCL_MAX_CTAS": "4"}})
    assert main(["doctor", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["state"] == "broken"
