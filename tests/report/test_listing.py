"""What `kareus results` lists: the newest plan by what plans say, exports left out, filters of a folder of results."""

import datetime
import os

import pytest
from helpers.builders import CONFIG
from helpers.planned import SMALL

from kareus.cli import main
from kareus.report.outcome import outcome


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """Folder of a workload with a page, a plan of it and one that is chosen later."""
    folder = tmp_path_factory.mktemp("look")
    assert main(["plan", *SMALL, "--config-dir", str(CONFIG), "--output", str(folder)]) == 0
    (workload,) = folder.iterdir()
    assert main(["select", "min-energy", str(workload)]) == 0
    return workload


def said(caplog, *words):
    caplog.clear()
    with caplog.at_level("INFO"):
        assert main(["results", *map(str, words)]) == 0
    return caplog.text


def test_exports_beside_plans_are_no_plans(looked, caplog):
    plan = looked / "plan/fastest.json"
    for form in ("trace", "torchtitan"):
        assert main(["export", str(plan), "--format", form]) == 0
    assert len(outcome(looked).plans) == 2
    assert "schema" not in said(caplog, looked.parent)


def test_the_newest_plan_is_the_one_planned_last(looked):
    plan = looked / "plan/fastest.json"
    later_s = datetime.datetime.now(datetime.UTC).timestamp() + 1000
    os.utime(plan, (later_s, later_s))
    assert [found.answer.selector for found in outcome(looked).plans] == ["min-energy", "fastest"]


def test_a_summary_begins_with_all_plans(looked, caplog):
    text = said(caplog, looked)
    assert text.index("min-energy") < text.index("Max throughput")
    assert "the summary and the page are of fastest alone" in text


def test_filters_need_a_folder_of_results(looked, capsys, caplog):
    assert main(["results", str(looked), "--newest", "1"]) == 2
    assert "the folder of one workload" in capsys.readouterr().err
    assert looked.name in said(caplog, looked.parent, "--newest", "1")
