"""Plans for machines whose clocks may not be locked, chosen, printed, checked and carried."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.builders import resealed
from helpers.doc_examples import run_examples
from helpers.planned import SMALL, planned_folder

import kareus
from kareus.api import resolve
from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.cli import main
from kareus.device.actuators import Actuator, ActuatorKind
from kareus.errors import ArtifactError, ConfigError
from kareus.plans.actuated import (
    SLOWER,
    actuated_lines,
    actuated_method,
    best_power_limit,
    clock_goal,
    limited,
    plan_for,
)
from kareus.plans.file import read_plan, write_plan
from kareus.plans.frontiers import read_frontiers
from kareus.plans.units import scaled
from kareus.plans.workload_frontier import WorkloadFrontier
from kareus.prediction.workload_prediction import predict
from kareus.report.workload.headline import headline_of
from kareus.report.workload.inputs import Paths, load
from kareus.report.workload.page import in_trainer
from kareus.workload.slices import PlanSlice


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return planned_folder(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def workload(folder):
    return load_slice(WorkloadFolder(folder).config("plan"), PlanSlice).workload


@pytest.fixture(autouse=True)
def _all_lines(caplog):
    caplog.set_level("INFO")


def selected(folder, caplog, *arguments):
    caplog.clear()
    assert main(["select", "fastest", str(folder), *arguments]) == 0
    lines = list(caplog.messages)
    return lines, read_plan(Path(lines[-1].removeprefix("plan   ")))


def test_examples_run():
    run_examples(actuated_method)
    run_examples(clock_goal)


@pytest.mark.acceptance
def test_a_limit_suits_its_selector_as_no_other_does(workload):
    limit_w, own = best_power_limit(workload, "fastest"), predict(workload)
    best = predict(limited(workload, limit_w))
    assert best.time_s <= 1.05 * own.time_s
    for share in (0.95, 0.75):
        other = predict(limited(workload, share * workload.gpu.power_limit_w))
        assert other.time_s > 1.05 * own.time_s or other.energy_j >= best.energy_j * (1 - 1e-9)
    assert clock_goal("fastest") == SLOWER


@pytest.mark.parametrize(
    ("text", "actuator"),
    [
        ("none", Actuator(kind=ActuatorKind.NONE)),
        ("power", Actuator(kind=ActuatorKind.POWER, limit_w=400.0)),
        ("profile=max-q", Actuator(kind=ActuatorKind.PROFILE, profiles=("max-q",))),
    ],
)
def test_a_plan_without_clocks_says_what_locks_would_save_and_can_be_checked(
    folder, workload, caplog, capsys, text, actuator
):
    lines, plan = selected(folder, caplog, "--actuator", text)
    assert plan.actuator == actuator
    assert {i.frequency_mhz for _, i in plan.keyed} == {workload.gpu.maximum_clock_mhz}
    assert plan.clocks(0)[0][1] is None
    assert any(line.startswith("locked clocks (kareus) would take ") for line in lines)
    (whole,) = [line for line in lines if line.startswith("in Megatron-Core, which runs instructions whole: ")]
    assert whole.endswith(f" --method sequential --actuator {actuator.option}")
    assert "no change of clock: none is locked" in lines
    assert any("should have no power profiles" in line for line in lines) is (actuator.kind is ActuatorKind.PROFILE)
    path = lines[-1].removeprefix("plan   ")
    assert main(["check-plan", path]) == 0
    assert main(["export", path, "--format", "zeus"]) == 2
    assert "and Zeus sets clocks; select it with --actuator clocks." in capsys.readouterr().err
    assert main(["export", path, "--format", "megatron", "--force"]) == 0


def test_plans_of_clocks_have_no_actuator_in_their_files(folder, caplog):
    lines, plan = selected(folder, caplog)
    assert plan.actuator.sets_clocks
    assert "actuator" not in json.loads(Path(lines[-1].removeprefix("plan   ")).read_text())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan: plan["actuator"].update(limit_w=300.0), "its workload was planned at 400 W"),
        (lambda plan: plan["actuator"].update(limit_w=0.0), "sets a power limit, its workload was planned at 400 W"),
        (lambda plan: plan["actuator"].update(kind="clock"), "actuator.kind"),
        (lambda plan: plan["actuator"].update(kind="clocks"), "kind clocks with limit_w=400 and 0 profiles"),
        (
            lambda plan: plan["actuator"].update(kind="profile", limit_w=0.0),
            "limit_w=0 and 0 profiles",
        ),
        (
            lambda plan: plan["actuator"].update(kind="profile", limit_w=0.0, profiles=["max-speed"]),
            "power profiles max-speed: must be one to 4",
        ),
        (lambda plan: plan["stages"][0]["instructions"][0].update(frequency_mhz=900), "has an instruction at 900 MHz"),
    ],
)
def test_a_falsified_actuator_is_refused(folder, caplog, capsys, tmp_path, change, said):
    lines, _ = selected(folder, caplog, "--actuator", "power")
    document = json.loads(Path(lines[-1].removeprefix("plan   ")).read_text())
    change(document)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(resealed(document)))
    assert main(["check-plan", str(path), "--folder", str(folder)]) == 2
    assert said in capsys.readouterr().err


def test_another_limit_is_planned_with_it(folder, capsys):
    assert main(["select", "fastest", str(folder), "--actuator", "power=300W"]) == 2
    assert "was planned at 400 W; plan with gpu.power_limit_w=300." in capsys.readouterr().err


def test_no_plan_is_for_more_than_the_gpu_has(capsys):
    assert main(["plan", *SMALL, "--actuator", "power=401W"]) == 2
    assert "must be at most the 400 W of A100" in capsys.readouterr().err


def test_a_limit_is_the_same_as_actuator_and_as_override():
    job = ("gpu=h100-sxm5-80gb", "software=megatron-core")
    (whole,), (at_limit,) = resolve(job), resolve([*job, "gpu.power_limit_w=600"])
    assert limited(whole, 600.0) == at_limit
    assert limited(at_limit, whole.gpu.power_limit_w) == whole


@pytest.mark.acceptance
def test_plan_chooses_the_limit_and_compares_with_full_power(folder, workload, caplog, tmp_path):
    assert main(["plan", *SMALL, "--actuator", "power", "--output", str(tmp_path), "--force"]) == 0
    (path,) = tmp_path.glob("*W/plan/*.json")
    plan, out = read_plan(path), caplog.text
    own = read_frontiers(WorkloadFolder(folder), workload).plans("sequential").row(0, named=True)
    assert plan.actuator.limit_w == best_power_limit(workload, "fastest") < 400
    assert f"a power limit of {plan.actuator.limit_w:g} W: adapters set it" in out
    assert f"instead of {scaled(own['time_s'], 's', digits=4)} and {scaled(own['energy_j'], 'J', digits=4)}" in out
    assert main(["check-plan", str(path)]) == 0
    page = (path.parent.parent / "report/page.html").read_text()
    (saved,) = re.findall(rf"limit of {plan.actuator.limit_w:g} W\), in Kareus' engine: (.*)own execution: ", out)
    saved = saved.replace("'", "&#39;")
    assert f": {saved}own execution at full power." in page
    assert f"All else here is at a power limit of {plan.actuator.limit_w:g} W" in page
    assert f"of the least time at a limit of {plan.actuator.limit_w:g} W" in page
    place = WorkloadFolder(path.parent.parent)
    again = ["stage", "report", "--title", place.name, "--config", place.config("plan"), "--plans", path]
    again += ["--iteration", place.iteration, "--microbatch", place.microbatch, "--output", tmp_path / "again"]
    assert main([str(part) for part in [*again, "--force"]]) == 0
    assert f": {saved}own execution at full power." in (tmp_path / "again/page.html").read_text()


def test_the_head_of_a_page_compares_with_full_power(folder, caplog, tmp_path):
    """If the folder has such a plan; without one, as figures do, with the baseline of the same tables."""
    _, chosen = selected(folder, caplog, "--actuator", "power")
    place, title = WorkloadFolder(folder), f"{folder.name}_400W"
    plan = replace(chosen, workload=title)
    write_plan(tmp_path / "plan.json", plan)
    paths = Paths(
        config=place.config("plan"),
        iteration=place.iteration,
        microbatch=place.microbatch,
        plans=[tmp_path / "plan.json"],
        candidates=[],
        rounds=[],
        proposals=[],
    )
    cost = plan.prediction
    usual = replace(chosen, prediction=replace(cost, time_s=cost.time_s / 1.25, energy_j=cost.energy_j / 0.8))
    at_limit = headline_of(load(title, paths), plan)
    assert "at full power" not in at_limit.sentence
    assert at_limit.meaning == "Fastest: least energy within 0.3 % of the least time at a limit of 400 W."
    write_plan(place.full_power, usual)
    try:
        against = headline_of(load(title, paths), plan).sentence
        write_plan(place.full_power, replace(usual, workload="another"))
        with pytest.raises(ArtifactError, match=r"full-power\.json: a plan for another "):
            load(title, paths)
    finally:
        place.full_power.unlink()
    assert "25 % more time and 20 % less energy" in against
    assert against.endswith(" at full power")


def test_what_was_measured_is_of_one_limit(capsys, tmp_path):
    assert main(["plan", "--measured", str(tmp_path), "--actuator", "power"]) == 2
    assert "what was measured is of one power limit" in capsys.readouterr().err


def test_the_page_says_of_such_a_plan_what_the_terminal_says(folder, caplog):
    lines, plan = selected(folder, caplog, "--actuator", "none")
    (saved,) = [line for line in lines if line.startswith("locked clocks")]
    file = Path(lines[-1].removeprefix("plan   ")).stem
    place = WorkloadFolder(folder)
    paths = Paths(
        config=place.config("plan"),
        iteration=place.iteration,
        microbatch=place.microbatch,
        plans=[place.plans / f"{file}.json"],
        candidates=[],
        rounds=[],
        proposals=[],
    )
    said = in_trainer(load(folder.name, paths), file)
    assert f"{saved[0].upper()}{saved[1:]}." in said["words"]
    assert said["is_obeyable"]
    assert plan.actuator == Actuator(kind=ActuatorKind.NONE)


@pytest.mark.acceptance
def test_a_multiple_of_the_least_time_counts_once(folder, workload):
    """Each selector has the limit that suits it, and its plan is within that multiple of the time at full power."""
    frontier = kareus.frontier(workload)
    least_s = min(frontier.points.filter(method="sequential")["time_s"])
    times_s, limits_w = [], []
    for factor in (1.02, 1.1):
        plan = frontier.plan(f"straggler={factor}x", "sequential", "power")
        assert plan.prediction.time_s <= factor * least_s
        times_s.append(plan.prediction.time_s)
        limits_w.append(plan.actuator.limit_w)
    assert times_s[1] > 1.03 * times_s[0]
    assert limits_w[1] < limits_w[0] < workload.gpu.power_limit_w


def test_python_takes_what_the_machine_lets_be_set(folder, workload):
    frontier = WorkloadFrontier(workload=workload, planned=read_frontiers(WorkloadFolder(folder), workload))
    plan = frontier.plan("fastest", "kareus", "none")
    assert (plan.method, plan.actuator.kind) == ("kareus-without-frequency", ActuatorKind.NONE)
    with pytest.raises(ConfigError, match="of one power limit"):
        frontier.plan("fastest", "kareus", "power")
    with pytest.raises(ConfigError, match="--actuator volts: not known"):
        kareus.plan(workload, actuator="volts")


@pytest.mark.parametrize(
    ("software", "said"),
    [
        ("torchtitan", "adapters set it, put back what was there before"),
        ("nanotron", "no adapter follows plans in nanotron: call kareus.adapters.power_cap.cap_power(400, model), or "),
        ("mine", "no adapter follows plans in mine: call "),
    ],
)
def test_adapters_are_named_where_there_is_one(folder, workload, software, said):
    frontiers = read_frontiers(WorkloadFolder(folder), workload)
    plan = plan_for(Actuator(kind=ActuatorKind.POWER), workload, frontiers, "fastest", "sequential", "name")
    by = replace(workload, software=replace(workload.software, name=software))
    line, *_ = actuated_lines(plan, by, frontiers, (by, frontiers), "type {} {}".format)
    assert line.startswith(f"a power limit of 400 W: {said}")


def test_a_comparison_says_what_each_plan_sets(folder, caplog, capsys, tmp_path):
    for name, text in (("clocks", "clocks"), ("none", "none")):
        selected(folder, caplog, "--actuator", text, "--output", str(tmp_path / f"{name}.json"))
    plans = [str(tmp_path / name) for name in ("clocks.json", "none.json")]
    options = ["--folder", str(folder)]
    assert main(["compare", *plans, *options]) == 0
    out = capsys.readouterr().out
    assert "plan fastest of kareus-without-frequency under default clocks [" in out
    assert "plan fastest of kareus [" in out
    assert "to 1410" in out
