"""Planning from measured microbatch frontiers, without partitions and searches."""

import pytest
from helpers.measured import SIMULATED, measured_workload, true_costs, true_frontiers

import kareus
from kareus.artifacts.layout import WorkloadFolder
from kareus.cli import main
from kareus.errors import ArtifactError, ConfigError
from kareus.plans.measured import plan_measured
from kareus.plans.planned_folder import write_microbatch
from kareus.workload.naming import plain_name


@pytest.fixture(scope="module")
def workload():
    return measured_workload()


@pytest.fixture(scope="module")
def folder(workload, tmp_path_factory):
    """A folder as profiling in place leaves it."""
    folder = WorkloadFolder(tmp_path_factory.mktemp("profiled") / "job")
    write_microbatch(folder, workload, true_frontiers(workload, true_costs(workload)), SIMULATED)
    return folder


def test_a_measured_folder_is_planned_without_its_overrides(folder, workload, tmp_path, caplog):
    caplog.set_level("INFO")
    words = ["plan", "--measured", str(folder.path), "--select", "min-energy", "--output", str(tmp_path / "look")]
    assert main(words) == 0
    (planned,) = (tmp_path / "look").iterdir()
    assert caplog.records[1].message.endswith("[simulated testbed, A100-SXM4-40GB]")
    assert main(["check-plan", str(planned)]) == 0
    assert main(["select", "straggler=1.1x", str(planned), "--method", "sequential+perseus"]) == 0
    plan = kareus.load_plan(planned / "plan/min-energy.json")
    assert {i.execution for _, i in plan.keyed} == {"sequential"}
    assert kareus.plan(workload, "min-energy", measured=folder.path).prediction == plan.prediction


def test_a_measured_frontier_is_shown_and_saved_as_any_other(folder, workload, tmp_path):
    frontier = kareus.frontier(workload, measured=folder.path)
    assert len(str(frontier).splitlines()) == 3
    assert frontier._repr_html_().startswith("<div><img ")
    saved = frontier.save(tmp_path / "look")
    assert main(["select", "straggler=1.1x", str(saved)]) == 0
    assert kareus.load_plan(saved / "plan/straggler=1.1x.json").prediction == frontier.plan("straggler=1.1x").prediction


def test_a_plan_of_measurements_has_no_sm_counts_to_export(folder, workload, tmp_path, capsys):
    """Its folder has no graphs either, which exports of SM counts read; nor what an earlier plan compared with."""
    earlier = WorkloadFolder(tmp_path / "look" / plain_name(workload)).full_power
    earlier.parent.mkdir(parents=True)
    earlier.write_text("{}")
    assert main(["plan", "--measured", str(folder.path), "--output", str(tmp_path / "look")]) == 0
    capsys.readouterr()
    assert main(["export", *map(str, (tmp_path / "look").iterdir()), "--format", "megatron"]) == 2
    assert "no instruction overlaps" in capsys.readouterr().err
    assert not earlier.exists()


def test_other_numbers_of_microbatches_use_the_measurements(folder, workload):
    twice = measured_workload("num_microbatches=32")
    times_s = [plan_measured(folder, w).iteration["time_s"].min() for w in (workload, twice)]
    assert 1.5 < times_s[1] / times_s[0] < 2


def test_measurements_of_another_workload_are_refused(folder):
    with pytest.raises(ArtifactError, match="made for another workload: microbatch_size=2 here, 4 there; give"):
        plan_measured(folder, measured_workload("microbatch_size=2"))


def test_an_update_that_was_not_measured_is_refused(folder):
    with pytest.raises(ConfigError, match=r"iteration.include_update=true: .*; give iteration.include_update=false"):
        plan_measured(folder, measured_workload("iteration.include_update=true"))


def test_a_folder_without_measurements_is_refused(tmp_path, capsys):
    assert main(["plan", "--measured", str(tmp_path)]) == 2
    assert f"{tmp_path}: has no measured frontiers; give the folder of a `Profiling`" in capsys.readouterr().err
