"""The default workload, planned end to end by the workflow in a copy of the repository's folders."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from helpers.default_workload import NAME
from helpers.preloaded import snakemake, would_run

import kareus
from kareus.artifacts.configuration import load_slice
from kareus.artifacts.tables import read_provenance, read_table
from kareus.export.dataset import open_results
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.tables import ITERATION
from kareus.plans.build import select_plan
from kareus.plans.planning import plan_tables
from kareus.report.contents import PLOTS
from kareus.search.tables import CANDIDATES
from kareus.training.comparison import compare_runs
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload
from kareus.workload.naming import plain_name
from runs.checkout import ROOT, checkout

METHODS = ("sequential", "sequential+perseus", "nanobatching", "nanobatching+perseus", "kareus")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def planned(default_workload, tmp_path_factory) -> Path:
    """A copy, since Snakemake locks its folder."""
    return Path(shutil.copytree(default_workload, tmp_path_factory.mktemp("planned"), dirs_exist_ok=True))


@pytest.fixture(scope="module")
def iteration(planned) -> pl.DataFrame:
    return read_table(planned / "results" / NAME / "pipeline/iteration.parquet", ITERATION)


def test_a_dry_run_names_the_stages(tmp_path):
    rules = would_run(checkout(tmp_path))
    assert rules["search_partition"] == 4
    stages = (
        "resolve",
        "extract",
        "enumerate",
        "profile",
        "search",
        "compose",
        "solve",
        "select",
        "run",
        "write_report",
    )
    assert all(any(rule.startswith(stage) for rule in rules) for stage in stages), rules


def test_nothing_is_left_to_do_afterwards(planned):
    assert would_run(planned) == {}


def test_another_deadline_reruns_only_selection_and_the_report(planned):
    rules = would_run(planned, "--config", "select=deadline=5.2s")
    assert rules == {"all": 1, "select_plan": 1, "write_report": 1, "report_campaign": 1}


def test_another_strategy_searches_anew_beside_the_old_results(planned):
    rules = would_run(planned, "--config", 'overrides=["search=random"]')
    assert rules["search_partition"] == 4
    assert rules["resolve_campaign"] == 1  # or `kareus results` would go on listing the old ones


def test_editing_a_budget_reruns_search_but_not_extraction(planned, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(planned, copy)
    informed = copy / "config/search/informed.yaml"
    informed.write_text(informed.read_text().replace("most: 64", "most: 48"))
    rules = would_run(copy)
    assert rules["search_partition"] == 4
    assert {"compose_frontiers", "solve_pipeline", "select_plan", "write_report"} <= set(rules)
    assert not {"extract_partitions", "enumerate_schedules", "profile_instructions"} & set(rules)


def test_every_method_is_played_back_close_to_its_prediction(planned, iteration):
    table = read_table(planned / "results" / NAME / "engine/end-to-end/iterations.parquet", ITERATIONS)
    rows = compare_runs(table, iteration)
    assert [row.method for row in rows] == iteration["method"].unique(maintain_order=True).to_list()
    for row in rows:
        assert abs(row.time_percent) < 3, row
        assert abs(row.energy_percent) < 1, row  # of chips that stay warm
    assert "End to end" in (planned / "results" / NAME / "report/summary.txt").read_text()


def test_snakemakes_own_report_has_captions(planned, tmp_path):
    done = snakemake(planned, "--report", str(tmp_path / "report.zip"))
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        names = [Path(name).name for name in archive.namelist()]
        (index,) = (name for name in archive.namelist() if Path(name).name == "report.html")
        text = archive.read(index).decode()
    shown = ("page.html", "index.html", "summary.txt", *(f"{figure}.svg" for figure in (*PLOTS, "fastest")))
    assert all(name in names for name in shown), names
    captions = {path.stem for path in (ROOT / "workflow/report").glob("*.rst")}
    assert set(PLOTS) | {"workflow", "page", "summary", "timeline", "fleets", "campaign"} <= captions
    for said in (
        "simulated testbed",
        f"What every method costs, and what the chosen plans of {NAME} save",
        '"Workloads"',
        '"Campaign"',
    ):
        assert said in text, said


def test_a_lost_file_of_a_report_is_written_on_request(planned, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(planned, copy)
    lost = Path("results", NAME, "report/figures/search.svg")
    (copy / lost).unlink()
    assert would_run(copy, str(lost)) == {"write_report": 1}


@pytest.mark.parametrize("method", METHODS)
def test_no_plan_of_a_method_dominates_another(iteration, method):
    plans = iteration.filter(pl.col("method") == method).sort("time_s")
    assert len(plans) >= (1 if method in ("sequential", "nanobatching") else 10)
    assert (np.diff(plans["time_s"]) > 0).all()
    assert (np.diff(plans["energy_j"]) < 0).all()


def frontier(iteration, method):
    plans = iteration.filter(pl.col("method") == method).sort("time_s")
    return plans["time_s"].to_numpy(), plans["energy_j"].to_numpy()


def least_energy(iteration, method, deadlines_s):
    times_s, energies_j = frontier(iteration, method)
    return np.array([energies_j[times_s <= d].min(initial=np.inf) for d in deadlines_s])


def test_methods_rank_as_in_the_paper_at_max_throughput(iteration):
    """Paper, table 3, first row: kareus beats nanobatching+perseus, which beats sequential+perseus."""
    fastest = {m: frontier(iteration, m)[0][0] for m in METHODS}
    assert fastest["kareus"] < fastest["nanobatching+perseus"] < fastest["sequential+perseus"]


def test_methods_rank_as_in_the_paper_on_the_frontier(iteration):
    times_s = np.concatenate([frontier(iteration, m)[0] for m in METHODS])
    kareus, nanobatching, sequential = (
        least_energy(iteration, m, times_s) for m in ("kareus", "nanobatching+perseus", "sequential+perseus")
    )
    reached = np.isfinite(nanobatching)
    assert (kareus[reached] < nanobatching[reached]).all()
    reached = np.isfinite(sequential)
    assert (nanobatching[reached] < sequential[reached]).all()


def test_gains_are_of_the_size_that_the_paper_measured(iteration):
    """First row of the paper's tables: 12.3 % less time, 19.6 % less energy at max throughput (Kareus)."""
    time_s, energy_j = (values[0] for values in frontier(iteration, "sequential"))
    kareus_s, kareus_j = (values[0] for values in frontier(iteration, "kareus"))
    assert 0.05 < 1 - kareus_s / time_s < 0.25
    assert 0.08 < 1 - kareus_j / energy_j < 0.35


def test_every_plan_is_within_one_per_cent_of_its_lower_bound(iteration):
    assert iteration.filter(pl.col("method").is_in(METHODS[1::2] + METHODS[4:]))["gap"].max() < 0.01
    assert iteration["gap"].min() >= -1e-9


def test_everything_measured_says_that_it_was_simulated(planned):
    folder = planned / "results" / NAME
    for path, schema in (
        (folder / "frontier/microbatch.parquet", MICROBATCH),
        (folder / "pipeline/iteration.parquet", ITERATION),
        *((p, CANDIDATES) for p in folder.glob("search/*/candidates.parquet")),
    ):
        assert read_provenance(path, schema).testbed.kind == "simulated"
    assert json.loads((folder / "plan/fastest.json").read_text())["testbed"]["kind"] == "simulated"
    assert "simulated testbed" in (folder / "report/summary.txt").read_text()
    assert "simulated testbed" in (folder / "report/page.html").read_text().lower()


def test_every_table_of_the_workload_is_about_the_same(planned):
    folder = planned / "results" / NAME
    workload = load_slice(folder / "config/workload.yaml", Workload)
    downloads = set(folder.glob("report/data/*.parquet"))
    tables = [path for path in folder.rglob("*.parquet") if path not in downloads]
    assert len(tables) == 2 + 1 + 2 + 4 * 3 + 1 + 2 + 1
    assert downloads
    origins = [json.loads(pl.read_parquet_metadata(path)["kareus"])["provenance"] for path in tables]
    assert {origin["subject"] for origin in origins} == {subject_of(workload)}


def test_a_plan_written_by_the_workflow_passes_its_check(planned):
    plan = planned / "results" / NAME / "plan/fastest.json"
    done = subprocess.run(
        [sys.executable, "-m", "kareus", "check-plan", str(plan)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "a valid plan of 36 instructions" in done.stdout  # of 8 microbatches, and 2 of the update on each stage


def export(plan, name, output):
    command = [sys.executable, "-m", "kareus", "export", str(plan), "--format", name, "--output", str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_plan_written_by_the_workflow_is_exported(planned, tmp_path):
    done = export(planned / "results" / NAME / "plan/fastest.json", "trace", tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "exported").read_text().count("forward") >= 16


def test_what_zeus_cannot_run_is_answered_with_commands(planned, tmp_path):
    plan = planned / "results" / NAME / "plan/fastest.json"
    done = export(plan, "zeus", tmp_path / "exported")
    assert done.returncode == 2
    assert not (tmp_path / "exported").exists()
    commands = done.stderr.strip().partition("export a plan without: ")[2].replace("kareus ", "python -m kareus ")
    other = plan.with_name("fastest_sequential+perseus.zeus.py")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-c", commands], env=environment, check=False).returncode == 0
    assert other.read_text().count("forward") >= 16
    other.unlink()
    other.with_name("fastest_sequential+perseus.json").unlink()


def test_all_tables_of_the_workflow_open_as_one(planned):
    tables = open_results(planned / "results")
    rows = tables["candidates"].group_by("workload", "testbed").agg(pl.col("partition").n_unique()).collect().rows()
    assert rows == [(NAME, "simulated testbed, A100-SXM4-40GB", 4)]


def test_removing_one_table_remakes_it_without_measuring(planned, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(planned, copy)
    searches = copy / "results" / NAME / "search"
    before = read_table(searches / "forward-mlp-allreduce/candidates.parquet", CANDIDATES)
    shutil.rmtree(searches / "forward-mlp-allreduce")
    done = snakemake(copy, f"results/{NAME}/search/forward-mlp-allreduce/candidates.parquet")
    assert done.returncode == 0, done.stderr
    assert read_table(searches / "forward-mlp-allreduce/candidates.parquet", CANDIDATES).equals(before)
    log = (copy / "results" / NAME / "logs/search/forward-mlp-allreduce.log").read_text()
    assert "candidates: 0 measured" in log


ODD = "--config", 'overrides=["microbatch_size=5"]'


def test_an_odd_microbatch_has_nothing_to_search(tmp_path):
    rules = would_run(checkout(tmp_path), *ODD)
    assert rules["compose_frontiers"] == rules["write_report"] == 1
    assert "search_partition" not in rules


@pytest.mark.acceptance
def test_an_odd_microbatch_is_planned_without_nanobatches(tmp_path):
    folder = checkout(tmp_path)
    done = snakemake(folder, *ODD)
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = folder.glob("results/*_mbs5_*/report/summary.txt")
    assert "nanobatching" not in summary.read_text()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=lama3.2-3b", "llama3.2-3b"),
        pytest.param("microbatchsize=8", "microbatch_size", marks=pytest.mark.acceptance),
        pytest.param("parallelism.tp=5", "tp", marks=pytest.mark.acceptance),
        ("microbatch_size=16", "memory"),
    ],
)
def test_an_unplannable_workload_is_refused_in_one_line(tmp_path, override, message):
    done = snakemake(checkout(tmp_path), "-n", "--config", f'overrides=["{override}"]')
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.acceptance
def test_python_plans_what_the_workflow_plans(planned, iteration):
    """`test_every_pipeline` says the same of a small workload."""
    results = planned / "results" / NAME
    workload = load_slice(results / "config/workload.yaml", Workload)
    frontiers = plan_tables(workload).frontiers
    assert frontiers.microbatch.equals(read_table(results / "frontier/microbatch.parquet", MICROBATCH))
    assert frontiers.iteration.equals(iteration)
    plan = select_plan(workload, frontiers, "fastest", "kareus", name=plain_name(workload))
    written = kareus.load_plan(results / "plan/fastest.json")
    assert dataclasses.replace(plan, created_at=written.created_at) == written
