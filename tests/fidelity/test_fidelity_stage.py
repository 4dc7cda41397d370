"""The command `validate` on small files: its text, its one JSON object, its errors."""

import json

import pytest
from helpers.builders import CONFIG

from kareus.cli import main

WORKLOAD = "qwen3-1.7b,1,4,2,2,2,1024"
FRONTIERS = f"""\
method,model,cp,tp,pp,num_microbatches,microbatch_size,seq_len,point,iteration_time_s,total_energy_j,stage0_mhz,stage1_mhz
sequential+perseus,{WORKLOAD},0,0.10,40.0,F1410;F1410;B1410;B1410,F1410;B1410;F1410;B1410
sequential+perseus,{WORKLOAD},1,0.12,35.0,F1200;F1200;B1200;B1200,F1200;B1200;F1200;B1200
sequential+perseus,{WORKLOAD},2,0.13,36.0,F1170;F1170;B1170;B1170,F1170;B1170;F1170;B1170
kareus,{WORKLOAD},0,0.50,30.0,,
"""
REDUCTIONS = f"""\
table,model,cp,tp,pp,num_microbatches,microbatch_size,seq_len,metric,sequential+perseus,nanobatching+perseus,kareus
max_throughput,{WORKLOAD},time_reduction_pct,0.0,,5.0
frontier,{WORKLOAD},iso_time_energy_reduction_pct,,,12.0
ablation_nanobatching,{WORKLOAD},energy_increase_pct,,,10.0
"""


def answer(tmp_path, capsys, text, *arguments):
    path = tmp_path / "given.csv"
    path.write_text(text)
    assert main(["validate", "--reference", str(path), "--config-dir", str(CONFIG), *arguments]) == 0
    return capsys.readouterr().out


def test_frontiers_are_answered_with_one_json_object(tmp_path, capsys):
    found = json.loads(answer(tmp_path, capsys, FRONTIERS, "--json"))
    assert found["testbed"] == "simulated"
    assert found["trust"].startswith("on held-out workloads 90 % within")
    assert [row["scored"] for row in found["rows"]] == [True, True, False]
    errors = [100 * abs(r["predicted_time_s"] / r["given_time_s"] - 1) for r in found["rows"] if r["scored"]]
    assert found["time_mape_pct"] == pytest.approx(sum(errors) / 2)
    assert found["energy_mape_pct"] > 0
    assert found["kareus_energy_mape_pct"] is not None
    assert {curve["method"] for curve in found["curves"]} == {"sequential+perseus", "kareus"}


def test_reductions_are_answered_with_one_json_object(tmp_path, capsys):
    found = json.loads(answer(tmp_path, capsys, REDUCTIONS, "gpu.coefficients.crowding=1.0", "--json"))
    assert found["trust"] == "errors not measured for this GPU"
    errors = [abs(row["predicted_pct"] - row["given_pct"]) for row in found["rows"]]
    assert len(errors) == 4
    assert found["reduction_mae_points"] == pytest.approx(sum(errors) / 4)


def test_the_text_names_the_simulated_gpu_and_its_known_errors(tmp_path, capsys):
    first, second, *rest = answer(tmp_path, capsys, FRONTIERS).splitlines()
    assert first.startswith("simulated A100-SXM4-40GB against ")
    assert "held-out" in second or "not measured" in second
    assert any("dominated, not scored" in line for line in rest)
    assert any("constant power" in line for line in rest)


def test_another_gpu_is_an_override(tmp_path, capsys):
    text = answer(tmp_path, capsys, REDUCTIONS, "gpu=h200")
    assert text.startswith("simulated H200 against ")
    assert "not measured" in text.splitlines()[1]


def test_a_file_of_no_known_format_is_one_line(tmp_path, capsys):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    assert main(["validate", "--reference", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
