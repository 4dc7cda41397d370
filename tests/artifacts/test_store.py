import json
import os
import signal
import subprocess
import sys
import textwrap

import polars as pl
import pytest

from kareus.artifacts import store
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.artifacts.seals import sealed
from kareus.artifacts.store import Shelf, damaged_lines
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


def test_leftovers_of_a_killed_fold_are_removed_alone(tmp_path):
    with shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
    left = tmp_path / ".rows.parquet.4711-99.kareus.tmp"
    left.write_bytes(b"PAR1")
    others = [tmp_path / name for name in (".other.parquet.4711-99.kareus.tmp", ".rows.parquet.4711.tmp")]
    for other in others:
        other.touch()
    others.append(tmp_path / "rows.parquet")
    with shelf(tmp_path) as rows:
        assert not left.exists()
        assert all(other.exists() for other in others)
        assert rows.get((1,)) == {"key": 1, "value": 1.0}


def test_rows_are_kept_when_the_work_fails(tmp_path):
    with pytest.raises(RuntimeError), shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
        raise RuntimeError
    assert read_table(tmp_path / "rows.parquet", SCHEMA)["key"].to_list() == [1]


def sealed_line(row, schema_version=1, provenance=PROVENANCE):
    """A line of a journal as a shelf would write it, whatever the row."""
    testbed = content_hash((provenance.testbed, provenance.seed))
    return json.dumps(sealed({"schema_version": schema_version, "testbed": testbed, "row": row}))


def kill_with(folder, count):
    """A shelf whose process died after it had appended `count` rows; returns the journal."""
    rows = shelf(folder).__enter__()
    for key in range(count):
        rows.append({"key": key, "value": key + 1 / 3})
    rows._handle.close()
    rows._lock.__exit__(None, None, None)
    return folder / "journal.jsonl"


def values_of(folder, count):
    """Values of the keys below `count` when the shelf is opened again."""
    with shelf(folder) as rows:
        found = [rows.get((key,)) for key in range(count)]
    return [row and row["value"] for row in found]


@pytest.mark.parametrize(
    "line",
    [
        "rubbish",
        "[1, 2]",
        "5",
        "null",
        "",
        "[" * 100_000,
        '{"key": 2, "value": 2.0}',
        '{"schema_version": 1, "key": 2, "value": 2.0}',
        '{"schema_version": 1, "key": 2, "value": NaN}',
        '{"schema_version": 1, "key": ' + "9" * 400 + ', "value": 2.0}',
        sealed_line({"key": 2, "value": 2.0}).replace("2.0", "3.0"),
        sealed_line({"key": 2}),
        sealed_line({"key": 2, "value": None}),
        sealed_line({"key": [2], "value": 2.0}),
        sealed_line({"key": 2.5, "value": 2.0}),
        sealed_line({"key": True, "value": 2.0}),
        sealed_line({"key": 2, "value": "2.0"}),
        sealed_line({"key": 2, "value": -1.0}),
        sealed_line([2, 2.0]),
    ],
)
def test_a_malformed_line_is_set_aside_and_its_neighbours_kept(tmp_path, caplog, line):
    journal = tmp_path / "journal.jsonl"
    around = [sealed_line({"key": key, "value": 1}) for key in (1, 3)]
    journal.write_text("\n".join([around[0], line, around[1], ""]))
    with shelf(tmp_path) as rows:
        assert [rows.get((key,)) for key in (1, 2, 3)] == [{"key": 1, "value": 1}, None, {"key": 3, "value": 1}]
        rows.append({"key": 2, "value": 2.0})
    assert (tmp_path / "journal.jsonl.damaged").read_text() == f"{line}\n"
    assert read_table(tmp_path / "rows.parquet", SCHEMA)["value"].to_list() == [1.0, 2.0, 1.0]
    (said,) = caplog.messages
    assert said == (
        f"{journal}: 1 of 3 lines are damaged, or not sealed as this version of Kareus seals them (line 2); they are "
        "kept in journal.jsonl.damaged, and what they held is measured again."
    )


def test_an_unsealed_journal_is_set_aside_and_measured_again(tmp_path, caplog):
    """Nothing tells its good lines from damaged ones."""
    old = "".join(json.dumps({"schema_version": 1, "key": key, "value": 1.0}) + "\n" for key in range(30))
    (tmp_path / "journal.jsonl").write_text(old)
    assert values_of(tmp_path, 30) == [None] * 30
    assert (tmp_path / "journal.jsonl.damaged").read_text() == old
    assert "30 of 30 lines are damaged, or not sealed" in caplog.text
    assert "(line 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)" in caplog.text


def test_what_was_set_aside_before_is_not_overwritten(tmp_path):
    for line in ("first", "second", "third"):
        (tmp_path / "journal.jsonl").write_text(f"{line}\n")
        values_of(tmp_path, 1)
    names = ("journal.jsonl.damaged", "journal.jsonl.damaged-2", "journal.jsonl.damaged-3")
    assert [(tmp_path / name).read_text() for name in names] == ["first\n", "second\n", "third\n"]


def test_a_flipped_bit_of_a_journal_costs_its_lines_only(tmp_path):
    whole = kill_with(tmp_path / "killed", 3).read_bytes()
    expected = [key + 1 / 3 for key in range(3)]
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for place in {*range(0, len(whole), 7), *ends}:
        folder = tmp_path / str(place)
        folder.mkdir()
        flipped = whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        (folder / "journal.jsonl").write_bytes(flipped)
        found = values_of(folder, 3)
        assert all(value in (None, right) for value, right in zip(found, expected, strict=True))
        assert found.count(None) <= 2  # the end of a line keeps two apart
    assert values_of(tmp_path / "killed", 3) == expected


def test_damaged_lines_are_numbered_without_being_touched(tmp_path):
    journal = kill_with(tmp_path, 5)
    lines = journal.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"1.33", b"4.33")
    lines[3] = b"\xff\xfe"
    journal.write_bytes(b"\n".join(lines) + b'{"schema_version": 1, "row": {"ke')
    before = journal.read_bytes()
    assert damaged_lines(journal) == [2, 4]
    assert journal.read_bytes() == before


def test_a_journal_of_another_testbed_is_refused_and_left_alone(tmp_path):
    journal = kill_with(tmp_path, 2)
    before = journal.read_bytes()
    other = Provenance(config_hash="x", testbed=PROVENANCE.testbed, seed=1)
    with pytest.raises(ArtifactError, match=r"journal\.jsonl: measured on another testbed"), shelf(tmp_path, other):
        pass
    assert journal.read_bytes() == before


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_table_is_set_aside_and_measured_again(tmp_path, caplog, keep):
    with shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
    table = tmp_path / "rows.parquet"
    cut = table.read_bytes()[:keep]
    table.write_bytes(cut)
    with shelf(tmp_path) as rows:
        assert rows.get((1,)) is None
        rows.append({"key": 1, "value": 2.0})
    assert read_table(table, SCHEMA).to_dicts() == [{"key": 1, "value": 2.0}]
    assert (tmp_path / "rows.parquet.damaged").read_bytes() == cut
    (said,) = caplog.messages
    assert said.startswith(f"{table}: ")
    assert said.endswith("; it is kept as rows.parquet.damaged, and its rows are measured again.")


def test_a_damaged_table_costs_no_row_of_the_journal(tmp_path):
    kill_with(tmp_path, 3)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1PAR1")
    assert values_of(tmp_path, 3) == [1 / 3, 4 / 3, 7 / 3]


def test_a_new_journal_and_its_folders_survive_a_power_cut(tmp_path, monkeypatch):
    """A synced file whose folder is not synced may be gone, with all its lines."""
    synced = []
    sync = os.fsync

    def record(descriptor):
        found = os.fstat(descriptor)
        synced.append((found.st_dev, found.st_ino))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    folder = tmp_path / "measurements" / "gpu" / "shelf"
    with shelf(folder):
        names = {(found.stat().st_dev, found.stat().st_ino) for found in (folder, *list(folder.parents)[:3])}
        assert names <= set(synced)
        assert synced[-1] == (folder.stat().st_dev, folder.stat().st_ino)  # once the journal was there


@pytest.mark.parametrize(("every_s", "syncs"), [(0.0, 5), (3600.0, 1)])
def test_rows_are_synced_no_more_often_than_useful(tmp_path, monkeypatch, every_s, syncs):
    monkeypatch.setattr(store, "SYNC_EVERY_S", every_s)
    with shelf(tmp_path) as rows:
        synced = []
        monkeypatch.setattr(os, "fsync", synced.append)
        for key in range(5):
            rows.append({"key": key, "value": 1.0})
        assert len(synced) == syncs
        monkeypatch.undo()


def test_lists_are_checked_by_item_and_nullable_may_be_empty(tmp_path, caplog):
    columns = (
        Column("key", pl.Int64, "key"),
        Column("names", pl.List(pl.String), "names"),
        Column("note", pl.String, "note", nullable=True),
    )
    schema = TableSchema(name="rows", version=1, meaning="Rows.", columns=columns, key=("key",))
    lines = [sealed_line({"key": key, "names": ["a", name], "note": None}) for key, name in ((1, "b"), (2, 3))]
    (tmp_path / "journal.jsonl").write_text("\n".join([*lines, ""]))
    with Shelf(tmp_path, schema, PROVENANCE) as rows:
        assert rows.get((1,)) == {"key": 1, "names": ["a", "b"], "note": None}
        assert rows.get((2,)) is None
    assert "(line 2)" in caplog.text


def test_a_row_that_cannot_be_is_not_added_and_spoils_nothing(tmp_path):
    with shelf(tmp_path) as rows:
        rows.append({"key": 1, "value": 1.0})
        with pytest.raises(ArtifactError, match="a row was not added, numbers that are"):
            rows.append({"key": 2, "value": 0.0})
        for row, problem in (
            ({"key": 2, "value": float("nan")}, "NaN"),
            ({"key": 2}, "columns differ from the schema of 'rows' at value"),
            ({"key": 2**63, "value": 1.0}, "has 9223372036854775808 for key"),
        ):
            with pytest.raises(ArtifactError, match=problem):
                rows.append(row)
    assert read_table(tmp_path / "rows.parquet", SCHEMA)["key"].to_list() == [1]


def test_a_journal_of_another_schema_version_is_refused(tmp_path):
    (tmp_path / "journal.jsonl").write_text(sealed_line({"key": 1, "value": 1.0}, schema_version=9) + "\n")
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


def test_a_shelf_is_free_again_after_its_journal_cannot_close(tmp_path):
    """A full disk refuses the last bytes of a journal: the lock must not outlive the `with` block."""
    with pytest.raises(OSError, match="full"), shelf(tmp_path) as first:
        first.append({"key": 1, "value": 0.1})
        handle = first._handle
        first._handle = type("Full", (), {"close": lambda self: (handle.close(), _full())})()
    with shelf(tmp_path) as second:
        assert second.get((1,)) == {"key": 1, "value": 0.1}


def _full():
    raise OSError("no space left: the disk is full")
