"""The examples in the docstrings of what the package offers: each has one, and it runs as printed."""

import ast
import gzip
from pathlib import Path

import pytest
from helpers.builders import CONFIG
from helpers.doc_examples import run_examples
from helpers.planned import remember_plans

import kareus
from kareus.adapters.online import PlanFolder
from kareus.adapters.profiling import Profiling
from kareus.adviser.answers import Advice
from kareus.evidence import shipped_files
from kareus.plans.document import Plan
from kareus.plans.workload_frontier import WorkloadFrontier
from kareus.prediction.rows import MeasuredIteration
from kareus.prediction.workload_prediction import Prediction
from kareus.workload.config import Workload

FUNCTIONS = [getattr(kareus, name) for name in kareus.__all__ if name != "__version__"]
RECORDS = [Workload, Prediction, MeasuredIteration, Advice, Plan, Plan.save]
RECORDS += [WorkloadFrontier, WorkloadFrontier.plan, WorkloadFrontier.save, PlanFolder, Profiling]
IN_TRAINERS = {
    "hugging_face": ["TrainerClock"],
    "lightning": ["LightningClock"],
    "megatron": ["PlanCallback", "obey", "planned_timers"],
    "pipelining": ["obey"],
    "steps": ["choose_clock"],
    "torchtitan": ["obey"],
}
"""Public names of adapters by module, whose examples `tests/adapters` runs in these trainers."""

DEFINES = ast.FunctionDef | ast.ClassDef


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples plan the same workloads: each once for all of them."""
    remember_plans(monkeypatch)


@pytest.fixture
def folder(default_workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the examples expect it: with results, and with measured iterations."""
    (tmp_path / "results").symlink_to(default_workload / "results")
    (tmp_path / "iterations.csv").write_text(_measured_lines())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _measured_lines() -> str:
    """The head of the shipped file of measured iterations, and a row of it."""
    with gzip.open(shipped_files()["training_iterations"], "rt") as lines:
        head, *rows = lines.readlines()
    return head + next(row for row in rows if ",8,LLAMA3.1_8B," in row)


@pytest.mark.slow
@pytest.mark.parametrize("documented", [*FUNCTIONS, *RECORDS], ids=lambda documented: documented.__qualname__)
@pytest.mark.usefixtures("planned", "folder")
def test_an_example_runs_as_printed(documented):
    run_examples(documented)


@pytest.mark.parametrize(("module", "names"), IN_TRAINERS.items())
def test_what_adapters_offer_to_trainers_has_an_example(module, names):
    tree = ast.parse((CONFIG.parent / f"kareus/adapters/{module}.py").read_text())
    documented = {node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, DEFINES)}
    for name in names:
        assert "Example:\n    >>> " in (documented[name] or "")


def test_enough_is_documented_by_example():
    assert len(FUNCTIONS) + len(RECORDS) + sum(map(len, IN_TRAINERS.values())) >= 20
