"""Profiling in place, on a job in virtual time whose GPUs have the times and energies of the GPU model."""

import contextlib
import errno
import os
import shutil
import time

import polars as pl
import pytest
import torch
from helpers.fake_device import FakeDevice
from helpers.measured import SIMULATED, measured_workload, true_costs, true_frontiers
from helpers.virtual_job import Cap, ThreadAgreement, VirtualJob

from kareus.adapters import driver as driver_module
from kareus.adapters import profiling as profiling_module
from kareus.adapters.agreement import Alone
from kareus.adapters.driver import drive_by_plan
from kareus.adapters.estimates import measured_points
from kareus.adapters.layout import RankLayout
from kareus.adapters.profiling import WARM_UP, ProfileChoice, Profiling
from kareus.adapters.tables import SWEPT
from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.artifacts.store import Shelf
from kareus.device.claims import FOLDER_VARIABLE
from kareus.errors import ConfigError, EngineError
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Direction
from kareus.pipeline.frontiers import solve_iteration
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.solver.dag import iteration_dag, makespan
from kareus.plans.build import select_plan
from kareus.plans.frontiers import Frontiers
from kareus.plans.measured import plan_measured
from kareus.workload.slices import cut

METHOD = "sequential+perseus"
ITERATIONS = 100


@pytest.fixture(scope="module")
def job():
    workload = measured_workload()
    return VirtualJob(workload=workload, costs=true_costs(workload))


def choices_of(job, folder, **changes):
    """Choices of all ranks of a job that is profiled."""
    request = Profiling(workload="not read", folder=folder, **({"most_slowdown": 0.1, "precision": 0.005} | changes))
    orders, agreement = job.orders(), ThreadAgreement(len(job.orders()))
    return [
        ProfileChoice(
            request,
            workload=job.workload,
            layout=job.layout(rank),
            running=running,
            testbed=SIMULATED,
            agreement=agreement.of(rank),
        )
        for rank, running in enumerate(orders)
    ]


@pytest.fixture(scope="module")
def profiled(job, tmp_path_factory):
    """The folder that a profiled job wrote, and its GPUs."""
    folder = tmp_path_factory.mktemp("profiled") / "measured"
    return folder, job.run(choices_of(job, folder), ITERATIONS)


def read_microbatch(folder):
    return pl.read_parquet(WorkloadFolder(folder).microbatch)


def test_microbatch_frontiers_of_the_model_are_recovered(job, profiled):
    folder, _ = profiled
    true = true_frontiers(job.workload, job.costs).filter(pl.col("method") == "kareus")
    key = ["method", "stage", "chunk", "direction", "frequency_mhz"]
    both = true.join(read_microbatch(folder), on=key, how="left", suffix="_measured")
    frontier = both.filter("on_frontier")
    found = frontier.filter(pl.col("on_frontier_measured"))
    assert len(found) / len(frontier) > 0.8  # points that noise puts behind their neighbours are no loss
    for name in ("time_s", "energy_j"):
        errors = abs(found[f"{name}_measured"] / found[name] - 1)
        assert errors.mean() < 0.004
        assert errors.max() < 0.02  # twice the standard error that the sweep ends with


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_plan_of_what_was_measured_is_that_of_the_truth(job, profiled, share):
    folder, _ = profiled
    truth = true_frontiers(job.workload, job.costs)
    iteration, _ = solve_iteration(cut(job.workload, "pipeline"), truth)
    true = Frontiers(iteration=iteration, microbatch=truth, testbed=SIMULATED)
    measured = plan_measured(WorkloadFolder(folder), job.workload)
    fastest_s, frugal_s = (max(f.plans(METHOD)["time_s"][n] for f in (true, measured)) for n in (0, -1))
    deadline_s = 1e-6 + fastest_s + share * (frugal_s - fastest_s)
    selector = f"deadline={deadline_s:.7f}s"  # rounded, it is not below
    best, plan = (select_plan(job.workload, f, selector, METHOD, name="job") for f in (true, measured))
    for time_s, energy_j in ((plan.prediction.time_s, plan.prediction.energy_j), true_cost(job, plan)):
        assert time_s <= 1.01 * deadline_s
        if share < 1.0:  # plans of about the least energy differ in time
            assert time_s == pytest.approx(best.prediction.time_s, rel=0.01)
        assert energy_j == pytest.approx(best.prediction.energy_j, rel=0.01)


def true_cost(job, plan):
    """What a plan truly takes: each instruction at its clock."""
    costs = [job.costs[key.kind][i.frequency_mhz] for key, i in plan.keyed]
    time_s = makespan(iteration_dag(cut(job.workload, "pipeline")), [time_s for time_s, _ in costs])
    waiting_w, parallelism = job.workload.gpu.blocking_power_w, job.workload.parallelism
    effective_j = sum(energy_j - waiting_w * own_s for own_s, energy_j in costs)
    return time_s, effective_j * parallelism.gpus_per_stage + waiting_w * time_s * parallelism.gpus


def test_the_slow_down_is_announced_before_it_starts_and_kept(job, tmp_path, caplog):
    caplog.set_level("INFO")
    changes = {"most_slowdown": 0.05, "most_visits": 2}
    job.run(choices_of(job, tmp_path / "begun", **changes), 1)
    assert caplog.messages == [
        "profile: 11 clocks from 900 to 1410 MHz, each visited 2 to 2 times, in rounds of 62 iterations; the job runs "
        "at 1410 MHz between, and takes at most 4.5 % longer meanwhile"
    ]
    gpus = job.run(choices_of(job, tmp_path / "whole", **changes), 130)
    assert ", 2.6 % more time than at 1410 MHz; the sweep has ended, plan with kareus plan " in caplog.messages[-1]
    assert gpus[0].now_s < 1.05 * 130 * job.length_s(1410)


def test_nothing_but_clocks_differs_and_all_stages_have_the_same(profiled):
    _, gpus = profiled
    assert gpus[0].asked == gpus[1].asked
    assert set(gpus[0].asked) == set(measured_workload().gpu.search_frequencies.clocks_mhz)
    assert gpus[0].asked[-1] == 1410  # where the job goes on


def test_a_killed_sweep_goes_on_where_it_was(job, tmp_path, caplog):
    caplog.set_level("INFO")
    job.run(choices_of(job, tmp_path), WARM_UP + 30)  # ends amid the first round
    rows = swept_rows(tmp_path, job)
    visited = {row["frequency_mhz"] for row in rows}
    assert 2 < len(visited) < 11
    gpus = job.run(choices_of(job, tmp_path), WARM_UP + 25, seed=1)
    assert f"; goes on after {len(visited)} visits" in caplog.text
    again = swept_rows(tmp_path, job)
    assert all(row in again for row in rows)
    first = [clock for clock in gpus[0].asked if clock != 1410][: 11 - len(visited)]
    assert not visited & set(first)  # what is missing comes first


def test_a_visit_that_a_kill_cut_short_is_made_again(job, tmp_path, caplog):
    caplog.set_level("INFO")
    job.run(choices_of(job, tmp_path), WARM_UP + 30)
    rows = swept_rows(tmp_path, job)
    clocks = {row["frequency_mhz"] for row in rows}
    cut_short = min(clocks)
    rows.remove(next(row for row in rows if row["frequency_mhz"] == cut_short))
    shutil.copytree(tmp_path / "swept/rank-00001", tmp_path / "killed/swept/rank-00001")
    with shelf_of(tmp_path / "killed", job) as shelf:
        for row in rows:
            shelf.append(row)
    gpus = job.run(choices_of(job, tmp_path / "killed"), WARM_UP + 100)
    assert f"; goes on after {len(clocks) - 1} visits" in caplog.text
    assert cut_short in [clock for clock in gpus[0].asked if clock != 1410][: 12 - len(clocks)]
    visits = [row["visit"] for row in swept_rows(tmp_path / "killed", job) if row["frequency_mhz"] == cut_short]
    assert all(visits.count(visit) == 2 for visit in visits)  # forward and backward


HOT = ("thermal-limit",)


def test_visits_whose_clock_was_lost_are_made_again(job, tmp_path, caplog):
    changes = {"most_visits": 2}
    gpus = job.run(choices_of(job, tmp_path, **changes), 130, cap=Cap(1155, HOT, until_s=40 * job.length_s(1410)))
    assert "left out" not in caplog.text
    rows = swept_rows(tmp_path, job, rank=1)
    assert {(row["frequency_mhz"], row["visit"]) for row in rows} >= {
        (clock, visit) for clock in job.workload.gpu.search_frequencies.clocks_mhz for visit in range(2)
    }
    assert not any(row["is_power_limited"] for row in rows)
    last = [row for row in rows if row["frequency_mhz"] == 1410]
    for row in last:  # none has the cost of the clock that the GPU was at in the first rounds
        kind = InstructionKind(row["stage"], row["chunk"], Direction(row["direction"]))
        assert row["time_s"] == pytest.approx(job.costs[kind][1410][0], rel=0.03)
    assert gpus[0].asked == gpus[1].asked


def test_clocks_that_a_hot_gpu_never_keeps_are_left_out(job, tmp_path, caplog):
    gpus = job.run(choices_of(job, tmp_path, most_visits=2), 200, cap=Cap(1155, HOT))
    clocks = job.workload.gpu.search_frequencies.clocks_mhz
    hot = [clock for clock in clocks if clock > 1155]
    assert f"profile: {', '.join(map(str, hot))} MHz asked for and not kept in 3 visits, and left out" in caplog.text
    assert set(read_microbatch(tmp_path).filter(pl.col("stage") == 1)["frequency_mhz"]) == set(clocks) - set(hot)
    assert gpus[0].asked == gpus[1].asked


def test_a_sweep_that_keeps_no_clock_ends_at_the_drivers_own(job, tmp_path, caplog):
    gpus = job.run(choices_of(job, tmp_path), 300, cap=Cap(750, HOT))
    assert "No clock is left: the sweep ends, at the driver's own clocks from here on." in caplog.text
    assert [gpu.asked[-1] for gpu in gpus] == [None, None]
    assert not list(tmp_path.rglob("microbatch.parquet"))


def test_costs_at_the_power_limit_are_kept_and_marked(job, tmp_path):
    job.run(choices_of(job, tmp_path, most_visits=2), 130, cap=Cap(1155, ("power-limit",)))
    marked = {row["frequency_mhz"] for row in swept_rows(tmp_path, job, rank=1) if row["is_power_limited"]}
    assert marked == {clock for clock in job.workload.gpu.search_frequencies.clocks_mhz if clock > 1155}
    assert not any(row["is_power_limited"] for row in swept_rows(tmp_path, job))
    points = measured_points(swept_rows(tmp_path, job, rank=1))
    assert {p.frequency_mhz for own in points.values() for p in own if p.is_power_limited} == marked


def swept_rows(folder, job, rank=0):
    with shelf_of(folder, job, rank) as shelf:
        return shelf.rows


def shelf_of(folder, job, rank=0):
    provenance = Provenance(config_hash=content_hash(job.workload), testbed=SIMULATED, seed=0)
    return Shelf(folder / f"swept/rank-{rank:05d}", SWEPT, provenance)


def test_a_full_disk_ends_no_job(job, tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "measured")

    monkeypatch.setattr(Shelf, "append", refuse)
    monkeypatch.setattr(profiling_module, "write_microbatch", refuse)
    job.run(choices_of(job, tmp_path / "measured"), ITERATIONS)
    assert any(message.endswith("The job goes on; the frontiers were not written.") for message in caplog.messages)
    assert any(message.endswith("after a kill, its sweep begins anew.") for message in caplog.messages)


@pytest.fixture
def resolved(job, tmp_path):
    """The file of the job's workload."""
    path = tmp_path / "workload.yaml"
    path.write_text(to_yaml(job.workload))
    return path


def opened(job, resolved, gpu, **changes):
    layout = RankLayout(**({"rank": 0, "gpus": 16, "stage": 0, "stages": 2, "microbatches": 16} | changes))
    return Profiling(workload=resolved, folder=resolved.parent).choice(layout, job.orders()[0], gpu, Alone())


def test_a_job_of_another_layout_is_refused(job, resolved, tmp_path):
    with pytest.raises(EngineError, match=r"workload llama3.2-3b_.*: is of 16 microbatches, this job has 8; plan a"):
        opened(job, resolved, FakeDevice(tmp_path), microbatches=8)


def test_a_job_in_another_order_is_refused(job, resolved, tmp_path):
    profiling = Profiling(workload=resolved, folder=tmp_path)
    layout = RankLayout(rank=0, gpus=16, stage=0, stages=2, microbatches=16)
    with pytest.raises(EngineError, match="the plan has forward"):
        profiling.choice(layout, job.orders()[0][1:], FakeDevice(tmp_path), Alone())


def test_a_gpu_is_not_profiled_as_a_simulated_one(job, resolved, tmp_path):
    with pytest.raises(ConfigError, match=r"testbed.kind=simulated: this job runs on a Fake; .* with testbed=cuda"):
        opened(job, resolved, FakeDevice(tmp_path))


def test_a_job_without_a_gpu_is_not_profiled(job, resolved):
    with pytest.raises(EngineError, match="computes on a CPU, whose energy nothing measures"):
        opened(job, resolved, None)


@pytest.mark.parametrize("changes", [{"precision": 0.0}, {"most_visits": 1}])
def test_limits_out_of_range_are_named(changes):
    ((name, _),) = changes.items()
    with pytest.raises(ConfigError, match=name):
        Profiling(workload="w", folder="f", **changes)


QUICK = ("parallelism=tp8", "parallelism.pp=1", "num_microbatches=4", "microbatch_size=2", "testbed=cuda")


def test_a_job_of_one_process_is_profiled_and_planned(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    workload = measured_workload("gpu.search_frequencies.stride_mhz=255", "iteration.include_update=false", of=QUICK)
    (tmp_path / "workload.yaml").write_text(to_yaml(workload))
    gpu = FakeDevice(tmp_path, clocks_mhz=(900, 1155, 1410))
    monkeypatch.setattr(driver_module, "gpu_of", lambda device: gpu)
    keys = [i.key for i in instructions_of(cut(workload, "pipeline"))]
    layout = RankLayout(rank=0, gpus=8, stage=0, stages=1, microbatches=4)
    request = Profiling(workload=tmp_path / "workload.yaml", folder=tmp_path / "out", most_slowdown=1.0, most_visits=2)
    with contextlib.closing(drive_by_plan(request, layout, torch.device("cpu"), keys)) as driver:
        for _ in range(22):
            for key in keys:
                driver.begin(key)
                time.sleep(0.03)
                driver.end(key)
            driver.end_iteration()
    assert "lock 900" in gpu.calls()
    frontiers = plan_measured(WorkloadFolder(tmp_path / "out"), workload)
    assert frontiers.testbed.kind == "cuda"
    points = frontiers.microbatch.filter(pl.col("method") == "sequential")
    assert sorted(set(points["frequency_mhz"])) == [900, 1155, 1410]
    powers_w = points["energy_j"] / points["time_s"]
    assert powers_w.mean() == pytest.approx(100.0, rel=0.15)  # of the made-up GPU


def test_a_job_is_not_profiled_without_setting_clocks(tmp_path):
    request = Profiling(workload=tmp_path, folder=tmp_path)
    layout = RankLayout(rank=0, gpus=8, stage=0, stages=1, microbatches=4)
    with pytest.raises(ConfigError, match="clocks='dry': a job is profiled at clocks that are set"):
        drive_by_plan(request, layout, torch.device("cpu"), [], clocks="dry")
