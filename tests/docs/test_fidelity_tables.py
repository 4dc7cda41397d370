"""Tables of errors and of trainers are made of what is known today, and the frozen page says that it is frozen."""

import csv
import re
from pathlib import Path

import pytest
import yaml
from helpers.builders import CONFIG

import doc_tables
import fidelity_tables
import trainers
from kareus.evidence import shipped_files
from kareus.prediction.errors import TABLE, error_words, pair_errors, time_percent
from kareus.prediction.lines import read_lines
from kareus.prediction.rows import read_iterations
from kareus.workload.compose import compose
from kareus.workload.resolve import resolve_accepted

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "research/fidelity.md").read_text()


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
        usual = {"precision": "bf16", "models": "dense"}
        name = ", ".join([pair["software"], *(pair[key] for key, text in usual.items() if pair[key] != text)])
        lines = [line for line in lines_of(fidelity_tables.PAIRS) if "power of nodes" not in line]
        (line,) = (line for line in lines if line.startswith(f"| {pair['gpu']} | {name} |"))
        assert f" {float(pair['percent_90']):.1f} % |" in line
        assert f" {float(pair['mean_percent']):.1f} % |" in line
        assert f"| {pair['rows']} row{'s' * (pair['rows'] != '1')}, {pair['groups']} model" in line


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


def test_what_to_expect_is_what_its_script_makes_today():
    page = (DOCS / "trust.md").read_text()
    rows = list(fidelity_tables.trust_rows())
    assert fidelity_tables.replaced(page, fidelity_tables.TRUST, rows) == page, "run make refitted"
    words = len(page.split()) - sum(len(row.split()) for row in rows)
    assert words < 420, "the page answers one question"


@pytest.mark.parametrize("path", sorted((CONFIG / "gpu").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_gpu_and_its_software_have_one_error_wherever_it_is_said(path):
    (workload,) = resolve_accepted([f"gpu={path.stem}"]).values()
    lines = (DOCS / "trust.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    pairs = [(one[0].partition(": "), one) for one in cells]
    (row,) = (
        one
        for (gpus, _, software), one in pairs
        if workload.gpu.name in gpus.split(", ") and software == workload.software.name
    )
    said, percents = error_words(workload), re.findall(r"([\d.]+) %", row[2] + row[3])
    assert [f"{float(percent):g} %" in said or f"{percent} %" in said for percent in percents] == [True] * len(percents)
    assert ("never measured: " in said) == row[2].startswith("not measured")


@pytest.mark.parametrize("named", [("h100-sxm5-80gb", "torchtitan"), ("b200", "torchtitan"), ("h200", "nanotron")])
def test_the_last_row_is_what_is_said_of_experts_that_were_not_measured(named):
    gpu, software = named
    (one,) = compose([f"gpu={gpu}", f"software={software}", "model=qwen3-30b-a3b"], CONFIG)
    (*_, row) = fidelity_tables.trust_rows()
    assert "experts" in row
    said = error_words(one.workload)
    assert "never measured" in said
    assert said.startswith(f"take {time_percent(one.workload):g} %")
    assert f"take {time_percent(one.workload):.1f} %" in row


def test_the_table_says_which_trainer_ran_and_what_its_replicas_shared():
    rows = {row.split("|")[1].strip(): row for row in fidelity_tables.trust_rows()}
    shared: dict[str, set[str]] = {}
    path = shipped_files()["training_iterations"]
    for row in read_iterations(read_lines(path)[1], path):
        shared.setdefault(row.family, set()).add(row.sharding)
    assert shared["dgxc"] == {"optimizer"}
    assert "NeMo, sharding=optimizer |" in rows["H100-SXM5-80GB: megatron-core"]
    assert shared["selective-recompute"] == shared["vtrain-single"] == {"none"}
    assert "Megatron-LM, sharding=none |" in rows["A100-SXM4-80GB: megatron-2022"]
    assert "traces, sharding=none |" in rows["A100-SXM4-80GB: vtrain"]
    assert shared["llm-foundry"] == {"fsdp", "grad-op"}
    assert "LLM Foundry, FSDP |" in rows["H100-SXM5-80GB: llm-foundry"]


def test_what_may_be_quoted_follows_the_error():
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in fidelity_tables.trust_rows()]
    measured = [(float(cell[2].split()[0]), cell[1]) for cell in cells if cell[2][0].isdigit()]
    assert {percent <= 10 for percent, _ in measured} == {True, False}, "the table has both"
    for percent, so in measured:
        assert ("quote seconds: yes" in so or "quote seconds, kWh: yes" in so) == (percent <= 10), so
        assert ("rank layouts: yes" in so) == (percent <= 20), so


def test_the_readme_has_the_error_of_the_table():
    pair = next(one for one in pair_errors() if (one.gpu, one.software) == ("H100-SXM5-80GB", "megatron-core"))
    claim = " ".join((DOCS.parent / "README.md").read_text().split())
    assert f"on H100 with Megatron-Core are within {pair.percent_90:g} % in nine of ten cases" in claim


def test_the_table_of_trainers_is_made_of_what_they_obey():
    text = trainers.PAGE.read_text()
    assert doc_tables.replaced(text, trainers.LAYOUT_HEADS, list(trainers.layout_rows())) == text, (
        "run python benchmarks/trainers.py --layouts --write"
    )
