"""The profile for Slurm: what is submitted, and that a run completes through it, on a Slurm that is made up."""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from helpers import fake_slurm
from test_default_workload import NAME, checkout, snakemake

from kareus.artifacts.tables import read_table
from kareus.search.tables import CANDIDATES

pytest.importorskip("snakemake_executor_plugin_slurm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CUDA = f"{NAME}_testbed-cuda"
SEARCHES = ("forward-mlp-allreduce", "backward-mlp-allreduce")
QUICKLY = ("--slurm-init-seconds-before-status-checks=1", "--seconds-between-status-checks=1", "--latency-wait=5")
SWEEP = ("--config", 'overrides=["testbed=simulated,cuda"]')


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """What the searches of a simulated and of a real testbed need."""
    folder = checkout(tmp_path_factory.mktemp("slurm"))
    fake_slurm.install(folder / "slurm/bin")
    spaces = [f"results/{name}/schedule/space.parquet" for name in (NAME, CUDA)]
    done = snakemake(folder, *spaces, *SWEEP)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def through_slurm(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[dict]]:
    """Run, and say what was submitted by rule and wildcards."""
    before = len(fake_slurm.submitted(folder / "slurm"))
    path = f"{folder / 'slurm/bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, fake_slurm.FOLDER_VARIABLE: str(folder / "slurm")}
    done = snakemake(folder, *arguments, *SWEEP, "--workflow-profile", "profiles/slurm", *QUICKLY, env=environment)
    return done, fake_slurm.submitted(folder / "slurm")[before:]


def test_simulated_searches_run_through_slurm_without_gpus(prepared):
    tables = [f"results/{NAME}/search/{partition}/candidates.parquet" for partition in SEARCHES]
    done, jobs = through_slurm(prepared, *tables)
    assert done.returncode == 0, done.stdout + done.stderr
    for table in tables:
        assert len(read_table(prepared / table, CANDIDATES)) > 3
    assert sorted(job["comment"] for job in jobs) == sorted(
        f"rule_search_partition_wildcards_{NAME}_{partition}" for partition in SEARCHES
    )
    for job in jobs:
        assert (job["gpus"], job["nodes"], job["time"], job["mem"]) == (None, "1", "120", "16000")
        assert job["no_requeue"]


def test_real_gpu_jobs_ask_for_gpus_and_retry_with_more(prepared):
    tables = ("search/forward-mlp-allreduce/candidates", "profile/components")
    done, jobs = through_slurm(prepared, *(f"results/{CUDA}/{table}.parquet" for table in tables), "--retries=1")
    assert done.returncode != 0
    assert {job["gpus"] for job in jobs} == {"8"}  # tp=8, of one node
    asked = {rule: [job for job in jobs if f"rule_{rule}" in job["comment"]] for rule in ("search", "profile")}
    assert [(job["time"], job["mem"]) for job in asked["search"]] == [("120", "16000"), ("240", "32000")]
    assert [(job["time"], job["mem"]) for job in asked["profile"]] == [("480", "16000"), ("960", "32000")]
    assert f" failed  Searching forward-mlp-allreduce of {CUDA}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_refuses_a_filesystem_without_the_heads_lock(prepared):
    remotely = ("--mode", "remote", "--no-hooks", "--dry-run")
    alone = snakemake(prepared, *remotely)
    assert "kareus.lock: not locked" in alone.stdout + alone.stderr
    with (prepared / ".snakemake/kareus.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert snakemake(prepared, *remotely).returncode == 0
