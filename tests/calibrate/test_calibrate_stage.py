"""The command `calibrate`: the file that it writes, and what it refuses."""

import shutil

import pytest
from helpers.builders import CONFIG
from helpers.fake_device import FakeDevice

from kareus.calibrate import stage
from kareus.calibrate.rehearsal import hidden_gpu
from kareus.cli import main
from kareus.device.claims import FOLDER_VARIABLE, claim
from kareus.errors import DeviceError
from kareus.workload.compose import compose, with_engine

OPTION = "a100-sxm4-40gb"


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """A folder in which `calibrate` has run for one virtual minute."""
    folder = tmp_path_factory.mktemp("calibration")
    shutil.copytree(CONFIG, folder / "config")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["calibrate", f"gpu={OPTION}", "seed=2", "--minutes", "1"]) == 0
    return folder


def composed(option, config=CONFIG):
    (only,) = compose(with_engine([f"gpu={option}"]), config)
    return only.workload.gpu


def test_the_file_is_a_gpu_with_what_was_calibrated(rehearsed):
    found, start = composed(f"{OPTION}-rehearsal", rehearsed / "config"), composed(OPTION)
    hidden = hidden_gpu(start, 2)
    assert found.name == f"{start.name}-rehearsal"
    assert found.uncertainty is None
    assert found.coefficients.gemm_efficiency == pytest.approx(hidden.coefficients.gemm_efficiency, rel=0.02)
    assert found.static_power_w == pytest.approx(hidden.static_power_w, rel=0.05)
    assert found.coefficients.isolation_overhead == start.coefficients.isolation_overhead


def test_the_file_says_where_its_numbers_come_from(rehearsed):
    text = (rehearsed / f"config/gpu/{OPTION}-rehearsal.yaml").read_text()
    assert "simulated A100-SXM4-40GB with hidden coefficients" in text
    assert "NOT OF A REAL GPU" in text.replace("\n# ", " ")
    assert "Not identified by these measurements" in text
    assert "# measured kernels: GEMM, " in text
    assert max(map(len, text.splitlines())) <= 120


def test_measurements_are_in_the_store(rehearsed):
    assert list((rehearsed / "results/measurements").rglob("measurements.parquet"))
    assert list((rehearsed / "results/measurements").rglob("heat_readings.parquet"))


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--minutes", "0.5"], "--minutes 0.5: must be between 1 and 600."),
        (["gpu=h200,b200"], "2 combinations: a calibration is of one GPU; give one value for each key."),
        (
            [f"gpu={OPTION}", "--output", f"config/gpu/{OPTION}.yaml"],
            f"config/gpu/{OPTION}.yaml: the calibration starts from gpu={OPTION}; give --output another name.",
        ),
        (
            [f"gpu={OPTION}"],
            f"config/gpu/{OPTION}-rehearsal.yaml: there is a GPU's file of this name; give another --output, or "
            "--force.",
        ),
        (
            ["--output", "other.yaml", "protocol.settle_s=60", "--minutes", "1"],
            "--minutes 1: idle and sustained power took 100 s of it; give more.",
        ),
    ],
)
def test_refusals_are_one_line(rehearsed, monkeypatch, capsys, arguments, refusal):
    monkeypatch.chdir(rehearsed)
    assert main(["calibrate", *arguments]) == 2
    assert capsys.readouterr().err == f"kareus calibrate: {refusal}\n"


def test_a_machine_without_gpus_is_refused(rehearsed, monkeypatch, capsys):
    monkeypatch.chdir(rehearsed)
    assert main(["calibrate", "gpu=h200", "testbed=cuda"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kareus calibrate: ")


def test_a_claimed_or_busy_gpu_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.setattr(stage, "LOOK_S", 0.0)
    device = FakeDevice(tmp_path)
    with pytest.raises(DeviceError, match="GPU-fake: something runs on Fake; measure once it is idle"):
        stage.check_idle(device)
    with claim(device.uuid), pytest.raises(DeviceError, match="GPU-fake: in use"):
        stage.check_idle(device)
    monkeypatch.setattr(FakeDevice, "throttle_reasons", lambda _: ("idle",))
    stage.check_idle(device)
