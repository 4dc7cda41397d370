"""The rule that whoever knows one name knows all: rules, packages, commands and tests are named alike."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from kareus.artifacts.layout import WorkloadFolder
from kareus.cli import EVERY

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "workflow/rules").glob("*.smk"))
STAGES = [path.stem for path in RULES if path.stem != "common"]


@pytest.mark.parametrize("stage", STAGES)
def test_rule_file_package_and_test_folder_share_a_name(stage):
    package = ROOT / "kareus" / stage
    assert package.is_dir()
    if "python -m kareus" in (ROOT / f"workflow/rules/{stage}.smk").read_text():
        assert any(package.rglob("stage.py"))
    assert (ROOT / "tests" / stage).is_dir()


def test_the_snakefile_includes_rule_files_in_order():
    included = re.findall(r'include: "workflow/rules/(\w+)\.smk"', (ROOT / "Snakefile").read_text())
    assert sorted(included) == sorted(p.stem for p in RULES)
    assert included[0] == "common"


def rules():
    for path in RULES:
        for name, body in re.findall(r"^rule (\w+):\n((?:    .*\n|\n)+)", path.read_text(), re.M):
            yield pytest.param(path.stem, body, id=name)


@pytest.mark.parametrize(("stage", "body"), list(rules()))
def test_a_rule_is_one_shell_line_with_one_command(stage, body):
    assert "shell:" in body
    assert "run:" not in body
    assert len(re.search(r'message:\s+"(.*)"', body)[1]) <= 80
    commands = re.findall(r"python -m kareus ((?:stage )?\S+)", body)
    if commands:
        (command,) = commands
        assert EVERY[command].module.split(".")[1] == stage
        assert f'code("{command}")' in body


HEAVY = {"torch", "xgboost", "highspy", "pandas", "sklearn", "zeus", "snakemake", "altair", "jsonschema"}
NEEDED = {
    "stage pipeline": {"highspy"},
    "validate": {"highspy"},
    "fit": {"highspy"},
    "stage report": {"altair", "jsonschema"},  # with which Altair checks figures
    "stage report-fleets": {"altair", "jsonschema"},
    "stage report-campaign": {"altair", "jsonschema"},
}


IMPORTING = """
import importlib, json, os, sys
import numpy, omegaconf, polars, pyarrow.parquet, yaml
import kareus.artifacts.stage, kareus.prediction.workload_prediction, kareus.workload.resolve, kareus.workload.slices
modules, heavy = json.loads(sys.stdin.read())
for module in modules:
    read, write = os.pipe()
    if os.fork() == 0:
        importlib.import_module(module)
        os.write(write, json.dumps([name for name in heavy if name in sys.modules]).encode())
        os._exit(0)
    os.close(write)
    print(json.dumps([module, json.loads(os.fdopen(read).read() or "null")]))
    os.wait()
"""
"""Imports modules, each in a process forked from one that has imported what most of them share.

What that imports counts as imported by each.
"""


@pytest.fixture(scope="module")
def imported_by() -> dict[str, list[str] | None]:
    """Heavy modules that each command imports, none if it cannot be imported."""
    asked = json.dumps([sorted({known.module for known in EVERY.values()}), sorted(HEAVY)])
    command = [sys.executable, "-c", IMPORTING]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    imported = dict(json.loads(line) for line in done.stdout.splitlines())
    return {command: imported[known.module] for command, known in EVERY.items()}


@pytest.mark.parametrize("command", EVERY)
def test_every_command_starts_without_imports_of_other_stages(imported_by, command):
    assert imported_by[command] is not None
    assert set(imported_by[command]) <= NEEDED.get(command, set())


def test_the_layout_of_a_workload_folder_is_that_of_the_rules(tmp_path):
    declared = {path for rule in RULES for path in re.findall(r'"results/\{workload\}/([^"{]+)"', rule.read_text())}
    places = ("schedule/space.parquet", "frontier/microbatch.parquet", "pipeline/iteration.parquet")
    for place in places:
        assert place in declared
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
    folder = WorkloadFolder(tmp_path)
    named = (folder.space, folder.microbatch, folder.iteration)
    assert tuple(p.relative_to(tmp_path).as_posix() for p in named) == places
    assert folder.plan("fastest", "kareus") == tmp_path / "plan/fastest.json"
    fleets = "|".join(rule.read_text() for rule in RULES if rule.stem == "emulate")
    assert f"results/{{workload}}/{folder.fleet('{fleet}').relative_to(tmp_path).as_posix()}/fleet.parquet" in fleets


def test_every_module_says_what_it_is_for():
    for path in sorted((ROOT / "kareus").rglob("*.py")):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def test_the_tools_of_the_environment_are_pinned():
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert {"torch", "snakemake", "polars", "ruff", "mypy", "hydra-core", "highspy", "snakefmt"} <= pinned


def test_commands_are_importable_and_complete():
    for command in EVERY.values():
        stage = importlib.import_module(command.module)
        assert callable(stage.add_arguments)
        assert callable(stage.run)


ALIASED = (ast.Subscript, ast.BinOp, ast.Attribute, ast.Name)
"""What a type alias is assigned: `dict[str, int]`, `A | B`, `module.A` or `A`."""


def type_names(module: ast.Module) -> Iterator[str]:
    """Names of the classes and type aliases that a module defines; a `TypeVar` is a call and does not count."""
    for statement in module.body:
        match statement:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp() | ast.Attribute() | ast.Name()
            ):
                if name.lstrip("_")[:1].isupper() and not name.isupper():  # names in capitals are constants
                    yield name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if "TypeAlias" in ast.unparse(
                annotation
            ):
                yield name


def test_no_two_test_files_share_a_name():
    """pytest imports them by their names alone, and so would take one for the other."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_type_name_is_defined_twice():
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "kareus").rglob("*.py"):
        for name in type_names(ast.parse(path.read_text())):
            modules[name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1} == {}
