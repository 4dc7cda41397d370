"""Errors of what was left out are read back as fits wrote them, for every group that `validate` lists."""

from helpers.builders import CONFIG

from kareus.evidence.kernels import fit_output
from kareus.evidence.kernels.score import KernelErrors
from kareus.evidence.left_out import written_left_out

BOTH = KernelErrors(rows=9, time_mape_pct=5.25, power_mape_pct=6.0, energy_mape_pct=None, signed_median_pct=0.0)


def test_what_a_fit_writes_reads_back(tmp_path):
    (tmp_path / "gpu").mkdir()
    note = fit_output._shown(BOTH, BOTH)
    text = fit_output.with_notes("coefficients: {}\n", {"GEMM fp8, fp8 VLLM 0.24.0 burst": note})
    (tmp_path / "gpu/mine.yaml").write_text(text)
    group = "mine fp8 VLLM 0.24.0 burst"
    assert written_left_out(tmp_path) == {("GEMM", group, "time"): 5.2, ("GEMM", group, "power"): 6.0}


def test_every_fitted_group_has_errors_left_out():
    found = written_left_out(CONFIG)
    kinds = [kind for kind, _, quantity in found if quantity == "time"]
    assert {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} == {
        "GEMM": 9, "collectives": 4, "attention": 3, "iterations": 4
    }  # fmt: skip
    assert sum(quantity == "power" for _, _, quantity in found) == 7
    assert found["iterations", "dgxc", "time"] > 0
