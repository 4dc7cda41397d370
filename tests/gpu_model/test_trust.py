"""Errors of the GPU model are quoted for the numbers that they were estimated with, and for no others."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from helpers.builders import CONFIG, a100, protocol, simulated

from kareus.gpu_model import trust as module
from kareus.gpu_model.coefficients import COEFFICIENTS, GpuCoefficients
from kareus.gpu_model.gpu import ClockChangeCost, FrequencyRange, Gpu
from kareus.gpu_model.trust import numbers_of, trust
from kareus.testbed.protocol import open_testbed
from kareus.workload.compose import compose

NOT_MEASURED = "errors not measured for this GPU"


def composed(*overrides: str, config: Path = CONFIG) -> Gpu:
    (only,) = compose(overrides, config)
    return only.workload.gpu


def test_the_shipped_gpu_that_was_fitted_says_how_far_off_it_is() -> None:
    assert trust(composed("gpu=a100-sxm4-40gb")).startswith(
        "9 of 10 planned iterations are within 4.3 % of time and 4.0 %"
    )


def test_a_shipped_gpu_that_was_not_fitted_says_so() -> None:
    assert trust(composed("gpu=h100-96gb-hbm2e")) == NOT_MEASURED


@pytest.mark.parametrize(("gpu", "has_power"), [("a100-sxm4-80gb", 0), ("b200", 1), ("h100-sxm5-80gb", 0), ("h200", 1)])
def test_gpus_fitted_to_kernels_say_what_was_held_out(gpu: str, has_power: int) -> None:
    said = trust(composed(f"gpu={gpu}"))
    assert said.startswith("9 of 10 single kernels are within "), "run make refitted"
    assert said.endswith("planned iterations were not measured (docs/trust.md in Kareus' repository)")
    assert said.count("of energy") == has_power
    assert trust(composed(f"gpu={gpu}", "gpu.l2_mib=30")) == NOT_MEASURED


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(GpuCoefficients)])
def test_errors_are_not_known_with_another_coefficient(name: str) -> None:
    gpu = a100()
    own, known = getattr(gpu.coefficients, name), COEFFICIENTS[name]
    other = own * 0.999 if own * 0.999 > known.least else known.least + 1e-9
    changed = dataclasses.replace(gpu.coefficients, **{name: other})
    assert trust(dataclasses.replace(gpu, coefficients=changed)) == NOT_MEASURED


OF_NO_PREDICTION = {
    "ambient_c": 35.0,
    "host_gb_per_s": 50.0,
    "host_memory_gb_per_s": 76.8,
    "clock_change": ClockChangeCost(latency_s=0.02, pause_s=0.0, energy_j=0.0, interval_s=0.1),
    "job_gpus": 64,
    "memory_gib": 79.1,
    "search_frequencies": FrequencyRange(minimum_mhz=1200, maximum_mhz=1410, stride_mhz=15),
}


OF_KERNELS = {
    "nvlink_domain": 16,
    "gemm_tiles": ((128, 128), (128, 256)),
    "attention_tile": (64, 128),
    "libraries": {"vllm": {"attention_s": 1e-5}},
    "switches_reduce": True,
    "waiting_shares": ((900.0, 0.7), (1410.0, 1.0)),
}


@pytest.mark.parametrize(
    "name", sorted({f.name for f in dataclasses.fields(Gpu)} - {"coefficients", "uncertainty", "kernel_uncertainty"})
)
def test_errors_are_not_known_of_other_hardware(name: str) -> None:
    gpu = a100()
    if name in OF_NO_PREDICTION:
        assert trust(dataclasses.replace(gpu, **{name: OF_NO_PREDICTION[name]})) == trust(gpu)
        return
    other = OF_KERNELS.get(name) or (gpu.name + "-2" if name == "name" else getattr(gpu, name) * 2)
    searched = dataclasses.replace(gpu.search_frequencies, maximum_mhz=2820) if name == "maximum_clock_mhz" else None
    changed = {name: other} | ({"search_frequencies": searched} if searched else {})
    assert trust(dataclasses.replace(gpu, **changed)) == NOT_MEASURED


def test_errors_are_not_known_under_other_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = a100()
    assert trust(gpu) != NOT_MEASURED
    monkeypatch.setattr(module, "MODEL_VERSION", "another")
    assert trust(gpu) == NOT_MEASURED


@pytest.mark.parametrize("override", ["gpu.coefficients.contention=0.7", "gpu.hbm_gb_per_s=2039", "gpu.name=mine"])
def test_overriding_a_number_voids_the_estimate(override: str) -> None:
    gpu = composed(override)
    assert trust(gpu) == NOT_MEASURED
    assert NOT_MEASURED in open_testbed(simulated(), gpu, protocol().predecessor_power_w, 0).identity.detail


def test_overriding_with_the_same_value_changes_nothing() -> None:
    assert numbers_of(composed("gpu.hbm_gb_per_s=1555", "gpu.coefficients.throttle_step_mhz=401.1")) == numbers_of(
        composed()
    )


def test_the_documented_copy_of_a_gpu_has_no_estimate(tmp_path: Path) -> None:
    shutil.copytree(CONFIG, tmp_path / "config")
    page = (CONFIG.parent / "docs/howto/gpu.md").read_text()
    (command,) = re.findall(r"^sed .*\\\n.*$", page, re.MULTILINE)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    gpu = composed("gpu=a800-sxm4-40gb", config=tmp_path / "config")
    assert (gpu.name, gpu.uncertainty is None) == ("A800-SXM4-40GB", False)
    assert trust(gpu) == NOT_MEASURED


def test_estimates_name_their_numbers_as_yaml_text() -> None:
    loaded = yaml.safe_load((CONFIG / "gpu/a100-sxm4-40gb.yaml").read_text())
    assert loaded["uncertainty"]["estimated_for"] == numbers_of(a100()) == composed().uncertainty.estimated_for


def test_an_estimate_without_numbers_is_accepted_not_quoted(tmp_path: Path) -> None:
    shutil.copytree(CONFIG, tmp_path / "config")
    path = tmp_path / "config/gpu/a100-sxm4-40gb.yaml"
    path.write_text(re.sub(r"^  estimated_for:.*\n", "", path.read_text(), flags=re.MULTILINE))
    gpu = composed("gpu=a100-sxm4-40gb", config=tmp_path / "config")
    assert gpu.uncertainty is not None
    assert gpu.uncertainty.estimated_for is None
    assert trust(gpu) == NOT_MEASURED
