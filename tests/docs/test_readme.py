"""The first result in README.md is what a reader gets: the answer of the default workload, and its two figures."""

import re
from pathlib import Path

import pytest
from helpers.default_workload import NAME

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.plans.answer import answer_of
from kareus.plans.build import select_plan
from kareus.plans.frontiers import read_frontiers
from kareus.plans.idle_burn import least_burn
from kareus.plans.selectors import parse_selector
from kareus.report.outcome import run_lines
from kareus.workload.slices import PlanSlice

ROOT = Path(__file__).parents[2]
QUESTIONS = {
    "how wrong may it be for H100 with Megatron?": ("docs/trust.md", "| H100-SXM5-80GB: megatron-core |"),
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


def test_figures_of_the_default_workload_are_those_of_its_plans(default_workload):
    """What pages say in sentences, where no block shows it."""
    folder = WorkloadFolder(default_workload / "results" / NAME)
    workload = load_slice(folder.config("plan"), PlanSlice).workload
    frontiers = read_frontiers(folder, workload)
    least, fastest, slower, steady = (
        select_plan(workload, frontiers, selector, "kareus", name=NAME)
        for selector in ("straggler=1x", "fastest", "deadline=4.8s", "swing=25%")
    )
    saved = answer_of(slower, frontiers.iteration).energy_reduction_percent
    burnt = least_burn(fastest, workload.gpu, parse_selector("swing=25%"))
    assert burnt is not None
    costs = [f"{p.prediction.time_s:.3f} s and {p.prediction.energy_j / 1e3:.2f} kJ" for p in (least, fastest)]
    more, less = (100 * abs(b / a - 1) for a, b in zip(_cost(fastest), _cost(steady), strict=True))
    said = {
        "README.md": (f"may take 4.8 s, it needs {saved:.0f} % less energy",),
        "docs/howto/points.md": (
            f"the plan of the least time of the default workload takes {costs[0]}, `fastest` {costs[1]} (simulated)",
            f"`swing=25%` takes {more:.1f} % more time and {less:.1f} % less energy; idle burn keeps the same limit at "
            f"once, with {100 * burnt.energy_j / fastest.prediction.energy_j:.1f} % more energy",
        ),
    }
    for page, sentences in said.items():
        text = " ".join((ROOT / page).read_text().split())
        assert [sentence for sentence in sentences if sentence not in text] == []


def _cost(plan):
    return plan.prediction.time_s, plan.prediction.energy_j


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_one_click_from_the_readme(question):
    link, answer = QUESTIONS[question]
    assert link == "README.md" or f"]({link})" in (ROOT / "README.md").read_text()
    assert answer in (ROOT / link.partition("#")[0]).read_text()
