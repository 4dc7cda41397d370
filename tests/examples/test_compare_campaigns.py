"""The example that compares two campaigns, run as its docstring says."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import write_table
from kareus.pipeline.tables import ITERATION
from kareus.workload.tables import WORKLOADS

EXAMPLE = Path(__file__).parents[2] / "examples/compare_campaigns.py"
SIMULATED = Provenance(config_hash="test", testbed=TestbedIdentity(kind="simulated", gpu="A100", detail="model 1"))


def write_results(folder: Path, plans: dict[str, dict[str, list[tuple[float, float]]]]) -> str:
    """Results with (time, energy) of the plans of each workload and method."""
    folder.mkdir()
    write_table(folder / "workloads.parquet", WORKLOADS.frame([]), WORKLOADS, SIMULATED)
    for workload, methods in plans.items():
        rows = [
            {"method": method, "plan": n, "time_s": time_s, "energy_j": energy_j}
            for method, points in methods.items()
            for n, (time_s, energy_j) in enumerate(points)
        ]
        others = {c.name: 1.0 for c in ITERATION.columns if c.dtype == pl.Float64}
        path = folder / workload / "pipeline/iteration.parquet"
        path.parent.mkdir(parents=True)
        frame = ITERATION.frame([others | {"points": []} | row for row in rows])
        write_table(path, frame, ITERATION, SIMULATED)
    return str(folder)


@pytest.fixture
def campaigns(tmp_path):
    before = {"a": {"kareus": [(4.0, 200.0), (5.0, 100.0)]}, "gone": {"kareus": [(1.0, 1.0)]}}
    after = {"a": {"kareus": [(2.0, 260.0), (3.9, 150.0), (6.0, 90.0)]}, "new": {"kareus": [(1.0, 1.0)]}}
    return write_results(tmp_path / "before", before), write_results(tmp_path / "after", after)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_two_campaigns_are_compared_method_by_method(campaigns):
    done = run(*campaigns)
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if "kareus" in line]
    numbers = [float(cell) for cell in row if cell.lstrip("-").replace(".", "").isdigit()]
    # fastest 4.0 -> 2.0 s, its energy 200 -> 260 J; within 4.0 s 150 J; least energy 100 -> 90 J
    assert numbers == [4.0, -50.0, 200.0, 30.0, -25.0, -10.0]


def test_what_has_no_counterpart_is_named_and_simulated_is_said(campaigns):
    said = run(*campaigns).stdout
    before, after = campaigns
    assert f"gone: only in {before}, not compared" in said
    assert f"new: only in {after}, not compared" in said
    assert "a: simulated testbed, A100, both times" in said


def test_without_two_folders_it_says_how_it_is_called():
    assert "usage: compare_campaigns.py" in run("results").stderr
