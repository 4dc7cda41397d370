"""`ramp=`, `floor=` and `swing=`: the plan that is chosen keeps them, and none that is faster does."""

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from helpers.builders import resealed
from helpers.planned import SMALL, planned_folder

import kareus
from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.cli import main
from kareus.errors import ConfigError
from kareus.plans.build import plan_of_row, select_plan
from kareus.plans.frontiers import read_frontiers
from kareus.plans.power import power_over_time
from kareus.plans.selectors import Selector, check_costs_suffice, parse_selector, spelled
from kareus.workload.slices import PlanSlice

CHANGED = {"pipeline.deadlines": "9", "microbatch_size": "8", "model.num_layers": "28"}
LONGER = tuple("=".join((key, CHANGED.get(key, value))) for key, _, value in (text.partition("=") for text in SMALL))
"""Iterations of some seconds, with more plans."""


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> tuple[Path, object, object]:
    """The folder of a small workload, the workload and its frontiers."""
    folder = WorkloadFolder(planned_folder(tmp_path_factory.mktemp("grid"), overrides=LONGER))
    workload = load_slice(folder.config("plan"), PlanSlice).workload
    return folder.path, workload, read_frontiers(folder, workload)


def seen(plan, gpu) -> dict[str, float]:
    """What each goal limits, by sums over moments a millisecond apart."""
    frame = power_over_time(plan, gpu)
    edges_s, powers_w = frame["time_s"].to_numpy(), frame["power_w"].to_numpy()
    moments_s = np.arange(0.5e-3, 3 * edges_s[-1] + 3, 1e-3) % edges_s[-1]
    totals = np.concatenate(([0.0], np.cumsum(powers_w[np.searchsorted(edges_s, moments_s, side="right") - 1])))
    means_w = (totals[1000:] - totals[:-1000]) / 1000
    mean_w = plan.prediction.energy_j / plan.prediction.time_s
    ramp_w = np.abs(means_w[1000:] - means_w[:-1000]).max()
    return {"swing": (means_w.max() - means_w.min()) / mean_w, "ramp": ramp_w, "floor": -means_w.min()}


def rows(planned) -> list[tuple[float, dict[str, float]]]:
    _, workload, frontiers = planned
    plans = [
        plan_of_row(workload, "any", "fastest", row, frontiers)
        for row in frontiers.plans("kareus").sort("time_s").iter_rows(named=True)
    ]
    return [(plan.prediction.time_s, seen(plan, workload.gpu)) for plan in plans]


UNITS = {"swing": (100, "%"), "ramp": (1, "W/s"), "floor": (-1, "W")}


def test_the_iterations_are_longer_than_the_windows(planned):
    assert all(time_s > 1.5 for time_s, _ in rows(planned))


@pytest.mark.parametrize("goal", ["swing", "ramp", "floor"])
def test_the_chosen_plan_keeps_the_limit_and_no_faster_one_does(planned, goal, capsys):
    folder, workload, _ = planned
    frontier = rows(planned)
    values = [of[goal] for _, of in frontier]
    limit = (min(values) + max(values)) / 2
    factor, unit = UNITS[goal]
    assert (
        main(["select", f"{goal}={factor * limit:.9f}{unit}", str(folder), "--output", str(folder / "mine.json")]) == 0
    )
    plan = kareus.load_plan(folder / "mine.json")
    tolerance = 5e-3 * max(map(abs, values))
    assert seen(plan, workload.gpu)[goal] <= limit + tolerance
    faster = [of[goal] for time_s, of in frontier if time_s < plan.prediction.time_s / 1.0031]
    assert all(value > limit - tolerance for value in faster)
    assert main(["check-plan", str(folder / "mine.json"), "--folder", str(folder)]) == 0


def test_the_price_of_a_limit_is_said(planned, caplog):
    folder, *_ = planned
    swings = [of["swing"] for _, of in rows(planned)]
    caplog.set_level("INFO")
    assert main(["select", f"swing={100 * (min(swings) + 1e-3):.4f}%", str(folder), "--force"]) == 0
    assert re.search(r"all GPUs draw .* swing .*, largest ramp .* in kW: [\d., ]+", caplog.text)
    assert "the limit costs" in caplog.text
    assert re.search(r"idle burn of GPUs that wait would keep it in the time of `fastest`: [\d.]+ k?J", caplog.text)
    assert list((folder / "plan").glob("swing=*percent.json"))


@pytest.mark.parametrize("asked", ["swing=0.1%", "ramp=1W/s", "floor=1MW"])
def test_what_no_plan_keeps_is_refused_with_what_one_does(planned, asked, capsys):
    folder, *_ = planned
    assert main(["select", asked, str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    reached = re.search(r"the nearest that can be reached is ([\d.,]+) (\S+),", said)
    again = f"{asked.partition('=')[0]}={reached[1].replace(',', '')}{reached[2]}"
    assert main(["select", again, str(folder), "--output", str(folder / "nearest.json")]) == 0


def test_an_edited_limit_is_refused(planned, capsys):
    folder, *_ = planned
    assert main(["select", "swing=900%", str(folder), "--output", str(folder / "wide.json")]) == 0
    text = json.loads((folder / "wide.json").read_text())
    (folder / "wide.json").write_text(json.dumps(resealed(text | {"selector": "swing=0.1percent"})))
    assert main(["check-plan", str(folder / "wide.json"), "--folder", str(folder)]) == 2
    assert "select the plan anew" in capsys.readouterr().err


def test_python_selects_them_too(planned):
    folder, workload, frontiers = planned
    plan = select_plan(workload, frontiers, "swing=900%", "kareus", name="any")
    assert plan.selector == "swing=900percent"
    assert plan.prediction.time_s <= 1.003 * frontiers.plans("kareus").select(pl.min("time_s")).item()
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("text", "limit"), [("ramp=2kW/s", 2e3), ("ramp=2kWpers", 2e3), ("floor=3kW", 3e3), ("swing=25%", 0.25)]
)
def test_units_are_read_as_typed_and_as_names_of_files_spell_them(text, limit):
    found = parse_selector(text)
    assert found.limit == pytest.approx(limit)
    assert parse_selector(spelled(text)) == found
    assert re.fullmatch(r"[A-Za-z0-9=.+-]+", spelled(text)), "as rules name jobs"


def test_what_only_knows_times_and_energies_refuses_them():
    with pytest.raises(ConfigError, match="ramp: limits how power moves within an iteration"):
        check_costs_suffice(parse_selector("ramp=2kW/s"))
    check_costs_suffice(Selector(parse_selector("power=2kW").goal, 2e3))
