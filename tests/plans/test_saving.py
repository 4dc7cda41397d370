"""Keeping what was planned from Python: plan files and folders of workloads."""

from dataclasses import replace

import pytest
from helpers.builders import CONFIG
from helpers.driving import driven_plan
from helpers.planned import SMALL

import kareus
from kareus.cli import main
from kareus.errors import ArtifactError, ConfigError
from kareus.plans.file import read_plan


def test_a_saved_plan_is_the_plan(tmp_path):
    plan = driven_plan()
    plan.save(tmp_path / "new/folder/mine.json")
    assert kareus.load_plan(tmp_path / "new/folder/mine.json") == plan
    replace(plan, gpus=plan.gpus * 2).save(str(tmp_path / "new/folder/mine.json"))
    assert kareus.load_plan(tmp_path / "new/folder/mine.json").gpus == plan.gpus * 2


@pytest.mark.parametrize("content", ["", "notes", '{"mine": 1}'])
def test_what_is_no_plan_is_not_replaced(tmp_path, content):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(ArtifactError, match="is there, and is no plan"):
        driven_plan().save(path)
    assert path.read_text() == content
    with pytest.raises(ArtifactError, match="is there, and is no plan"):
        driven_plan().save(tmp_path)


def test_a_plan_does_not_take_the_name_of_another_selector(tmp_path):
    with pytest.raises(ArtifactError, match="select 'min-energy' anew"):
        driven_plan().save(tmp_path / "plan/min-energy.json")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def frontier():
    return kareus.frontier(*kareus.resolve(SMALL, CONFIG))


@pytest.mark.slow
def test_plans_of_a_frontier_are_those_that_are_planned_one_by_one(frontier):
    plan, alone = frontier.plan("straggler=1.1x"), kareus.plan(frontier.workload, select="straggler=1.1x")
    assert plan == replace(alone, created_at=plan.created_at)
    assert plan.prediction.time_s <= 1.1 * frontier.plan().prediction.time_s
    with pytest.raises(ConfigError, match=r"perhaps you meant sequential\+perseus or "):
        frontier.plan(method="perseus")


@pytest.mark.slow
def test_a_saved_frontier_is_a_folder_that_commands_take(frontier, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = frontier.save("mine")
    assert frontier.save("mine") == folder  # the same again
    frontier.plan().save(folder / "plan/fastest.json")
    assert main(["check-plan", f"{folder}/plan/fastest.json"]) == 0
    assert main(["select", "min-energy", str(folder)]) == 0
    frugal = read_plan(folder / "plan/min-energy.json")
    assert frontier.plan("min-energy") == replace(frugal, created_at=frontier.plan("min-energy").created_at)


@pytest.mark.slow
def test_folders_of_the_workflow_are_left_to_it(frontier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="belongs to the workflow"):
        frontier.save("results")
    assert not list(tmp_path.iterdir())
