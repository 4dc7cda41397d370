"""Planning in one process: that it computes as jobs of the workflow do."""

from types import SimpleNamespace

import numpy as np  # noqa: F401 - brings the library whose threads are counted
import polars as pl
import pytest
from helpers.builders import CONFIG
from helpers.planned import SMALL
from threadpoolctl import threadpool_info, threadpool_limits

from kareus.cli import main
from kareus.pipeline.methods import METHODS, method_named, planned_beside
from kareus.plans import planning
from kareus.plans.file import read_plan
from kareus.workload.resolve import resolve_accepted


def test_linear_algebra_has_one_thread(monkeypatch):
    def threads(*_workload_and_methods):
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    monkeypatch.setattr(planning, "_tables", threads)
    simulated = SimpleNamespace(testbed=SimpleNamespace(kind=planning.TestbedKind.SIMULATED))
    with threadpool_limits(limits=2):
        before = threads(None)
        assert set(before) == {2}
        assert set(planning.plan_tables(simulated)) == {1}
        assert threads(None) == before


@pytest.fixture(scope="module")
def searched():
    """A workload, and its iteration frontiers of all methods."""
    (workload,) = resolve_accepted(SMALL, CONFIG).values()
    return workload, planning.plan_tables(workload)


@pytest.mark.parametrize("name", ["sequential+perseus", "nanobatching+perseus", "kareus-without-kernel-schedule"])
def test_methods_that_need_no_search_are_planned_as_beside_it_without_one(monkeypatch, searched, name):
    workload, everything = searched
    profiled = []
    measured = planning.profile_instructions

    def counted(config, graphs, *others):
        profiled.append(len(graphs))
        return measured(config, graphs, *others)

    monkeypatch.setattr(planning, "profile_instructions", counted)
    monkeypatch.setattr(planning, "search_partition", None)  # would be called
    methods = planned_beside(name)
    tables = planning.plan_tables(workload, methods)
    is_wanted = pl.col("method").is_in([method.name for method in methods])
    assert everything.searches and not tables.searches
    assert tables.iteration.equals(everything.iteration.filter(is_wanted))
    assert set(tables.microbatch["method"]) == {method.points_of for method in methods}
    assert profiled == [1 if name.startswith("sequential") else 2]


def test_a_method_is_planned_beside_all_that_need_no_more():
    assert planned_beside("kareus") == list(METHODS)
    assert [method.name for method in planned_beside("sequential")] == ["sequential", "sequential+perseus"]
    assert method_named("nanobatching") in planned_beside("kareus-without-kernel-schedule")


def test_plans_of_an_earlier_method_stay_usable_beside_those_of_one_that_needs_less(tmp_path):
    """Both are written into one folder, as `kareus plan` prints them."""
    given = ["plan", *SMALL, "--output", str(tmp_path)]
    assert main(given) == 0
    assert main([*given, "--method", "sequential+perseus"]) == 0
    (folder,) = tmp_path.iterdir()
    for plan in ("fastest", "fastest_sequential+perseus"):
        assert main(["check-plan", str(folder / f"plan/{plan}.json")]) == 0
    assert main(["select", "fastest", str(folder)]) == 0


def test_a_point_is_selected_of_what_was_planned(tmp_path):
    """Where a trainer's method was planned alone, nobody has to name it again."""
    assert main(["plan", *SMALL, "--output", str(tmp_path), "--method", "sequential+perseus"]) == 0
    (folder,) = tmp_path.iterdir()
    assert main(["select", "straggler=1.02x", str(folder)]) == 0
    assert read_plan(folder / "plan/straggler=1.02x_sequential+perseus.json").method == "sequential+perseus"
