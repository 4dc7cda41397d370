"""A search that is killed goes on where it was."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from helpers.builders import a100, graphs, informed_search, protocol, search, simulated, space
from helpers.partition_tables import write_partitions

from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import to_plain
from kareus.artifacts.tables import read_table, write_table
from kareus.cli import main
from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.progress import journal
from kareus.schedule.space import search_space
from kareus.schedule.tables import SPACE, space_frame
from kareus.search.config import SearchConfig, SearchSlice
from kareus.search.tables import CANDIDATES, ROUNDS

pytestmark = pytest.mark.slow

PARTITION = "forward-mlp-allreduce"


def write_config(folder: Path, strategy: SearchConfig) -> None:
    config = SearchSlice(gpu=a100(), testbed=simulated(), protocol=protocol(), search=strategy, seed=0)
    (folder / "search.yaml").write_text(yaml.safe_dump(to_plain(config)))


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Configuration slice, partitions and search space of one partition."""
    mlp = graphs()[Batch.NANOBATCH].forward[1]
    partition = partition_of(mlp, mlp.collective)
    write_config(tmp_path, search())
    provenance = Provenance(config_hash="test")
    write_partitions(tmp_path / "partitions.parquet", {partition: 2}, provenance)
    frame = space_frame([search_space(partition, a100(), space())])
    write_table(tmp_path / "space.parquet", frame, SPACE, provenance)
    return tmp_path


def arguments(folder: Path, results: str) -> list[str]:
    (folder / results).mkdir(exist_ok=True)
    return [
        "stage",
        "search",
        f"--config={folder / 'search.yaml'}",
        f"--partitions={folder / 'partitions.parquet'}",
        f"--space={folder / 'space.parquet'}",
        f"--partition={PARTITION}",
        f"--store={folder / results / 'measurements'}",
        f"--candidates={folder / results / 'candidates.parquet'}",
        f"--rounds={folder / results / 'rounds.parquet'}",
        f"--proposals={folder / results / 'proposals.parquet'}",
    ]


def start(folder: Path, results: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kareus", *arguments(folder, results)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kept(folder: Path, results: str) -> int:
    """Measurements and looks that would survive now: whole lines of the journals, folded when a search ends."""
    journals = list((folder / results).rglob("journal.jsonl"))
    return sum(j.read_bytes().count(b"\n") for j in journals)


def repeated(rounds) -> int:
    """Initial candidates, which `informed` measures twice to estimate its noise."""
    measured = rounds["measured"]
    return measured.filter(measured > 0)[0] if rounds["strategy"][0] == "informed" else 0


@pytest.mark.parametrize(
    ("strategy", "rows"),
    [
        pytest.param(search(), 1, marks=pytest.mark.acceptance),
        (search(), 40),
        pytest.param(search(), 110, marks=pytest.mark.acceptance),
        (informed_search(most=24), 13),
    ],
)
def test_a_killed_search_measures_only_what_is_missing(inputs, strategy, rows, caplog):
    write_config(inputs, strategy)
    main(arguments(inputs, "whole"))
    killed = start(inputs, "killed")
    while kept(inputs, "killed") < rows:
        time.sleep(0.001)
        assert killed.poll() is None, "ended before it could be killed"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    survived = kept(inputs, "killed")

    with caplog.at_level("INFO"):
        assert main(arguments(inputs, "killed")) == 0
    tally = r"candidates: (\d+) measured, (\d+) from the store; looks: (\d+) taken, (\d+) from the store"
    measured, reused, looked, seen_before = map(int, re.findall(tally, caplog.text)[-1])
    assert reused + seen_before == survived >= rows

    whole, again = (read_table(inputs / r / "candidates.parquet", CANDIDATES) for r in ("whole", "killed"))
    rounds, rounds_again = (read_table(inputs / r / "rounds.parquet", ROUNDS) for r in ("whole", "killed"))
    assert measured + reused == len(whole) + repeated(rounds)
    assert looked + seen_before == rounds["looked"].max()
    assert again.equals(whole)
    assert rounds_again.equals(rounds)


def test_a_repeated_search_measures_nothing(inputs, caplog):
    tables = []
    for _ in range(2):
        caplog.clear()
        with caplog.at_level("INFO"):
            assert main(arguments(inputs, "again")) == 0
        tables.append([read_table(inputs / "again" / f"{t.name}.parquet", t) for t in (CANDIDATES, ROUNDS)])
    assert all(a.equals(b) for a, b in zip(*tables, strict=True))
    assert "candidates: 0 measured" in caplog.text
    assert "looks: 0 taken" in caplog.text


@pytest.mark.parametrize("strategy", [search(), search("random"), informed_search(most=24)])
def test_a_search_says_how_far_it_is(inputs, strategy, monkeypatch):
    monkeypatch.setattr(journal, "_WRITE_EVERY_S", 0.0)
    write_config(inputs, strategy)
    path = inputs / "watched/search.progress.json"
    assert main([*arguments(inputs, "watched"), f"--progress={path}"]) == 0
    rounds = read_table(inputs / "watched/rounds.parquet", ROUNDS)
    at = journal.read_standing(path, since_s=0.0)
    assert (at.measured, at.looked) == (rounds["measured"].max(), rounds["looked"].max())
    assert at.measured <= at.budget <= at.space
    assert at.round == len(rounds)
    assert at.hypervolume == rounds["hypervolume"][-1]


def test_a_search_goes_on_without_what_a_truncated_shelf_held(inputs, caplog):
    assert main(arguments(inputs, "bad")) == 0
    (shelf,) = (inputs / "bad").rglob("measurements.parquet")  # of `paper`, which takes no looks
    assert not list((inputs / "bad").rglob("looks.parquet"))
    found = read_table(inputs / "bad/candidates.parquet", CANDIDATES)
    whole = shelf.read_bytes()
    shelf.write_bytes(whole[: len(whole) // 2])
    caplog.clear()
    assert main(arguments(inputs, "bad")) == 0
    said = [line for line in caplog.messages if "measured again" in line]
    assert len(said) == 1
    assert re.match(r".*measurements\.parquet: corrupt .*; it is kept as", said[0])
    assert Path(f"{shelf}.damaged").read_bytes() == whole[: len(whole) // 2]
    assert read_table(inputs / "bad/candidates.parquet", CANDIDATES).equals(found)


def test_a_search_space_of_another_workload_is_refused(inputs, capsys):
    space = read_table(inputs / "space.parquet", SPACE)
    write_table(inputs / "space.parquet", space, SPACE, Provenance(config_hash="test", subject="other"))
    assert main(arguments(inputs, "x")) == 2
    assert "space.parquet: made for" in capsys.readouterr().err


def test_an_unknown_partition_is_refused_with_those_that_exist(inputs, capsys):
    wrong = [
        a.replace(PARTITION, "forward-mpl-allreduce") if "--partition=" in a else a for a in arguments(inputs, "x")
    ]
    assert main(wrong) == 2
    assert f"no partition 'forward-mpl-allreduce'; there are: {PARTITION}" in capsys.readouterr().err
