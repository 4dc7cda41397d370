"""A power limit around a training: kept, judged and restored."""

import logging
from pathlib import Path

import pytest
import torch
from helpers.doc_examples import run_examples
from helpers.fake_device import FakeDevice
from torch import nn

from kareus.adapters import power_cap
from kareus.adapters.power_cap import cap_power
from kareus.device import actuators
from kareus.device.claims import FOLDER_VARIABLE, setting_of
from kareus.errors import ConfigError, DeviceError, EngineError


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    fake = FakeDevice(tmp_path)
    monkeypatch.setattr(power_cap, "gpu_of", lambda device: fake)
    return fake


def test_the_example_runs_and_the_limit_is_restored(gpu: FakeDevice) -> None:
    run_examples(cap_power, {"model": nn.Linear(1, 1)})
    assert gpu.calls() == ["limit 640", "limit 700"]
    assert setting_of(gpu.uuid) is None


@pytest.mark.parametrize(("drawn_w", "level"), [(299.0, logging.INFO), (320.0, logging.WARNING)])
def test_whether_it_was_kept_is_said_by_the_energy_counter(
    gpu: FakeDevice, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, drawn_w: float, level: int
) -> None:
    now = [10.0]
    monkeypatch.setattr(actuators.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(FakeDevice, "energy_j", lambda self: drawn_w * now[0])
    with caplog.at_level(logging.INFO, logger="kareus.device.actuators"):
        cap = cap_power(300, nn.Linear(1, 1))
        now[0] += 60
        assert cap.close() == pytest.approx(drawn_w)
        assert cap.close() is None
    (record,) = caplog.records
    assert record.levelno == level
    assert f"{drawn_w:.4g} W in the mean, with a power limit" in record.message


def test_a_counter_that_cannot_be_read_costs_the_judgement_alone(
    gpu: FakeDevice, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cap = cap_power(300, nn.Linear(1, 1))

    def fail(self: FakeDevice) -> float:
        raise DeviceError("GPU-fake: lost.")

    monkeypatch.setattr(FakeDevice, "energy_j", fail)
    assert cap.close() is None
    assert "whether it was kept is not known" in caplog.text
    assert gpu.calls() == ["limit 300", "limit 700"]


def test_profiles_of_the_vendor_are_set_alike(gpu: FakeDevice) -> None:
    cap_power("profile=max-q+llm-training", nn.Linear(1, 1)).close()
    assert gpu.calls() == ["request max-q+llm-training", "clear max-q+llm-training"]
    with pytest.raises(ConfigError, match="sets nothing that lasts"):
        cap_power("clocks", nn.Linear(1, 1))


@pytest.mark.parametrize("limit", [0, -5.0, float("nan")])
def test_a_limit_that_no_gpu_has_sets_nothing_and_is_refused(gpu: FakeDevice, limit: float) -> None:
    with pytest.raises(ConfigError, match=r"^power limit=.*: must be from 1 to"):
        cap_power(limit, nn.Linear(1, 1))
    assert gpu.calls() == []


def test_a_cpu_has_no_power_limit(gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_cap, "gpu_of", lambda device: None)
    with pytest.raises(EngineError, match="this rank computes on a CPU"):
        cap_power(300, nn.Linear(1, 1))
    assert torch.ones(1).device.type == "cpu"
