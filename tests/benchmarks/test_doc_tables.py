"""Tables that docs/ has from runs: their rows are what the commands beside them give."""

import logging
import re
import sys

import polars as pl
import pytest

import doc_tables
import kareus
import trainers
from kareus.adviser.rows import is_nearly_full
from runs.checkout import checkout, snakemake

README = (doc_tables.ROOT / "README.md").read_text()
FLEETS = pl.DataFrame(
    [
        {
            "method": method,
            "num_microbatches": 16,
            "time_reduction_percent": time,
            "energy_reduction_percent": energy,
            "iso_time_energy_reduction_percent": 2 * energy,
            "iso_energy_time_reduction_percent": 2 * time,
        }
        for method, time, energy in (("sequential+perseus", -0.01, 18.0), ("kareus", 10.0, 23.0))
    ]
)


def test_rows_of_fleets_have_reductions_of_both_methods():
    assert list(doc_tables.emulation_rows(FLEETS)) == ["| 16 | 0.0 % | 10.0 % | 18.0 % | 23.0 % | 46.0 % | 20.0 % |"]


@pytest.mark.parametrize("page", doc_tables.HEADS)
def test_rows_are_put_where_the_page_has_its_table(page):
    rows = doc_tables.printed_rows(page)
    assert len(rows) == 4
    text = (doc_tables.ROOT / page).read_text()
    assert doc_tables.replaced(text, doc_tables.HEADS[page], rows) == text
    assert "\n| new |\n" in doc_tables.replaced(text, doc_tables.HEADS[page], ["| new |"])


def test_a_part_replaces_its_column_of_what_trainers_save():
    names = [name for _, name, *_ in trainers.TRAINERS]
    made = {name: {"8B": "0.1, 99"} for name in names}
    rows = list(trainers.short_rows(README, made))
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == names
    assert [row.split(" | ")[2] for row in rows] == ["0.1, 99"] * len(names)
    assert list(trainers.short_rows(README, {name: {} for name in names})) == trainers_rows(README)


def test_a_part_of_a_trainer_that_the_readme_lacks_is_refused_before_all_else(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trainers.py", "--part", "8B", "--write"])
    monkeypatch.setattr(trainers, "TRAINERS", (*trainers.TRAINERS, ("kareus", "a newcomer", "any", "kareus")))
    with pytest.raises(SystemExit) as ended:
        trainers.main()
    assert ended.value.code == 2
    assert capsys.readouterr() == (
        "",
        "--part 8B: README.md has no other columns of a newcomer; run without --part.\n",
    )
    assert not logging.root.manager.disable, "it would hide what other tests wait for"


def trainers_rows(readme):
    lines = readme.splitlines()
    first = lines.index(trainers.SHORT_HEADS[0]) + 2
    return lines[first : first + len(trainers.TRAINERS)]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("Hugging Face Trainer, FSDP", ["software=llm-foundry", "sharding=full", "dp=8", "shards=8"]),
        ("torchtitan, HSDP", ["software=torchtitan", "pp=1", "sharding=full", "dp=8", "shards=2,4"]),
    ],
)
def test_layouts_of_the_readme_are_those_that_the_adviser_picks(name, asked):
    """Of two that are asked for within seconds; times of a plan's measurements have noise."""
    chosen = kareus.advise(["model=llama3.1-8b", "gpu=h100-sxm5-80gb", *asked], gpus=8, global_batch=128).chosen.layout
    degrees, time_s = layouts_in_readme()[name]["8B"]
    shards = chosen.candidate.layout.shards
    star = "*" if is_nearly_full(chosen) else ""
    assert degrees == f"dp{chosen.candidate.layout.dp}" + (f"-shards{shards}" if shards else "") + star
    assert time_s == pytest.approx(chosen.sequential.time_s, rel=0.02)


def test_the_first_result_of_the_readme_says_how_much_faster_another_layout_is():
    text = " ".join(README.split())
    paper_s = float(re.search(r"instead of ([\d.]+) s and", text)[1])
    assert "`advise` has one [twice as fast]" in text
    assert paper_s / layouts_in_readme()["Megatron-Core"]["3B"][1] > 2


def layouts_in_readme():
    """Degrees and seconds of each trainer's layout, by training."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in trainers_rows(README)]
    cells = {name: re.findall(r"\((\S+), ([\d.]+) s\)", " ".join(texts)) for name, *texts in rows}
    return {
        name: {part: (degrees, float(time_s)) for part, (degrees, time_s) in zip(trainers.JOBS, found, strict=True)}
        for name, found in cells.items()
    }


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_tables_in_the_docs_are_those_of_the_commands(tmp_path):
    folder = checkout(tmp_path / "clone")
    for words in (['overrides=["pipeline=1f1b,gpipe,interleaved,zb-h1"]'], ["campaign=emulation"]):
        done = snakemake(folder, "--config", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert doc_tables.made_tables(folder / "results") == {
        page: doc_tables.printed_rows(page) for page in doc_tables.HEADS
    }
