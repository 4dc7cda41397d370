"""Falsified plans: an edit is seen by the seal; an edit that is sealed anew, by the frontiers."""

import dataclasses
import json

import pytest
from helpers.builders import resealed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_check import BACKWARD, folder_of, instruction, microbatch_rows, origin

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.records import to_plain
from kareus.artifacts.tables import write_table
from kareus.cli import main
from kareus.errors import ArtifactError
from kareus.frontiers.tables import MICROBATCH
from kareus.plans.check import check_plan
from kareus.plans.check_stage import read_checked_plan
from kareus.plans.file import read_plan
from kareus.plans.frontiers import read_frontiers
from kareus.plans.request import check_frontiers
from kareus.workload.slices import cut

ABLATION = "kareus-without-frequency"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results with a frontier of two plans, whose slower one has all instructions at another point."""
    folder, _ = folder_of(tmp_path_factory.mktemp("results"))
    for selector in SELECTORS:
        assert main(["select", selector, str(folder)]) == 0
    return folder


def falsified(folder, tmp_path, change, selector="fastest", *, seal=True):
    """Path of a plan of the folder after `change`, outside of it."""
    plan = json.loads((folder / f"plan/{selector}.json").read_text())
    change(plan)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(resealed(plan) if seal else plan))
    return path


def check(folder, path):
    return main(["check-plan", str(path), "--folder", str(folder)])


def leaves(value, place=()):
    """Places of all scalars of a document."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*place, key))]
    if isinstance(value, list):
        return [leaf for number, item in enumerate(value) for leaf in leaves(item, (*place, number))]
    return [place]


def edited(value):
    """Another value of the same type."""
    return value + 1 if isinstance(value, int) else 1.01 * value + 1e-2 if isinstance(value, float) else f"{value}x"


def edited_places(folder, selector):
    """Places of all values of the selector's plan but the seal itself."""
    plan = json.loads((folder / f"plan/{selector}.json").read_text())
    return [place for place in leaves(plan) if place != ("seal",)]


def replace(plan, place, change):
    holder = plan
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = change(holder[place[-1]])


UNCHECKED = {("kareus_version",), ("created_at",)}
"""What only the seal can vouch for."""

BOUND = ("prediction", "lower_bound_j")
SELECTORS = ["fastest", "min-energy", "deadline=2500ms", "edp"]


@pytest.fixture(scope="module")
def check_alike(folder):
    """Checks a plan file as `check-plan` does, over a workload and frontiers that are read once."""
    _, workload = read_checked_plan(folder / "plan/fastest.json", None)
    frontiers = read_frontiers(WorkloadFolder(folder), workload)
    launches = dict.fromkeys(BACKWARD, ("norm", "gate_up"))

    def check_again(path):
        plan = read_plan(path)
        check_plan(plan, workload, folder.name, path, launches)
        check_frontiers(plan, frontiers, cut(workload, "pipeline"), path)

    return check_again


def accepted(check_alike, path):
    """Whether the resealed plan passes; what is refused names the file."""
    try:
        check_alike(path)
    except ArtifactError as error:
        assert "plan.json: " in str(error)
        return False
    return True


@pytest.mark.parametrize("selector", SELECTORS)
def test_an_edit_of_any_value_breaks_the_seal(folder, tmp_path, check_alike, selector):
    for place in edited_places(folder, selector):
        path = falsified(folder, tmp_path, lambda p, at=place: replace(p, at, edited), selector, seal=False)
        with pytest.raises(ArtifactError, match=r"schema version|seal does not fit"):
            check_alike(path)


@pytest.mark.parametrize("selector", SELECTORS)
def test_the_frontiers_refuse_a_resealed_edit_of_any_value(folder, tmp_path, check_alike, selector):
    passed = {
        place
        for place in edited_places(folder, selector)
        if accepted(check_alike, falsified(folder, tmp_path, lambda p, at=place: replace(p, at, edited), selector))
    }
    # The best plan by energy times delay lies between two precomputed ones, and so does its bound.
    assert passed == UNCHECKED | ({BOUND} if selector == "edp" else set())


@pytest.mark.parametrize(
    ("factor", "message"), [(0.8, "by the iteration frontier between"), (1.1, "is above energy_j")]
)
def test_the_bound_of_a_plan_between_two_lies_between_theirs(folder, tmp_path, check_alike, factor, message):
    path = falsified(folder, tmp_path, lambda p: replace(p, BOUND, lambda bound_j: factor * bound_j), "edp")
    with pytest.raises(ArtifactError, match=message):
        check_alike(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0), st.integers(0, 7), st.sampled_from(["flip", "cut", "splice"]))
def test_a_damaged_file_is_refused_or_the_plan_that_was_written(folder, tmp_path, where, bit, damage):
    whole = (folder / "plan/edp.json").read_bytes()
    at, path = where % len(whole), tmp_path / "edp.json"
    flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    path.write_bytes({"flip": flipped, "cut": whole[:at], "splice": whole[:at] + whole[at // 2 :]}[damage])
    try:
        assert read_plan(path) == read_plan(folder / "plan/edp.json")
    except ArtifactError as error:
        assert "\n" not in str(error)


def all_clocks(plan, mhz=900):
    for stage in plan["stages"]:
        for one in stage["instructions"]:
            one["frequency_mhz"] = mhz


def all_halved(plan):
    """Every energy, with all that follows from it, as far as the plan itself can tell."""
    saved_j = 0.0
    for stage in plan["stages"]:
        for one in stage["instructions"]:
            saved_j += 8 * one["energy_j"] / 2
            one["energy_j"] /= 2
    plan["prediction"]["energy_j"] -= saved_j
    plan["prediction"]["dynamic_energy_j"] -= saved_j
    plan["prediction"]["lower_bound_j"] = plan["prediction"]["energy_j"]


def select_sequential(plan):
    one = instruction(plan)
    one.update(execution="sequential", partitions=[])


FALSIFIED = {
    "all clocks lowered, times as they were": (all_clocks, "fastest", "'overlap' at 900 MHz with these choices is no "),
    "costs halved": (
        all_halved,
        "fastest",
        "takes 0.1 s and 15 J, by the microbatch frontier 0.1 s and 30 J",
    ),
    "one execution": (select_sequential, "fastest", "'sequential' at 1410 MHz with these choices is no point"),
    "one launch": (
        lambda p: instruction(p)["partitions"][0].update(launch="gate_up"),
        "fastest",
        "with these choices is no point of the microbatch frontier of 'kareus'",
    ),
    "one SM count": (
        lambda p: instruction(p)["partitions"][0].update(sm_count=9),
        "fastest",
        "with these choices is no point of the microbatch frontier of 'kareus'",
    ),
    "another method": (
        lambda p: p.update(method="sequential"),
        "fastest",
        "of the microbatch frontier of 'sequential'",
    ),
    "a method of the same points": (
        lambda p: p.update(method="kareus-without-kernel-schedule"),
        "fastest",
        "of the microbatch frontier of 'kareus-without-kernel-schedule'",
    ),
    "a deadline that it does not keep": (
        lambda p: p.update(selector="deadline=1s"),
        "fastest",
        "selector: 'deadline=1s' allows 1 s, the plan has 1.2",
    ),
    "an energy that it does not keep": (
        lambda p: p.update(selector="energy=1kJ"),
        "fastest",
        "selector: 'energy=1kJ' allows 1000 J, the plan has ",
    ),
    "a power that it does not keep": (
        lambda p: p.update(selector="power=1kW"),
        "fastest",
        "selector: 'power=1kW' allows 1000 W, the plan has ",
    ),
    "a straggler that it does not keep": (
        lambda p: p.update(selector="straggler=1.5x"),
        "min-energy",
        "selector: 'straggler=1.5x' allows 1.8",
    ),
    "the slower plan as the fastest": (
        lambda p: p.update(selector="fastest"),
        "min-energy",
        "selector: 'fastest' allows 1.2",
    ),
    "the faster plan as the most frugal": (
        lambda p: p.update(selector="min-energy"),
        "fastest",
        "selector: 'min-energy' asks for the least energy_j",
    ),
    "a deadline that allows a better plan": (
        lambda p: p.update(selector="deadline=9s"),
        "fastest",
        "selector: 'deadline=9s' asks for the least energy_j",
    ),
    "an energy that allows a better plan": (
        lambda p: p.update(selector="energy=9MJ"),
        "min-energy",
        "selector: 'energy=9MJ' asks for the least time_s",
    ),
    "a cost that another plan undercuts": (
        lambda p: p.update(selector="cost=1perGPUh"),
        "min-energy",
        "selector: 'cost=1perGPUh' asks for the least cost",
    ),
    "no selector at all": (lambda p: p.update(selector="quickest"), "fastest", "selector 'quickest': not understood"),
    "a lower bound halved": (
        lambda p: p["prediction"].update(lower_bound_j=p["prediction"]["lower_bound_j"] / 2),
        "fastest",
        "prediction.lower_bound_j=",
    ),
    "a lower bound of a deadline halved": (
        lambda p: p["prediction"].update(lower_bound_j=p["prediction"]["lower_bound_j"] / 2),
        "deadline=2500ms",
        "by the iteration frontier between",
    ),
    "another testbed of the same GPU": (
        lambda p: p["testbed"].update(detail="2"),
        "fastest",
        "planned from simulated testbed, A100-SXM4-40GB (2), the frontiers are from simulated testbed",
    ),
}


@pytest.mark.parametrize("name", FALSIFIED)
def test_a_falsified_plan_with_a_valid_seal_is_refused(folder, tmp_path, capsys, name):
    change, selector, message = FALSIFIED[name]
    path = falsified(folder, tmp_path, change, selector)
    assert check(folder, path) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("command", ["check-plan", "export", "train"])
def test_every_reader_of_plans_refuses_an_edited_one(folder, tmp_path, capsys, command):
    path = falsified(folder, tmp_path, all_clocks, seal=False)
    options = {"export": ["--format", "zeus"], "train": ["--iterations", "1", "--output", str(tmp_path / "run")]}
    assert main([command, str(path), "--folder", str(folder), *options.get(command, [])]) == 2
    assert "plan.json: was edited or damaged after it was written" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.json"]


def test_a_plan_of_a_frontier_that_was_measured_anew_is_refused(tmp_path, capsys):
    folder, workload = folder_of(tmp_path)
    assert main(["select", "fastest", str(folder)]) == 0
    rows = [row | {"energy_j": 1.01 * row["energy_j"]} for row in microbatch_rows()]
    write_table(
        folder / "frontier/microbatch.parquet", MICROBATCH.frame(rows), MICROBATCH, origin(workload, "frontier")
    )
    assert main(["check-plan", str(folder / "plan/fastest.json")]) == 2
    assert "takes 0.1 s and 30 J, by the microbatch frontier 0.1 s and 30.3 J" in capsys.readouterr().err


@pytest.mark.parametrize("is_near", [True, False])
def test_a_copied_plan_is_answered_with_the_option_to_type(folder, tmp_path, monkeypatch, capsys, is_near):
    copy, here = tmp_path / "mine.json", folder.parents[1] if is_near else tmp_path / "away"
    copy.write_bytes((folder / "plan/deadline=2500ms.json").read_bytes())
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    assert main(["export", str(copy), "--format", "csv"]) == 2
    error = capsys.readouterr().err.strip()
    typed = error.partition("; add ")[2].removesuffix(".")
    assert typed == f"--folder {folder.relative_to(here) if is_near else f'FOLDER/{folder.name}'}"
    if is_near:
        assert main(["export", str(copy), "--format", "csv", "--output", "mine.csv", *typed.split()]) == 0


def test_a_plan_outside_its_folder_is_checked_in_itself_only(folder, tmp_path, caplog, capsys):
    caplog.set_level("INFO")
    moved = tmp_path / "mine.json"
    moved.write_bytes((folder / "plan/deadline=2500ms.json").read_bytes())
    assert main(["check-plan", str(moved)]) == 0
    assert "not checked against its workload and frontiers, since it is not in a results folder" in caplog.text
    assert "results/" not in caplog.text, "no folder is named that may not be there"
    path = falsified(folder, tmp_path, lambda p: p.update(selector="deadline=1s"))
    assert main(["check-plan", str(path)]) == 2
    assert "selector: 'deadline=1s' allows 1 s" in capsys.readouterr().err


def test_costs_are_said_to_be_unchecked_without_frontiers(tmp_path, caplog):
    caplog.set_level("INFO")
    folder, _ = folder_of(tmp_path)
    assert main(["select", "fastest", str(folder)]) == 0
    (folder / "frontier/microbatch.parquet").unlink()
    assert main(["check-plan", str(folder / "plan/fastest.json")]) == 0
    assert f"times and energies are not checked, since {folder} has no frontiers" in caplog.text


def test_a_plan_under_the_name_of_another_selector_is_refused(tmp_path, capsys):
    folder, _ = folder_of(tmp_path)
    assert main(["select", "min-energy", str(folder)]) == 0
    plan = folder / "plan/min-energy.json"
    (folder / "plan/fastest.json").write_bytes(plan.read_bytes())
    (folder / "plan/tuesday.json").write_bytes(plan.read_bytes())
    assert main(["check-plan", str(folder / "plan/fastest.json")]) == 2
    assert "fastest.json: the plan of 'min-energy'; select 'fastest' anew, or use another name." in (
        capsys.readouterr().err
    )
    assert main(["check-plan", str(folder / "plan/tuesday.json")]) == 0


def test_a_plan_that_no_one_touched_passes(folder):
    for path in sorted((folder / "plan").iterdir()):
        plan, _ = read_checked_plan(path, None)
        assert dataclasses.replace(plan) == plan
        assert to_plain(plan)["selector"] == path.stem
