"""The example that plots frontiers, run as its docstring says."""

import subprocess
import sys
from pathlib import Path

from test_compare_campaigns import write_results

EXAMPLE = Path(__file__).parents[2] / "examples/plot_frontier.py"


def plot(folder: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE), folder, str(path)], capture_output=True, text=True, check=False
    )


def test_every_workload_of_a_folder_is_plotted(tmp_path: Path) -> None:
    plans = {"sequential": [(2.0, 10.0)], "kareus": [(1.5, 9.0), (2.0, 7.0)]}
    folder = write_results(tmp_path / "results", {"one": plans, "two": plans})
    done = plot(folder, tmp_path / "frontier.png")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"written: {tmp_path / 'frontier.png'}\n"
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_results_is_one_line(tmp_path: Path) -> None:
    done = plot(str(tmp_path / "none"), tmp_path / "frontier.png")
    assert done.returncode == 1
    assert done.stderr.startswith("plot_frontier: ") and done.stderr.count("\n") == 1
