"""The first result in README.md is what a reader gets: the answer of the default workload, and its two figures."""

import re
from pathlib import Path

import pytest
from helpers.default_workload import NAME

from kareus.report.outcome import run_lines

ROOT = Path(__file__).parents[2]


def test_the_readme_has_the_answer_that_a_run_ends_with(default_workload, monkeypatch):
    monkeypatch.chdir(default_workload)
    lines = run_lines(Path("results"), [Path("results") / NAME / "plan/fastest.json"], "quickstart")
    assert "```text\n" + "\n".join(lines) + "\n```" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("picture", "figure"),
    [("default_frontier.svg", "figures/iteration.svg"), ("default_timeline.svg", "timelines/fastest.svg")],
)
def test_the_pictures_in_the_readme_are_those_of_the_page(default_workload, picture, figure):
    def texts(path):
        return re.findall(r">([^<>]+)</(?:text|title)>", path.read_text())

    drawn = texts(default_workload / "results" / NAME / "report" / figure)
    assert texts(ROOT / "docs/pictures" / picture) == drawn
    assert any("simulated testbed" in text for text in drawn)
