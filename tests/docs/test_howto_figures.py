"""Percentages in the prose of how-tos: each is a constant of the code, or of a page of research that it links to.

What a how-to says that a command printed stands in a block of text below the command: test_printed_commands.py.
"""

import re
from pathlib import Path

import pytest

from kareus.adapters.governor import LEAST_SLOWDOWN
from kareus.adapters.online import LEAST_OF_ASKED
from kareus.adviser.order import FULL_SHARE
from kareus.pareto import AS_FAST
from kareus.prediction.errors import SHARE

DOCS = Path(__file__).parents[2] / "docs"
NEAR_LEAST = f"{100 * AS_FAST:g} %"
HELD = {
    "howto/advise.md": (
        f"where that saves {NEAR_LEAST}",
        f"more than {100 * FULL_SHARE:g} % of a GPU's memory",
        "the first choice is 4.4 % slower than the best on average, the better of the first two 0.8 %",
    ),
    "howto/online.md": (
        f"at least {100 * (LEAST_SLOWDOWN - 1):.0f} % longer for its plan",
        f"a clock is {100 * (1 - LEAST_OF_ASKED):.0f} % below what was asked for",
    ),
    "howto/points.md": (
        f"the least energy within {NEAR_LEAST} of the least time",
        f"`fastest` allows {NEAR_LEAST} because",
        f"within {NEAR_LEAST} of the time of the fastest precomputed plan",
    ),
    "howto/report.md": (f"may take {NEAR_LEAST} longer",),
    "howto/trainer.md": (f"with a chance of {100 * SHARE:.0f} %",),
}
"""What holds the percentages of a page: parts of its sentences that have them."""
RESEARCH = {"howto/advise.md": ("research/ranking.md", ("4.4 %", "0.8 %"))}
"""Percentages that a page of research has measured, which the how-to links to."""
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.glob("howto/*.md"))


def prose(name: str) -> str:
    text = re.sub(r"^```.*?^```$", "", (DOCS / name).read_text(), flags=re.S | re.M)
    return " ".join(text.split())


@pytest.mark.parametrize("name", PAGES)
def test_a_percentage_in_a_how_to_is_held_by_something(name):
    text = re.sub(r"For the default workload .*? more energy", "", prose(name))  # test_readme.py has the sentence
    for part in HELD.get(name, ()):
        assert part in text
        text = text.replace(part, "")
    assert re.findall(r".{0,40}\d %.{0,20}", re.sub(r"`[^`]*`", "", text)) == []


@pytest.mark.parametrize("name", RESEARCH)
def test_a_percentage_of_research_stands_on_its_page(name):
    page, figures = RESEARCH[name]
    assert f"(../{page}" in (DOCS / name).read_text()
    measured = prose(page)
    assert [figure for figure in figures if figure not in measured] == []
