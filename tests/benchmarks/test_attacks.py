"""The oracles of `benchmarks/attack.py`: each must see what it is for, and count what it saw."""

import copy
import random
import sys
from pathlib import Path

import polars as pl
import pytest

import attack
from attacks import rows
from attacks.commands import Done, broken_promise, neither_done_nor_refused, refusal_missing, run
from attacks.damage import spoil
from attacks.mutations import json_text, mutated, mutated_document, mutated_table
from attacks.names import _one_literal
from attacks.plans import FALSIFIED
from attacks.state import differences, state
from attacks.target import Target
from runs.checkout import ROOT

PLAN = {
    "gpus": 16,
    "method": "kareus",
    "selector": "edp",
    "workload": "w",
    "workload_hash": "h",
    "testbed": {"kind": "simulated", "detail": ""},
    "prediction": {"time_s": 2.0, "energy_j": 9.0, "dynamic_energy_j": 5.0, "lower_bound_j": 8.0},
    "stages": [
        {
            "instructions": [
                {
                    "direction": direction,
                    "execution": "overlap",
                    "frequency_mhz": 1410,
                    "time_s": 1.0,
                    "energy_j": 1.0,
                    "start_s": 0.0,
                    "partitions": [{"sm_count": 3}],
                }
                for direction in ("forward", "backward")
            ]
        }
    ],
}


def done(code: int, errors: str = "", output: str = "") -> Done:
    return Done(code, output + errors, errors, 0.1, hung=False)


def results(folder: Path) -> Path:
    (folder / "w/plan").mkdir(parents=True)
    pl.DataFrame({"energy_j": [1.0]}).write_parquet(folder / "w/iteration.parquet")
    (folder / "w/plan/fastest.json").write_text('{"created_at": "then", "gpus": 16}')
    (folder / "w/page.html").write_text("<p>Written at 11:03</p>")
    (folder / "w/figure.svg").write_text("<svg/>")
    return folder


def test_only_times_of_writing_make_no_difference(tmp_path):
    one, other = results(tmp_path / "one"), results(tmp_path / "other")
    (other / "w/page.html").write_text("<p>Written at 12:04</p>")
    (other / "w/plan/fastest.json").write_text('{"created_at": "now", "gpus": 16}')
    assert differences(state(one), state(other)) == []
    (other / "w/plan/fastest.json").write_text('{"created_at": "now", "gpus": 8}')
    (other / "w/figure.svg").unlink()
    (other / "w/iteration.parquet").write_bytes(b"PAR1")
    (other / "w/page.html").write_text("<p>Wrjtten at 12:04</p>")
    found = differences(state(one), state(other))
    assert found == [
        "w/figure.svg missing",
        "w/iteration.parquet differs",
        "w/page.html differs",
        "w/plan/fastest.json differs",
    ]


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damage_changes_a_file_and_at_will_not_its_time(tmp_path, damage):
    path = results(tmp_path) / "w/iteration.parquet"
    before, time_ns = path.read_bytes(), path.stat().st_mtime_ns
    assert spoil(path, damage, Target(ROOT, tmp_path), keep_time=True) == path.read_bytes() != before
    assert path.stat().st_mtime_ns == time_ns


@pytest.mark.parametrize(
    ("ended", "failure"),
    [
        (done(2, "kareus select: no such plan.\n"), ""),
        (done(0, output="fine\n"), "exit code 0"),
        (done(2, "something\n"), "no line"),
        (done(1, "kareus select: x\n"), "exit code 1"),
        (done(2, "Traceback (most recent call last):\nkareus: x\n"), "traceback"),
        (done(2, "kareus select: \x1b[31m\n"), "control character"),
        (done(-9), "died of signal 9"),
    ],
)
def test_only_one_line_and_exit_code_2_are_a_refusal(ended, failure):
    assert refusal_missing(ended).startswith(failure) if failure else not refusal_missing(ended)


def test_success_is_fine_where_a_refusal_is_not_wanted():
    assert neither_done_nor_refused(done(0, output="fine\n")) == ""


def test_what_hangs_is_killed_and_counted(tmp_path):
    hung = run([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, {}, limit_s=0.5)
    assert broken_promise(hung).startswith("hung")


def test_rows_count_failures_and_what_kept_a_try_from_its_end(capsys):
    def stumble() -> str:
        raise ValueError("no page")

    tries = [rows.Try("good", lambda: ""), rows.Try("bad", lambda: "lost | found"), rows.Try("worse", stumble)]
    found = rows.row("everything", tries, jobs=2)
    assert str(found) == "| everything | 3 | 2 | bad: lost \\| found; worse: ValueError: no page |"
    assert "everything: bad: lost" in capsys.readouterr().err


def test_the_same_failure_of_numbered_inputs_is_shown_once():
    found = rows.counted("inputs", [(f"series {number:04d}", "KeyError") for number in range(3)])
    assert str(found) == "| inputs | 3 | 3 | KeyError (3) |"


def test_mutations_change_their_input_and_depend_on_the_seed():
    document = {"a": [1, {"b": "text"}], "c": 2.0}
    for number in range(50):
        assert mutated(b"content", random.Random(number)) != b"content"
        one, again = (json_text(mutated_document(document, random.Random(number)), random.Random(0)) for _ in "ab")
        assert one == again
        table = "hour,price\n0,1\n"
        assert mutated_table(table, random.Random(number)) == mutated_table(table, random.Random(number))
    assert document == {"a": [1, {"b": "text"}], "c": 2.0}


def test_every_falsification_changes_a_plan():
    for name, (_, falsify) in FALSIFIED.items():
        plan = copy.deepcopy(PLAN)
        falsify(plan)
        assert plan != PLAN, name


def test_an_exported_file_with_extra_statements_is_detected():
    assert _one_literal("# of a plan\n[\n    [('forward', 1410)],\n]\n")
    assert not _one_literal("# of a plan\nimport os\n[\n]\n")
    assert not _one_literal("# of a plan\n# and another\n[\n]\n")


def test_every_part_is_there_and_an_unknown_one_is_refused(monkeypatch, capsys):
    for part in attack.PARTS:
        assert (ROOT / f"benchmarks/attacks/{part}.py").is_file()
    monkeypatch.setattr(sys, "argv", ["attack.py", "numbres"])
    with pytest.raises(SystemExit):
        attack.main()
    assert "allowed: reruns" in capsys.readouterr().err
