"""What a command writes takes no other file's place, and no folder is made where a typo led, unless by `--force`."""

import argparse
import os
import tempfile
from pathlib import Path

import pytest

from kareus.artifacts.manifest import write_manifest
from kareus.artifacts.outputs import (
    OutputKind,
    add_force,
    check_folder,
    check_outputs,
    check_place,
    check_report_folder,
    table,
)
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import write_table
from kareus.cli import EVERY, main
from kareus.errors import ArtifactError, ConfigError
from kareus.pipeline.tables import INSTRUCTIONS, ITERATION

TEXT = OutputKind("a text", lambda path: path.read_bytes().startswith(b"text"))


def arguments(*, force=False, **paths):
    return argparse.Namespace(force=force, **paths)


def test_a_file_of_the_same_kind_is_replaced_without_a_flag(tmp_path):
    for content in ("text one", "text two"):
        (tmp_path / "out").write_text(content)
        check_outputs(arguments(), [(tmp_path / "out", TEXT)])


def test_a_table_is_told_from_another_and_from_what_is_none(tmp_path):
    write_table(tmp_path / "t.parquet", ITERATION.frame([]), ITERATION, Provenance(config_hash="x"))
    check_outputs(arguments(), [(tmp_path / "t.parquet", table(ITERATION))])
    with pytest.raises(ArtifactError, match=r"t\.parquet: there is a file that is not a table 'instructions', or a"):
        check_outputs(arguments(), [(tmp_path / "t.parquet", table(INSTRUCTIONS))])
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(range(256)) + b"PAR1")
    with pytest.raises(ArtifactError, match="is not a table 'iteration', or a damaged one; give another path, or --f"):
        check_outputs(arguments(), [(tmp_path / "t.parquet", table(ITERATION))])
    check_outputs(arguments(force=True), [(tmp_path / "t.parquet", table(ITERATION))])


@pytest.mark.parametrize("spelling", ["same", "dotted", "symlink", "hard link", "folder"])
def test_an_input_is_no_output_however_it_is_spelled(tmp_path, monkeypatch, spelling):
    given, other = tmp_path / "in", tmp_path / "other"
    given.write_text("text")
    monkeypatch.chdir(tmp_path)
    if spelling == "symlink":
        other.symlink_to(given)
    elif spelling == "hard link":
        os.link(given, other)
    elif spelling == "folder":
        other.symlink_to(tmp_path, target_is_directory=True)
    output = {"same": Path(given), "dotted": Path("./../") / tmp_path.name / "in", "folder": other / "in"}
    for named in ({"plan": given}, {"plans": [given]}):
        for inputs in ([], [given]):
            problem = (
                "is no regular file"
                if spelling == "symlink"
                else "is an input of this command; give another path, or --f"
            )
            with pytest.raises(ArtifactError, match=problem):
                check_outputs(arguments(**(named if not inputs else {})), [(output.get(spelling, other), TEXT)], inputs)
    if spelling != "symlink":  # a link is no output even then
        check_outputs(arguments(force=True, plan=given), [(output.get(spelling, other), TEXT)])


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("place", ["pipe", "link", "dangling", "/dev/null", "/dev/stdout", "folder"])
def test_what_is_no_regular_file_is_no_output(tmp_path, place, force):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("text")
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    problem = "is a folder" if place == "folder" else "is no regular file, and stays as it is"
    with pytest.raises(ArtifactError, match=f"{place}: {problem}; give the path of a"):
        check_outputs(arguments(force=force), [(path, TEXT)])
    with pytest.raises(ArtifactError, match=f"{place}: {problem}; give the path of a"):
        check_place(path, force=force)


def test_two_outputs_are_two_files(tmp_path):
    with pytest.raises(ConfigError, match="named for two outputs"):
        check_outputs(arguments(), [(tmp_path / "a", TEXT), (tmp_path / "b/../a", TEXT)])


def test_missing_folders_are_made_below_the_current_or_by_force(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path.parent / "new", Path("runs/first"), tmp_path / "runs/first"):
        check_folder(folder, force=False)
    for folder in (tmp_path.parent / "new/x", Path("/nowhere/x"), Path("../nowhere/x")):
        with pytest.raises(ArtifactError, match=f"there is no folder {folder.parent}; make it"):
            check_folder(folder, force=False)
        check_folder(folder, force=True)
    check_place(tmp_path / "file", force=False)
    with pytest.raises(ArtifactError, match="there is no folder new; make it, give another path, or --force"):
        check_place(Path("new/file"), force=False)


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=rf"file/a/b: {tmp_path}/file: is a file"):
        check_folder(tmp_path / "file/a/b", force=True)
    with pytest.raises(ArtifactError, match="/proc cannot be written; give another path"):
        check_folder(Path("/proc/x"), force=False)
    with pytest.raises(ArtifactError, match=r"/proc/x\.json: /proc cannot be written; give another path"):
        check_place(Path("/proc/x.json"), force=False)
    written = tempfile.TemporaryFile
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: written(dir="/proc" if dir == tmp_path else dir))
    for folder in (tmp_path, tmp_path / "new/runs"):
        with pytest.raises(ArtifactError, match=f"{folder}: {tmp_path} cannot be written; give another path"):
            check_folder(folder, force=True)


def test_force_is_declared_once():
    parser = argparse.ArgumentParser()
    add_force(parser)
    assert parser.parse_args([]).force is False


WITHOUT_OUTPUT = {"check-plan", "doctor", "clocks", "results", "predict", "explain", "verify"}
OWN_PLACES = {"emulate", "stage report-campaign"}
WRITES = set(EVERY) - WITHOUT_OUTPUT - OWN_PLACES
"""All but those that write nothing, and those that write in places of their own within a results folder."""


@pytest.mark.parametrize("command", sorted(WRITES))
def test_every_command_that_names_an_output_takes_force(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert "--force" in capsys.readouterr().out


STAGES = {
    "stage partition": (["config"], ["segments", "partitions"]),
    "stage schedule": (["config", "partitions"], ["space"]),
    "stage profile": (["config", "segments", "store"], ["components", "instructions", "progress"]),
    "stage search": (["config", "partitions", "space", "store"], ["candidates", "rounds", "proposals", "progress"]),
    "stage frontier": (["config", "segments", "components", "instructions", "candidates"], ["microbatch"]),
    "stage pipeline": (["config", "microbatch"], ["instructions", "iteration"]),
    "stage sweep": (["partitions", "store"], ["trials"]),
}


@pytest.mark.parametrize(
    ("command", "wrong"), [(command, output) for command, (_, outputs) in STAGES.items() for output in outputs]
)
def test_no_stage_replaces_its_input(tmp_path, capsys, command, wrong):
    inputs, outputs = STAGES[command]
    for name in inputs:
        (tmp_path / name).write_text(name)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    named = {**{i: tmp_path / i for i in inputs}, **{o: tmp_path / f"{o}.out" for o in outputs}}
    named[wrong] = tmp_path / inputs[0]
    words = [f"--{name}={path}" for name, path in named.items()] + ["--partition=x"] * (command == "stage search")
    assert main([*command.split(), *words]) == 2
    assert capsys.readouterr().err == (
        f"kareus {command}: {tmp_path / inputs[0]}: is an input of this command; give another path, or --force to "
        "replace it.\n"
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


FILES = {"stage end-to-end": (["folder"], ["output"]), "export": (["plan"], ["output"])}
"""Commands that compute no table of a stage, and name the file that they write."""


@pytest.mark.parametrize(
    ("command", "wrong"),
    [(command, output) for command, (_, outputs) in (STAGES | FILES).items() for output in outputs]
    + [(command, "store") for command, (inputs, _) in STAGES.items() if "store" in inputs],
)
def test_no_stage_makes_a_folder_where_a_typo_led(tmp_path, capsys, command, wrong):
    inputs, outputs = (STAGES | FILES)[command]
    named = {name: tmp_path / name for name in [*inputs, *outputs]}
    if "progress" in named:
        named["progress"] = tmp_path / "x.progress.json"
    named[wrong] = tmp_path / "no/where" / named[wrong].name
    positional = [str(named.pop(name)) for name in ("folder", "plan") if name in named]
    words = [*positional, *(f"--{name}={path}" for name, path in named.items())]
    words += ["--partition=x"] * (command == "stage search") + ["--format=trace"] * (command == "export")
    assert main([*command.split(), *words]) == 2
    assert f"{tmp_path / 'no/where'}; make it, give another path, or --force." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_report_goes_into_a_new_empty_or_report_folder(tmp_path):
    folder = tmp_path / "v"
    check_report_folder(folder, force=False)
    folder.mkdir()
    check_report_folder(folder, force=False)
    for name, text in (("notes.txt", "mine"), ("manifest.json", "{}"), ("fleets.manifest.json", "")):
        (folder / name).write_text(text)
        with pytest.raises(ArtifactError, match="v: the folder has files, and no manifest of a report; give a new or"):
            check_report_folder(folder, force=False)
        check_report_folder(folder, force=True)
    write_manifest(folder / "fleets.manifest.json", [folder / "notes.txt"])
    check_report_folder(folder, force=False)
    with pytest.raises(ArtifactError, match="there is no folder"):
        check_report_folder(tmp_path / "no/where", force=False)


def test_resolving_replaces_its_own_table_only(tmp_path, capsys):
    assert main(["resolve", "--output", str(tmp_path)]) == 0
    assert main(["resolve", "--output", str(tmp_path)]) == 0
    (tmp_path / "workloads.parquet").write_text("somebody's")
    assert main(["resolve", "--output", str(tmp_path)]) == 2
    assert "workloads.parquet: there is a file" in capsys.readouterr().err
    assert (tmp_path / "workloads.parquet").read_text() == "somebody's"
    assert main(["resolve", "--output", str(tmp_path), "--force"]) == 0
    assert main(["resolve", "--output", "/nowhere/results"]) == 2
    assert "there is no folder /nowhere" in capsys.readouterr().err
    assert not Path("/nowhere").exists()
