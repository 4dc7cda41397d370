"""The first result in README.md is what a reader gets: the answer of the default workload, and its two figures."""

import re
from pathlib import Path

import pytest
from helpers.default_workload import NAME

from kareus.report.outcome import run_lines

ROOT = Path(__file__).parents[2]
QUESTIONS = {
    "how wrong may it be for H100 with Megatron?": ("docs/trust.md", "| H100-SXM5-80GB | megatron-core |"),
    "what do I get with FSDP?": ("README.md", "| torchtitan, FSDP2 |"),
    "what must I be allowed to do?": ("docs/howto/trainers.md#in-all-of-them", "**What you must be allowed to do.**"),
    "what ran on a GPU?": ("README.md", "**Ran on a real GPU:"),
    "how do I undo it?": ("docs/howto/trainers.md#in-all-of-them", "**How to undo it.**"),
}
"""What readers ask first: where the answer is, one click from the README at most, and what it begins with."""


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


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_one_click_from_the_readme(question):
    link, answer = QUESTIONS[question]
    assert link == "README.md" or f"]({link})" in (ROOT / "README.md").read_text()
    assert answer in (ROOT / link.partition("#")[0]).read_text()
