"""docs/fidelity.md says of every GPU and software what is known today, and the frozen page that it is frozen."""

import csv
import re
from pathlib import Path

import pytest
import yaml
from helpers.builders import CONFIG

import fidelity_tables
from kareus.prediction.errors import TABLE
from kareus.workload.resolve import resolve_accepted

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "fidelity.md").read_text()


def lines_of(heads):
    lines = PAGE.splitlines()
    first = lines.index(heads[0]) + len(heads)
    return lines[first : lines.index("", first)]


def test_the_table_is_what_its_script_makes_today():
    rows = list(fidelity_tables.pair_rows(fidelity_tables.power_answer()))
    assert fidelity_tables.replaced(PAGE, fidelity_tables.PAIRS, rows) == PAGE, "run make refitted"


def test_every_pair_that_was_measured_has_its_errors_in_the_table():
    with TABLE.open(newline="") as file:
        pairs = list(csv.DictReader(file))
    assert pairs
    for pair in pairs:
        (line,) = (
            line
            for line in lines_of(fidelity_tables.PAIRS)
            if line.startswith(f"| {pair['gpu']} | {pair['software']} |")
        )
        assert f" {float(pair['percent_90']):.1f} % |" in line
        assert f" {float(pair['mean_percent']):.1f} % |" in line
        assert f"| {pair['rows']} rows, {pair['groups']} model" in line


@pytest.mark.parametrize("path", sorted((CONFIG / "gpu").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_usual_software_of_every_gpu_is_in_the_table(path):
    (workload,) = resolve_accepted([f"gpu={path.stem}"]).values()
    begin = f"| {workload.gpu.name} | {workload.software.name} |"
    assert any(line.startswith(begin) for line in lines_of(fidelity_tables.PAIRS))


def test_every_software_is_in_the_table():
    named = {name for line in lines_of(fidelity_tables.PAIRS) for name in line.split("|")[2].strip().split(", ")}
    contents = [yaml.safe_load(path.read_text()) for path in (CONFIG / "software").glob("*.yaml")]
    profiles = {content["name"] for content in contents if "name" in content}  # others are further names
    assert profiles <= named


def test_the_page_is_short_enough_to_find_a_job_in_it():
    assert len(PAGE.splitlines()) < 140
    assert PAGE.index(fidelity_tables.PAIRS[0]) < 1200, "the table comes before all else"


def test_a_page_of_evidence_says_that_it_is_frozen_and_of_what():
    pages = sorted((DOCS / "evidence").glob("*.md"))
    assert pages
    for page in pages:
        top = page.read_text()[:600]
        assert "**This page is frozen.**" in top
        assert re.search(r"of \d+ \w+ 20\d\d, of version \d+ of the GPU model", top)
