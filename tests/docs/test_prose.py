"""Pages that people read on their way: no page too long, no sentence that has to be read twice."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "docs/tutorials", "docs/howto")
PATH = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md")))]
"""What is on the way of users; research notes and internals stand apart."""
FOR_DEVELOPERS = ("architecture.md",)
MOST_WORDS, MOST_IN_A_PAGE, MOST_IN_A_SENTENCE = 25_000, 4_000, 40
PAGES = [page for page in PATH if page.name not in FOR_DEVELOPERS]


def sentences(text: str) -> Iterator[str]:
    """Sentences of a page's prose: no code, tables, headings or targets of links; items of lists stand alone."""
    text = re.sub(r"```.*?```|<div.*?</div>", "", text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"^(\||#|!).*$", "", text, flags=re.M))
    for item in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", text, flags=re.M):
        yield from re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[\"(])|;\s", " ".join(item.split()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_read_in_one_go(page):
    text = page.read_text()
    assert len(text.split()) <= MOST_IN_A_PAGE
    assert [one for one in sentences(text) if len(one.split()) > MOST_IN_A_SENTENCE] == []


def test_the_way_is_not_longer_than_it_was():
    assert sum(len(page.read_text().split()) for page in PAGES) <= MOST_WORDS


def test_a_sentence_ends_where_a_reader_breathes():
    text = (
        "# One\n\nTwo words. Three more [words](at/a.md); four.\n\n- five: Six.\n\n```sh\nseven eight\n```\n| nine |\n"
    )
    assert [one for one in sentences(text) if one] == ["Two words.", "Three more [words]", "four.", "five:", "Six."]
