"""What notebooks show of plans, frontiers and advice: a figure and three lines."""

import base64
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import pytest
from helpers.builders import CONFIG
from helpers.driving import driven_plan
from helpers.planned import SMALL

import kareus.api  # which names who draws
from kareus.artifacts import shown


@pytest.fixture(scope="module")
def frontier():
    return kareus.frontier(*kareus.resolve(SMALL, CONFIG))


@pytest.fixture(scope="module")
def advice():
    asked = ["model=qwen3-1.7b", "gpu=h200", "tp=1", "microbatch_size=4", "recompute=none"]
    return kareus.advise(asked, gpus=4, global_batch=16, config_dir=CONFIG)


@pytest.fixture(params=["plan", "frontier", "advice"])
def record(request, frontier):
    return frontier.plan() if request.param == "plan" else request.getfixturevalue(request.param)


def parts(html):
    """The drawing and the lines of a cell."""
    cell = re.fullmatch(r'<div><img [^>]*src="data:image/svg\+xml;base64,([^"]*)"><p>(.*)</p></div>', html)
    return ElementTree.fromstring(base64.b64decode(cell[1])), [unescape(line) for line in cell[2].split("<br>")]


@pytest.mark.slow
def test_a_cell_has_a_figure_and_three_lines(record):
    drawing, lines = parts(record._repr_html_())
    assert drawing.tag.endswith("svg")
    assert len(list(drawing.iter())) > 50
    assert len(lines) == 3
    assert all(lines)
    assert str(record).splitlines() == lines


@pytest.mark.slow
def test_the_lines_say_what_it_costs_and_where_that_comes_from(frontier):
    plan = frontier.plan("min-energy")
    told = str(plan)
    assert "[simulated testbed, A100-SXM4-40GB]" in told
    shown_ms = float(re.search(r"([\d.]+) ms", told)[1])
    assert shown_ms == pytest.approx(1e3 * plan.prediction.time_s, rel=5e-4)
    points = frontier.points.filter(method="kareus")
    assert str(frontier).endswith(f"to {points['time_s'].max():.4g} s and {points['energy_j'].min() / 1e3:.4g} kJ")
    assert str(frontier).splitlines()[0].startswith(f"{frontier.name}: {len(frontier.points)} plans")


class Printer:
    """As IPython's: keeps what is printed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def text(self, text: str) -> None:
        self.texts.append(text)


def test_a_terminal_prints_the_lines_without_a_figure():
    plan, printer = driven_plan(), Printer()
    plan._repr_pretty_(printer, False)
    assert printer.texts == [str(plan)]
    assert len(str(plan).splitlines()) == 3


def test_names_from_files_are_text_and_nothing_else():
    plan = driven_plan()
    named = replace(plan, workload="<b>bold</b>")
    assert "<b>" not in named._repr_html_()
    assert parts(named._repr_html_())[1][0].startswith("<b>bold</b>")


def test_a_record_without_the_api_prints_as_any_other(monkeypatch):
    monkeypatch.setattr(shown, "_drawers", [])
    plan = driven_plan()
    assert str(plan) == repr(plan)
    assert plan._repr_html_() is None


def test_printing_a_plan_imports_neither_charts_nor_torch(tmp_path):
    driven_plan().save(tmp_path / "plan.json")
    script = "import sys, kareus; print(kareus.load_plan('plan.json')); "
    script += "assert not {'altair', 'vl_convert', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == f"{driven_plan()}\n"
