"""What every command does alike: one line on standard error for whatever a user can act on."""

import argparse
import gzip
import importlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kareus.adviser.goals import goals_of
from kareus.adviser.question import ask, question_of
from kareus.artifacts.shipped import config_folder
from kareus.artifacts.tables import read_table
from kareus.cli import EVERY, main
from kareus.cli.commands import BUILT_IN
from kareus.cli.overview import overview
from kareus.cli.parser import parser_of
from kareus.emulate.resolve import resolve_fleets
from kareus.evidence import shipped_files
from kareus.sweep.config import resolve_sweep
from kareus.workload.compose import compose, with_engine
from kareus.workload.resolve import resolve
from kareus.workload.tables import WORKLOADS


def test_an_unwritable_folder_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["resolve", "--output", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"kareus resolve: {file}: is a file; ")
    assert said.endswith(" a folder.\n")
    assert said.count("\n") == 1


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "workloads.parquet").mkdir()
    assert main(["resolve", "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"kareus resolve: {tmp_path}/workloads.parquet: is a folder; ")
    assert said.endswith(f", such as {tmp_path}/workloads.parquet/NAME.\n")
    assert said.count("\n") == 1


def test_overrides_stand_on_both_sides_of_an_option(tmp_path: Path) -> None:
    assert main(["resolve", "model=qwen3-1.7b", "--output", str(tmp_path), "gpu=h100-sxm5-80gb"]) == 0
    (row,) = read_table(tmp_path / "workloads.parquet", WORKLOADS).to_dicts()
    assert row["overrides"] == ["model=qwen3-1.7b", "gpu=h100-sxm5-80gb"]


@pytest.mark.parametrize("command", EVERY)
def test_every_command_says_what_it_takes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argument, code in (("--help", 0), ("--no-such-option", 2)):
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), argument])
        assert ended.value.code == code
        said = capsys.readouterr()
        assert (f"usage: kareus {command}" if code == 0 else f"see kareus {command} --help.") in said.out + said.err


def of_validate(words: Sequence[str], folder: Path) -> None:
    """Predict a kernel and an iteration with overrides; their rows name their GPU, as those that ship do."""
    kernels, iterations = folder / "kernels.csv", folder / "iterations.csv"
    kernels.write_text("gpu,dtype,m,n,k,time_s,software\nh200,bfloat16,1024,512,256,0.000004,VLLM 0.24.0\n")
    with gzip.open(shipped_files()["training_iterations"], "rt", encoding="utf-8") as rows:
        iterations.write_text("".join(itertools.islice(rows, 2)))
    assert main(["validate", *words, "--reference", str(kernels), str(iterations)]) == 0


CHECKED_BY: dict[str, Callable[[Sequence[str], Path], object]] = {
    "advise": lambda words, _: ask(words, gpus="16", global_batch=64, goals=goals_of(), config_dir=config_folder()),
    "calibrate": lambda words, _: compose(with_engine(words), config_folder()),
    "emulate": lambda words, _: resolve_fleets(words),
    "stage report-advice": lambda words, _: question_of(words, config_folder()),
    "stage sweep": lambda words, _: resolve_sweep(words),
    "validate": of_validate,
}
"""What checks the overrides of a command that are no plain ones of a workload."""


@pytest.mark.parametrize("command", EVERY)
def test_overrides_that_a_help_gives_as_examples_are_accepted(command: str, tmp_path: Path) -> None:
    check = CHECKED_BY.get(command, lambda words, _: resolve(words))
    for action in parser_of(command)._actions:
        if "KEY=VALUE" in str(action.metavar):
            for example in re.findall(r"such as ([^;()]+)", str(action.help)):
                check(example.split(), tmp_path)


def test_of_several_folders_in_place_of_one_no_word_is_called_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = [tmp_path / "a", tmp_path / "b"]  # as a shell gives for a pattern
    for folder in several:
        folder.mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["check-plan", "plan.json", "--folder", *map(str, several)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"kareus check-plan: {several[1]}: one of several folders; name one; see")


def test_every_command_that_a_help_names_is_there() -> None:
    helps = [overview(), *(str(action.help) for command in EVERY for action in parser_of(command)._actions)]
    commands = [line.split() for text in helps for line in re.findall(r"\bkareus [a-z][-a-z]* ?[^`;:,()\n]*", text)]
    assert len(commands) > 10
    for _, name, *words in commands:
        assert name in EVERY or name in BUILT_IN, name
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert set(options) <= set(parser_of(name)._option_string_actions if name in EVERY else options)


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["plan"], "from the start"),
        (["advise"], "from the start"),
        (["train"], "to go on"),
        (["calibrate"], "to go on"),
    ],
)
def test_an_interrupted_command_says_whether_it_goes_on(
    words: list[str], again: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("kareus.cli._run", interrupted)
    assert main(words) == 130
    assert capsys.readouterr().err == f"kareus {words[0]}: interrupted; run it again {again}.\n"


def test_an_option_means_the_same_in_every_command() -> None:
    kinds: dict[str, set[object]] = {}
    for command in EVERY.values():
        parsers = [argparse.ArgumentParser()]
        importlib.import_module(command.module).add_arguments(parsers[0])
        for parser in parsers:
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parsers.extend(action.choices.values())
                for option in action.option_strings:
                    kinds.setdefault(option, set()).add(action.type)
    assert {option for option, types in kinds.items() if len(types) > 1} == set()


def test_a_reader_that_has_had_enough_is_told_nothing() -> None:
    command = [sys.executable, "-m", "kareus", "resolve", "microbatch_size=1,2,3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 1


def test_a_place_is_optional_where_it_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["resolve", "--output", str(tmp_path / "results")]) == 0
    assert main(["results", str(tmp_path / "results")]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["results"]) == 0


@pytest.mark.parametrize("streams", ["", ">&-", "2>&-", "<&-", ">&- 2>&- <&-", "| head -c 1", "> /dev/full"])
def test_no_stream_of_any_kind_ends_in_a_traceback(streams: str) -> None:
    for words in (["plan", "--help"], ["no-such-µ-command"]):
        line = f'"$0" -m kareus "$@" {streams}'
        environment = os.environ | {"PYTHONIOENCODING": "ascii"}
        ran = subprocess.run(
            ["bash", "-c", line, sys.executable, *words], env=environment, capture_output=True, check=False
        )
        assert b"Traceback" not in ran.stderr
        assert b"Exception ignored" not in ran.stderr


def test_what_a_stream_cannot_write_is_escaped() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    line = [sys.executable, "-m", "kareus", "no-such-\xb5"]
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert r"unknown command 'no-such-\xb5'" in ran.stderr
