"""The yardstick of whole runs: it must see what differs and what a run took."""

import json
import sys
from pathlib import Path

import polars as pl

from acceptance import at_most
from runs.artifacts import artifacts, differences
from runs.effort import run


def results(folder: Path, *, energy_j: float = 1.0, created_at: str = "then", proposing_s: float = 0.1) -> Path:
    for place in ("w/plan", "w/search/p", "w/pipeline"):
        (folder / place).mkdir(parents=True)
    pl.DataFrame({"energy_j": [energy_j]}).write_parquet(folder / "w/pipeline/iteration.parquet")
    pl.DataFrame({"proposing_s": [proposing_s]}).write_parquet(folder / "w/search/p/proposals.parquet")
    (folder / "w/plan/fastest.json").write_text(json.dumps({"provenance": {"created_at": created_at}}))
    return folder


def test_runs_do_not_depend_on_time_of_day_or_speed(tmp_path):
    one = artifacts(results(tmp_path / "one"))
    other = artifacts(results(tmp_path / "other", created_at="now", proposing_s=0.2))
    assert len(one) == 2
    assert differences(one, other) == []


def test_other_data_and_missing_files_are_named(tmp_path):
    one, other = results(tmp_path / "one"), results(tmp_path / "other", energy_j=1.0 + 1e-15)
    (other / "w/plan/fastest.json").unlink()
    assert differences(artifacts(one), artifacts(other)) == ["w/pipeline/iteration.parquet", "w/plan/fastest.json"]


def test_effort_includes_what_a_command_starts(tmp_path):
    inner = "import time; held = bytearray(200 * 2**20); time.sleep(1.5)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}]); print('done'); sys.exit(3)"
    effort = run([sys.executable, "-c", outer], tmp_path)
    assert (effort.returncode, effort.output) == (3, "done\n")
    assert 200 / 1024 < effort.peak_gib < 0.4
    assert effort.wall_s > 1.5
    assert effort.cpu_s > 0


def test_a_figure_holds_only_if_its_run_was_done():
    assert at_most("x", 1.0, "s", 2, done=True) == ("x", "1 s", "<= 2 s", True)
    assert not at_most("x", 1.0, "s", 2, done=False)[3]
    assert not at_most("x", 3.0, "s", 2, done=True)[3]
