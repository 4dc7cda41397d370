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


def test_rows_are_kept_when_the_work_fails(tmp_path):
    with pytest.raises(RuntimeError), shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
        raise RuntimeError
    assert read_table(tmp_path / "rows.parquet", SCHEMA)["key"].to_list() == [1]


def test_a_corrupt_line_is_named_and_nothing_is_overwritten(tmp_path):
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"schema_version": 1, "key": 1, "value": 1.0}\nrubbish\n')
    with pytest.raises(ArtifactError, match="line 2 is corrupt; remove that line"), shelf(tmp_path):
        pass
    assert "rubbish" in journal.read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('["list"]', "line 1 is corrupt"),
        ('{"schema_version": 1, "key": 1}', "line 1: columns differ from the schema of 'rows' at value; remove"),
        ('{"schema_version": 1, "key": 1, "value": "x"}', "line 1: .*; remove that line to measure its row again"),
        ('{"schema_version": 1, "key": 1, "value": NaN}', "line 1: infinite numbers or none at all .* in value"),
        ('{"schema_version": 1, "key": 1, "value": -1.0}', "line 1: numbers that are not greater than 0 in value"),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path, line, message):
    (tmp_path / "journal.jsonl").write_text(line + "\n")
    with pytest.raises(ArtifactError, match=message), shelf(tmp_path):
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
