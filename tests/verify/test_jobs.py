"""Which jobs have to run again because of the files on disk."""

from pathlib import Path

import pytest

from kareus.verify.jobs import Job, not_made, to_force
from kareus.verify.survey import Finding, FindingKind


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """A job that measures a partition, one that reads what it made, and one that writes a folder; all have run."""
    monkeypatch.chdir(tmp_path)
    found = [
        Job(
            rule="search_partition", wildcards={"partition": "mlp"}, outputs=["w/candidates", "w/rounds", "done/search"]
        ),
        Job(rule="compose_frontiers", wildcards={}, outputs=["w/microbatch", "done/frontier"]),
        Job(rule="write_report", wildcards={}, outputs=["w/page", "w/timelines", "done/report"]),
    ]
    (tmp_path / "w/timelines").mkdir(parents=True)
    (tmp_path / "done").mkdir()
    for job in found:
        for output in job.outputs:
            if output != "w/timelines":
                (tmp_path / output).touch()
    return found


def forced(jobs, *wrong):
    findings = [Finding(path=Path(path), kind=FindingKind.DAMAGED, reason="") for path in wrong]
    return to_force(jobs, findings, Path("store"))


def test_nothing_is_forced_where_all_is_well(jobs):
    assert forced(jobs) == set()


def test_a_job_with_a_damaged_output_runs_again(jobs):
    assert forced(jobs, "w/microbatch") == {"w/microbatch"}


def test_a_job_with_a_damaged_file_in_its_folder_runs_again(jobs):
    assert forced(jobs, "w/timelines/fastest.svg") == {"w/page"}


@pytest.mark.parametrize("lost", ["w/rounds", "done/search"])
def test_an_unsuccessful_or_incomplete_job_runs_again(tmp_path, jobs, lost):
    (tmp_path / lost).unlink()
    assert forced(jobs) == {"w/candidates"}


def test_a_job_that_has_never_run_needs_no_force(tmp_path, jobs):
    for output in jobs[1].outputs:
        (tmp_path / output).unlink()
    assert forced(jobs) == set()


def test_damaged_measurements_are_taken_again_by_their_jobs(jobs):
    assert forced(jobs, "store/gpu/mlp_0123/measurements.parquet") == {"w/candidates"}
    assert forced(jobs, "store/gpu/mlp_0123/looks/looks.parquet") == {"w/candidates"}
    assert forced(jobs, "store/gpu/attention_0123/measurements.parquet") == set()
    assert forced(jobs, "store/gpu/instructions_0123/measurements.parquet") == set()


def test_files_that_no_job_makes_are_told_apart(jobs):
    mine, own = (
        Finding(path=Path(name), kind=FindingKind.DAMAGED, reason="") for name in ("w/plan/edp.json", "w/page")
    )
    assert not_made(jobs, [mine, own], Path("store")) == [mine]
