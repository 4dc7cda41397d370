import json
import os
import signal
import subprocess
import sys
import textwrap

import polars as pl
import pytest

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.store import Shelf
from kareus.artifacts.tables import Column, TableSchema, read_table
from kareus.errors import ArtifactError

SCHEMA = TableSchema(
    name="rows",
    version=1,
    meaning="Rows.",
    columns=(Column("key", pl.Int64, "key"), Column("value", pl.Float64, "value", positive=True)),
    key=("key",),
)
PROVENANCE = Provenance(config_hash="x", testbed=TestbedIdentity(kind="simulated", gpu="A100", detail="1"), seed=0)


def shelf(folder, provenance=PROVENANCE):
    return Shelf(folder, SCHEMA, provenance)


def test_rows_come_back_when_the_shelf_is_opened_again(tmp_path):
    with shelf(tmp_path) as first:
        first.append({"key": 1, "value": 0.1})
    with shelf(tmp_path) as second:
        assert second.get((1,)) == {"key": 1, "value": 0.1}
        assert second.get((2,)) is None
        second.append({"key": 2, "value": 0.2})
    assert read_table(tmp_path / "rows.parquet", SCHEMA).to_dicts() == [
        {"key": 1, "value": 0.1},
        {"key": 2, "value": 0.2},
    ]


def test_no_row_is_lost_to_kill_9_but_the_one_in_flight(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from test_store import shelf
        with shelf(Path(sys.argv[1])) as rows:
            for key in range(5):
                rows.append({"key": key, "value": (key + 1) / 3})
            rows._handle.write(b'{"schema_version": 1, "key": 5, "va')
            rows._handle.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    here = os.path.dirname(__file__)  # noqa: PTH120
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), here], check=False)
    assert done.returncode == -signal.SIGKILL
    with shelf(tmp_path) as rows:
        assert [rows.get((key,)) for key in range(6)] == [{"key": k, "value": (k + 1) / 3} for k in range(5)] + [None]
        rows.append({"key": 5, "value": 9.0})
    assert read_table(tmp_path / "rows.parquet", SCHEMA)["key"].to_list() == [0, 1, 2, 3, 4, 5]


def test_jobs_that_share_a_shelf_take_turns_and_lose_nothing(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from test_store import shelf
        for turn in range(5):
            with shelf(Path(sys.argv[1])) as rows:
                for row in range(4):
                    key = 100 * int(sys.argv[3]) + 10 * turn + row
                    rows.append({"key": key, "value": key + 1.0})
        """
    )
    here = os.path.dirname(__file__)  # noqa: PTH120
    jobs = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), here, str(job)]) for job in range(4)]
    assert [job.wait(timeout=120) for job in jobs] == [0] * 4
    keys = [100 * job + 10 * turn + row for job in range(4) for turn in range(5) for row in range(4)]
    assert read_table(tmp_path / "rows.parquet", SCHEMA)["key"].to_list() == keys
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "rows.parquet"]


def test_what_a_kill_during_a_fold_left_is_removed_and_nothing_else(tmp_path):
    with shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
    left = tmp_path / ".rows.parquet.4711.tmp"
    left.write_bytes(b"PAR1")
    others = tmp_path / ".other.parquet.4711.tmp", tmp_path / "rows.parquet"
    others[0].touch()
    with shelf(tmp_path) as rows:
        assert not left.exists()
        assert all(other.exists() for other in others)
        assert rows.get((1,)) == {"key": 1, "value": 1.0}


def test_rows_are_kept_when_the_work_fails(tmp_path):
    with pytest.raises(RuntimeError), shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
        raise RuntimeError
    assert read_table(tmp_path / "rows.parquet", SCHEMA)["key"].to_list() == [1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("rubbish", "is corrupt"),
        ("[1, 2]", "is corrupt"),
        ("5", "is corrupt"),
        ("null", "is corrupt"),
        ("[" * 100_000, "is corrupt"),
        ('{"key": 2, "value": 2.0}', "is corrupt"),
        ('{"schema_version": 1, "key": 2, "value": NaN}', "is corrupt"),
        ('{"schema_version": 1, "key": 2}', "lacks columns"),
        ('{"schema_version": 1, "key": 2, "value": null}', "has None for value"),
        ('{"schema_version": 1, "key": [2], "value": 2.0}', "has [2] for key"),
        ('{"schema_version": 1, "key": 2.5, "value": 2.0}', "has 2.5 for key"),
        ('{"schema_version": 1, "key": true, "value": 2.0}', "has True for key"),
        ('{"schema_version": 1, "key": 2, "value": "2.0"}', "has '2.0' for value"),
        (
            '{"schema_version": 1, "key": 2, "value": -1.0}',
            "cannot be right: numbers that are not greater than 0 in value",
        ),
    ],
)
def test_a_line_that_is_no_row_is_named_and_nothing_is_overwritten(tmp_path, line, problem):
    journal = tmp_path / "journal.jsonl"
    journal.write_text(f'{{"schema_version": 1, "key": 1, "value": 1}}\n{line}\n')
    with pytest.raises(ArtifactError) as raised, shelf(tmp_path):
        pass
    assert str(raised.value) == f"{journal}: line 2 {problem}; remove that line to measure its row again."
    assert line in journal.read_text()


def test_lists_are_checked_item_by_item_and_what_may_be_empty_may_be(tmp_path):
    columns = (
        Column("key", pl.Int64, "key"),
        Column("names", pl.List(pl.String), "names"),
        Column("note", pl.String, "note", nullable=True),
    )
    schema = TableSchema(name="rows", version=1, meaning="Rows.", columns=columns, key=("key",))
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"schema_version": 1, "key": 1, "names": ["a", "b"], "note": null}\n')
    with Shelf(tmp_path, schema, PROVENANCE) as rows:
        assert rows.get((1,)) == {"key": 1, "names": ["a", "b"], "note": None}
    journal.write_text('{"schema_version": 1, "key": 2, "names": ["a", 3], "note": null}\n')
    with pytest.raises(ArtifactError, match=r"line 1 has \['a', 3\] for names"), Shelf(tmp_path, schema, PROVENANCE):
        pass


def test_a_row_that_cannot_be_is_not_added_and_spoils_nothing(tmp_path):
    with shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
        with pytest.raises(ArtifactError, match="a row was not added, numbers that are not greater than 0 in value"):
            rows.append({"key": 2, "value": 0.0})
    assert read_table(tmp_path / "rows.parquet", SCHEMA)["key"].to_list() == [1]


def test_a_journal_of_another_schema_version_is_refused(tmp_path):
    (tmp_path / "journal.jsonl").write_text(json.dumps({"schema_version": 9, "key": 1, "value": 1.0}) + "\n")
    with pytest.raises(ArtifactError, match="schema version 9 of 'rows', this Kareus reads 1"), shelf(tmp_path):
        pass


def test_a_shelf_of_another_testbed_is_refused(tmp_path):
    with shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
    other = Provenance(config_hash="x", testbed=PROVENANCE.testbed, seed=1)
    with pytest.raises(ArtifactError, match="measured on another testbed"), shelf(tmp_path, other):
        pass


def test_an_unused_shelf_leaves_no_table(tmp_path):
    with shelf(tmp_path):
        pass
    assert not (tmp_path / "rows.parquet").exists()
