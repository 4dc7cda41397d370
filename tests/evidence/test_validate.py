"""The command `validate` on small files: its text, its one JSON object, its errors."""

import json

import pytest
from helpers.builders import CONFIG
from helpers.references import FRONTIERS, QUICK, REDUCTIONS

from kareus.cli import main
from kareus.evidence import shipped_files, validate_stage

pytestmark = pytest.mark.slow


def answer(tmp_path, capsys, text, *arguments):
    path = tmp_path / "given.csv"
    path.write_text(text)
    assert main(["validate", "--reference", str(path), "--config-dir", str(CONFIG), *arguments]) == 0
    return capsys.readouterr().out


def test_frontiers_are_answered_with_one_json_object(tmp_path, capsys):
    found = json.loads(answer(tmp_path, capsys, FRONTIERS, "--json"))
    assert found["testbed"] == "simulated"
    assert found["trust"].startswith("9 of 10 ")
    assert [row["scored"] for row in found["rows"]] == [True, True, False]
    errors = [100 * abs(r["predicted_time_s"] / r["given_time_s"] - 1) for r in found["rows"] if r["scored"]]
    assert found["time_mape_pct"] == pytest.approx(sum(errors) / 2)
    assert found["energy_mape_pct"] > 0
    assert found["kareus_energy_mape_pct"] is not None
    assert {curve["method"] for curve in found["curves"]} == {"sequential+perseus", "kareus"}


def test_reductions_are_answered_with_one_json_object(tmp_path, capsys):
    found = json.loads(answer(tmp_path, capsys, REDUCTIONS, "gpu.coefficients.crowding=1.0", *QUICK, "--json"))
    assert found["trust"].startswith("errors not measured")
    errors = [abs(row["predicted_pct"] - row["given_pct"]) for row in found["rows"]]
    assert len(errors) == 4
    assert found["reduction_mae_points"] == pytest.approx(sum(errors) / 4)


def test_the_text_names_the_simulated_gpu_and_its_known_errors(tmp_path, capsys):
    first, second, *rest = answer(tmp_path, capsys, FRONTIERS).splitlines()
    assert first.startswith("simulated A100-SXM4-40GB against ")
    assert "had not seen" in second or "not measured" in second
    assert any("dominated, not scored" in line for line in rest)
    assert any("constant power" in line for line in rest)


def test_another_gpu_is_an_override(tmp_path, capsys):
    text = answer(tmp_path, capsys, REDUCTIONS, "gpu=h200", "gpu.search_frequencies.stride_mhz=300", *QUICK[1:])
    assert text.startswith("simulated H200 against ")
    assert "not measured" in text.splitlines()[1]


def test_a_file_of_no_known_format_is_one_line(tmp_path, capsys):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    assert main(["validate", "--reference", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_several_files_are_answered_by_name(tmp_path, capsys):
    paths = [tmp_path / name for name in ("frontiers.csv", "reductions.csv")]
    for path, text in zip(paths, (FRONTIERS, REDUCTIONS), strict=True):
        path.write_text(text)
    named = [*QUICK, "--reference", *map(str, paths), "--config-dir", str(CONFIG)]
    assert main(["validate", "--json", *named]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["references"]) == [str(path) for path in paths]
    paths[1].write_text(FRONTIERS)  # which takes less time
    assert main(["validate", *named]) == 0
    assert capsys.readouterr().out.count("simulated A100-SXM4-40GB against ") == 2


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Of what ships, the files that are predicted in a moment."""
    files = {name: path for name, path in shipped_files().items() if name in ("kernel_nccl", "training_power")}
    monkeypatch.setattr(validate_stage, "shipped_files", lambda: files)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_page_has_what_ships_and_what_is_given(few, capsys, monkeypatch):
    (few / "given.csv").write_text(FRONTIERS)
    command = ["validate", "--config-dir", str(CONFIG), "--reference", "given.csv", "--page"]
    assert main(command) == 0
    assert "validation.html: written" in capsys.readouterr().out
    page = (few / "validation.html").read_text()
    for title in ("Collectives (NCCL)", "Power of nodes in training", "Planned iterations on A100-SXM4-40GB"):
        assert f"<h2>{title}</h2>" in page
    monkeypatch.setattr(validate_stage, "shipped_files", lambda: {})
    assert main(command) == 0, "a page is replaced by a new one"
    assert "<h2>Collectives (NCCL)</h2>" not in (few / "validation.html").read_text()


def test_a_page_takes_no_other_files_place(few, capsys):
    (few / "notes.html").write_text("mine")
    assert main(["validate", "--page", "notes.html"]) == 2
    assert "is not a page of kareus validate" in capsys.readouterr().err
    assert main(["validate", "--page", "nowhere/page.html"]) == 2
    assert main(["validate", "--page", "--json"]) == 2
    assert (few / "notes.html").read_text() == "mine"
