"""Two plans beside each other: parts add up to iterations, and changes to what the second one takes more."""

import dataclasses
import html
import itertools
import json
from pathlib import Path

import pytest
from helpers.builders import CONFIG, a100
from helpers.planned import planned_folder
from helpers.timed_plans import GPUS_OF_A_STAGE, timed_plan
from hypothesis import given
from hypothesis import strategies as st

from kareus.cli import main
from kareus.errors import ConfigError
from kareus.plans.comparison import CHANGES, WAITS, StageShares, compare, stage_shares
from kareus.plans.power import power_over_time
from kareus.workload.resolve import resolve_accepted

GPU = a100(blocking_power_w=85.0, waiting_shares=((900.0, 0.5), (1410.0, 1.0)))
COST = st.tuples(st.floats(0, 2), st.floats(0.01, 3), st.floats(1, 900))


@given(st.lists(COST, min_size=1, max_size=6), st.lists(COST, min_size=1, max_size=6), st.floats(0, 5))
def test_parts_of_every_stage_add_up_to_the_iteration(first, second, rest_s):
    busy_s = [sum(gap + time for gap, time, _ in costs) for costs in (first, second)]
    planned = timed_plan([first, second], max(busy_s) + rest_s)
    stages = stage_shares(planned, GPU)
    for stage in stages:
        assert stage.working_s + stage.waiting_s == pytest.approx(planned.prediction.time_s, abs=1e-6)
    rows = power_over_time(planned, GPU).rows()  # the other way to the energy: by power, over time
    integral_j = sum(power_w * (after_s - at_s) for (at_s, power_w), (after_s, _) in itertools.pairwise(rows))
    assert sum(stage.energy_j for stage in stages) == pytest.approx(integral_j, rel=1e-6)


def test_waits_are_told_apart_by_where_they_are():
    planned = timed_plan([[(1.0, 1.0, 100.0), (0.5, 1.0, 100.0)], [(0.0, 4.0, 800.0)]], time_s=4.0)
    first, second = stage_shares(planned, GPU)
    waits = {part: first.parts[part].time_s for part in WAITS}
    assert waits == pytest.approx(dict(zip(WAITS, (1.0, 0.5, 0.5), strict=True)))
    assert first.parts[WAITS[0]].energy_j == pytest.approx(GPUS_OF_A_STAGE * 85.0)
    assert not set(WAITS) & set(second.parts)


def test_the_mean_clock_is_over_time():
    planned = timed_plan([[(0.0, 1.0, 100.0), (0.0, 3.0, 100.0)], [(0.0, 4.0, 800.0)]], time_s=4.0)
    stage, other = planned.stages
    slow = dataclasses.replace(stage.instructions[1], frequency_mhz=1010)
    stage = dataclasses.replace(stage, instructions=(stage.instructions[0], slow))
    shares: StageShares = stage_shares(dataclasses.replace(planned, stages=(stage, other)), GPU)[0]
    assert shares.clocks_mhz == (1010, pytest.approx((1410 + 3 * 1010) / 4), 1410)
    assert shares.clock_changes == 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The plans of the trainer's own execution and of Kareus, in the folder of a workload."""
    folder = planned_folder(tmp_path_factory.mktemp("results"))
    plan = folder / "plan/fastest_sequential.json"
    assert main(["select", "fastest", str(folder), "--method", "sequential", "--output", str(plan)]) == 0
    return str(plan), str(folder / "plan/fastest.json")


def compared(capsys, *arguments):
    capsys.readouterr()
    assert main(["compare", *arguments]) == 0
    return capsys.readouterr().out


def test_differences_add_up_to_those_of_the_plans(pair, capsys):
    answer = json.loads(compared(capsys, *pair, "--json"))
    before, after, parts = answer["A"], answer["B"], answer["B - A"]
    more_j = after["energy_j"] - before["energy_j"]
    assert sum(part["energy_j"] for part in parts.values()) == pytest.approx(more_j, rel=1e-6)
    assert sum(part["time_s"] for part in parts.values()) == pytest.approx(after["time_s"] - before["time_s"], abs=1e-6)
    waits_j = sum(parts[part]["energy_j"] for part in WAITS if part in parts)
    changed_j = sum(change["energy_j"] for change in answer["changed"].values())
    assert changed_j + waits_j == pytest.approx(more_j, rel=1e-6)
    assert set(answer["changed"]) <= set(CHANGES)


def test_a_plan_beside_itself_changes_nothing(pair, capsys):
    answer = json.loads(compared(capsys, pair[1], pair[1], "--json"))
    assert list(answer["changed"]) == [CHANGES[0]]
    assert not any(value for part in answer["B - A"].values() for value in part.values())
    assert "B takes the same time and energy as A" in compared(capsys, pair[1], pair[1])


def test_the_terminal_and_the_page_say_the_same(pair, capsys, tmp_path):
    page = tmp_path / "both.html"
    lines = compared(capsys, *pair, "--output", str(page)).splitlines()
    text = html.unescape(page.read_text())
    assert f"{lines[2]}." in " ".join(text.split())
    assert lines[2].startswith("B (fastest of kareus) takes "), "the letters are explained where they are first read"
    assert " than A (fastest of sequential): " in lines[2]
    assert "error: 9 of 10 " in lines[3]
    assert all(line in text for line in lines)
    assert main(["compare", *pair, "--output", str(page)]) == 0  # its own page is replaced


def test_a_plan_that_lies_elsewhere_needs_the_folder_of_its_workload(pair, capsys, tmp_path):
    alone = tmp_path / "plan.json"
    alone.write_bytes(Path(pair[1]).read_bytes())
    assert main(["compare", pair[0], str(alone)]) == 2
    assert "; add --folder FOLDER/" in capsys.readouterr().err
    folder = str(Path(pair[1]).parents[1])
    assert compared(capsys, pair[0], str(alone), "--folder", folder) == compared(capsys, *pair)


def test_plans_of_other_batches_are_refused():
    planned = timed_plan([[(0.0, 1.0, 100.0)], [(0.0, 1.0, 100.0)]], time_s=1.0)
    few, many = (resolve_accepted([f"num_microbatches={n}"], CONFIG).popitem()[1] for n in (2, 4))
    with pytest.raises(ConfigError, match="compare plans with equal batches"):
        compare((planned, few), (planned, many))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("model=qwen3-1.7b", "trains qwen3-1.7b, not llama3.2-3b"),
        ("model.intermediate_size=4096", "another llama3.2-3b"),
    ],
)
def test_plans_for_other_models_are_refused_whatever_their_tokens(model, said):
    planned = timed_plan([[(0.0, 1.0, 100.0)], [(0.0, 1.0, 100.0)]], time_s=1.0)
    pair = [resolve_accepted(changes, CONFIG).popitem()[1] for changes in ([], [model])]
    with pytest.raises(ConfigError, match=said):
        compare((planned, pair[0]), (planned, pair[1]))
