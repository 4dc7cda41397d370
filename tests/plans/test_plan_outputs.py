"""Where `select`, `export` and `train` write, and what they leave alone."""

import os
from pathlib import Path

import pytest
from test_check import folder_of

from kareus.cli import main


@pytest.fixture
def planned(tmp_path):
    folder, _ = folder_of(tmp_path / "results")
    assert main(["select", "fastest", str(folder)]) == 0
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(words, capsys):
    """The line with which a command refuses its arguments."""
    assert main([str(word) for word in words]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


@pytest.mark.parametrize("place", ["pipeline/iteration.parquet", "frontier/microbatch.parquet", "config/plan.yaml"])
def test_selecting_does_not_replace_what_it_reads(planned, capsys, place):
    before = contents(planned)
    line = refused(["select", "min-energy", planned, "--output", planned / place], capsys)
    assert f"{planned / place}: there is" in line
    assert contents(planned) == before


def test_selecting_replaces_a_plan_and_anything_by_force(planned, tmp_path):
    output = tmp_path / "chosen.json"
    for selector in ("fastest", "min-energy"):
        assert main(["select", selector, str(planned), "--output", str(output)]) == 0
    output.write_text("notes")
    assert main(["select", "fastest", str(planned), "--output", str(output)]) == 2
    assert output.read_text() == "notes"
    assert main(["select", "fastest", str(planned), "--output", str(output), "--force"]) == 0
    assert main(["check-plan", str(output), "--folder", str(planned)]) == 0


def test_a_damaged_plan_is_selected_anew_without_a_flag(planned):
    plan = planned / "plan/fastest.json"
    for output in ([], ["--output", str(plan)]):  # the second is how the workflow calls it
        plan.write_text("{")
        assert main(["select", "fastest", str(planned), *output]) == 0
        assert main(["check-plan", str(plan)]) == 0


@pytest.mark.parametrize("link", ["same", "dotted", "symlink", "hard link"])
@pytest.mark.parametrize("form", ["zeus", "trace"])
def test_exporting_does_not_replace_the_plan(planned, tmp_path, monkeypatch, capsys, form, link):
    plan, other = planned / "plan/fastest.json", tmp_path / "link"
    if link == "symlink":
        other.symlink_to(plan)
    elif link == "hard link":
        os.link(plan, other)
    monkeypatch.chdir(plan.parent)
    output = {"same": plan, "dotted": Path("../plan/./fastest.json")}.get(link, other)
    before = contents(planned)
    line = refused(["export", plan, "--format", form, "--output", output], capsys)
    is_input = f"{output}: is an input of this command; give another path, or --force to replace it"
    assert (f"{output}: is no regular file" if link == "symlink" else is_input) in line
    assert contents(planned) == before


def test_an_export_replaces_its_own_kind_only(planned, tmp_path, capsys):
    form, plan, output = "trace", planned / "plan/fastest.json", tmp_path / "exported"
    words = ["export", str(plan), "--format", form, "--output", str(output)]
    assert main(words) == 0
    exported = output.read_bytes()
    assert main(words) == 0
    output.write_text("somebody's")
    assert "exported: there is" in refused(words, capsys)
    assert main([*words, "--force"]) == 0
    assert output.read_bytes() == exported
    assert main(["export", str(plan), "--format", form]) == 0
    assert main(["export", str(plan), "--format", form]) == 0  # beside the plan, by its default name


@pytest.mark.parametrize("command", ["select", "export"])
def test_no_folder_is_made_where_a_typo_led(planned, tmp_path, capsys, command):
    output = tmp_path / "new/x"
    plan = planned / "plan/fastest.json"
    words = {"select": ["select", "fastest", planned], "export": ["export", plan, "--format", "trace"]}[command]
    line = refused([*words, "--output", output], capsys)
    assert f"{output}: there is no folder {output.parent}" in line
    assert not output.parent.exists()
    assert main([str(word) for word in [*words, "--output", output, "--force"]]) == 0
    assert output.is_file()


def test_a_training_replaces_no_other_table(planned, capsys, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    (output / "iterations.parquet").write_bytes((planned / "pipeline/iteration.parquet").read_bytes())
    before = contents(output)
    words = ["train", planned / "plan/fastest.json", "--iterations", 1, "--output", output]
    assert "iterations.parquet: there is" in refused(words, capsys)
    assert contents(output) == before
    assert "there is no folder" in refused([*words[:-1], tmp_path / "new/x"], capsys)
    assert not (tmp_path / "new").exists()


def test_a_plan_is_not_written_under_the_name_of_another(planned, capsys):
    plan = planned / "plan/fastest.json"
    before = plan.read_bytes()
    line = refused(["select", "edp", planned, "--output", plan, "--force"], capsys)
    assert f"{plan}: the plan of 'edp'" in line
    assert plan.read_bytes() == before
