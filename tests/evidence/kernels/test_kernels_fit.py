"""Fitting measured kernels: hidden coefficients are found again, and what is written into a GPU's file reads back."""

import dataclasses
import shutil

import numpy as np
import pytest
from helpers.builders import CONFIG
from helpers.kernels import one_kernel

from kareus.calibrate.gpu_file import with_libraries, with_notes, with_values
from kareus.cli import main
from kareus.evidence import shipped_files
from kareus.evidence.kernels.errors import TABLE, shape_errors
from kareus.evidence.kernels.fit import fit_kernels, shape_folds
from kareus.evidence.kernels.predict import predict
from kareus.evidence.kernels.rows import KernelKind, kind_of, read_kernels
from kareus.evidence.kernels.stages import STAGES
from kareus.prediction.lines import read_lines
from kareus.workload.compose import compose

NCCL = shipped_files()["kernel_nccl"]


def collectives(gpu):
    header, lines = read_lines(NCCL)
    rows = read_kernels(kind_of(header), lines, NCCL)
    return rows.where(rows.gpu == gpu)


def composed(option, config=CONFIG):
    (only,) = compose((f"gpu={option}",), config)
    return only.workload.gpu


def test_hidden_coefficients_of_collectives_are_found():
    gpu = composed("h200")
    hidden = {"bus_efficiency": 0.8, "collective_latency_s": 2.5e-5, "own_shard_copy": 0.3, "switch_latency_s": 6e-5}
    truth = dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, **hidden))
    rows = collectives("h200")
    made = dataclasses.replace(rows, time_s=predict(rows, {"h200": truth}).time_s)
    fitted = fit_kernels({KernelKind.COLLECTIVE: made}, gpu, "h200")
    found = predict(made, {"h200": fitted}).time_s
    large = made.sizes["message_bytes"] >= 2**20
    errors = np.abs(found / made.time_s - 1)[large & (made.collective != "alltoall")]
    assert np.median(errors) < 0.01
    assert errors.mean() < 0.05
    assert fitted.coefficients.bus_efficiency == pytest.approx(0.8, rel=0.05)
    assert fitted.coefficients.gemm_efficiency == gpu.coefficients.gemm_efficiency


def test_power_of_collectives_changes_no_fit():
    gpu, rows = composed("a100-sxm4-80gb"), collectives("a100-sxm4-80gb")
    read = dataclasses.replace(rows, power_w=np.full(len(rows), 300.0))
    fitted = [fit_kernels({KernelKind.COLLECTIVE: own}, gpu, "a100-sxm4-80gb") for own in (rows, read)]
    assert fitted[0].coefficients == fitted[1].coefficients


def test_a_gpu_without_reducing_switches_gets_no_coefficient_of_them():
    gpu = composed("a100-sxm4-80gb")
    fitted = fit_kernels({KernelKind.COLLECTIVE: collectives("a100-sxm4-80gb")}, gpu, "a100-sxm4-80gb")
    assert fitted.coefficients.switch_efficiency == gpu.coefficients.switch_efficiency == 0


def test_a_written_fit_reads_back_with_its_errors(tmp_path):
    shutil.copytree(CONFIG, tmp_path / "config")
    path = tmp_path / "config/gpu/h200.yaml"
    before = composed("h200").coefficients
    command = ["fit", "--gpu", "h200", "--reference", str(NCCL), "--config-dir", str(tmp_path / "config")]
    table = tmp_path / "errors.csv"
    table.write_text(TABLE.read_text())
    assert main([*command, "--output", str(path), "--errors", str(table), "--force"]) == 0
    text, after = path.read_text(), composed("h200", tmp_path / "config")
    kept = [e for e in shape_errors() if e.gpu != "h200"]
    assert [e for e in shape_errors(table) if e.gpu != "h200"] == kept
    (own,) = (e for e in shape_errors(table) if e.gpu == "h200")
    assert (own.kind, own.group, own.power_percent) == (KernelKind.COLLECTIVE, "bfloat16 NCCL 2.29.2 burst", None)
    assert text.count("\n  bus_efficiency: ") == 1
    assert "kernel_uncertainty" not in text, "collectives alone do not tell how far off iterations are"
    assert after.coefficients.gemm_efficiency == before.gemm_efficiency
    assert after.libraries.keys() == composed("h200").libraries.keys()


def test_notes_and_libraries_are_replaced_not_added():
    text = "name: x\ncoefficients:\n  contention: 0.5\n"
    once = with_notes(with_libraries(text, {"vllm": {"attention_s": 1e-5}}), {"GEMM": "time 5 %"})
    twice = with_notes(with_libraries(once, {"vllm": {"attention_s": 2e-5}}), {"GEMM": "time 4 %"})
    assert "attention_s: 2.0e-05" in twice
    assert (twice.count("libraries:"), twice.count("# measured kernels: "), twice.count("coefficients:")) == (1, 1, 1)
    assert "1.0e-05" not in twice
    assert "time 5 %" not in twice


def test_values_of_a_gpu_are_not_those_of_its_libraries():
    text = "libraries:\n  vllm:\n    softmax_s: 1.0e-11\ncoefficients:\n  softmax_s: 0.0\n"
    changed = with_values(text, {"softmax_s": 3e-11}, {"softmax_s": "fitted"})
    assert changed == text.replace("softmax_s: 0.0", "softmax_s: 3.0e-11 # fitted")


def test_a_shape_is_left_out_with_all_that_ran_it():
    folds, rows = shape_folds(collectives("h200")), collectives("h200")
    assert set(folds.tolist()) == set(range(5))
    assert folds.tolist() == shape_folds(collectives("b200")).tolist()
    assert len(rows) == 120


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h100-96gb-hbm2e", "--reference", str(NCCL)], "--gpu h100-96gb-hbm2e: no row of the files names it"),
        (["--gpu", "h200", "--reference", str(NCCL), str(NCCL)], f"{NCCL}: has kernels (collective) as a file before"),
    ],
)
def test_files_that_cannot_be_fitted_to_are_one_line(capsys, arguments, said):
    assert main(["fit", *arguments, "--config-dir", str(CONFIG)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"kareus fit: {said}")


def test_energies_are_fitted_where_readings_count():
    gpu, sizes = composed("h200"), {"m": 4096, "n": 4096, "k": 4096}
    gemms = next(stage for stage in STAGES if stage.name == "GEMM bf16")
    for row in (one_kernel(**sizes, power_w=np.nan), one_kernel(**sizes, time_s=1e-5)):
        assert "gemm_j_per_flop" not in gemms.priors_of(gpu, row)
    assert gemms.priors_of(gpu, one_kernel(**sizes)) == gemms.priors
