import dataclasses
import hashlib
import math
import os
import re
from pathlib import Path

import polars as pl
import pytest
from pyarrow import parquet

from kareus.artifacts.files import write_atomically, write_text
from kareus.artifacts.provenance import Provenance, TestbedIdentity, check_config, check_subject, derived
from kareus.artifacts.tables import Column, TableSchema, read_provenance, read_table, write_table
from kareus.errors import ArtifactError, DamagedFileError

SCHEMA = TableSchema(
    name="things",
    version=2,
    meaning="Things.",
    columns=(
        Column("name", pl.String, "name"),
        Column("time_s", pl.Float64, "time", positive=True),
        Column("gain", pl.Float64, "gain", nullable=True),
        Column("note", pl.String, "note", nullable=True),
    ),
    key=("name",),
)
TESTBED = TestbedIdentity(kind="simulated", gpu="A100", detail="1")
PROVENANCE = Provenance(config_hash="abc", testbed=TESTBED, seed=7)
ROWS = [
    {"name": "a", "time_s": 1.0, "gain": -1.0, "note": None},
    {"name": "b", "time_s": 2.0, "gain": None, "note": "x"},
]
BOUNDED_GAIN = Column("gain", pl.Float64, "gain", nullable=True, positive=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "things.parquet"
    write_table(path, SCHEMA.frame(ROWS), SCHEMA, PROVENANCE)
    return path


def test_a_table_comes_back_with_its_provenance(path):
    assert read_table(path, SCHEMA).to_dicts() == ROWS
    provenance = read_provenance(path, SCHEMA)
    assert (provenance.testbed, provenance.seed, provenance.config_hash) == (TESTBED, 7, "abc")
    assert provenance.created_at


def test_other_parquet_readers_see_rows_and_metadata(path):
    assert parquet.read_table(path).to_pylist() == ROWS
    assert b'"kind":"simulated"' in parquet.read_metadata(path).metadata[b"kareus"]


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"none\.parquet: no such file; rerun the stage"):
        read_table(tmp_path / "none.parquet", SCHEMA)


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_table_is_refused_and_left_alone(path, keep):
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(
        ArtifactError, match=r"things\.parquet: corrupt or truncated Parquet file .*; delete it and rerun"
    ):
        read_table(path, SCHEMA)
    assert path.read_bytes() == whole[:keep]


def test_no_flipped_bit_is_read_as_other_numbers(path):
    whole = path.read_bytes()
    for place, byte in enumerate(whole):
        path.write_bytes(whole[:place] + bytes([byte ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(ArtifactError) as refusal:
            read_table(path, SCHEMA)
        assert "\n" not in str(refusal.value)


def test_a_change_of_the_metadata_alone_is_noticed(path):
    path.write_bytes(path.read_bytes().replace(b'"seed":7', b'"seed":8'))
    with pytest.raises(ArtifactError, match=r"Parquet file \(its bytes are not those that were written\); delete"):
        read_provenance(path, SCHEMA)


def test_a_table_without_a_hash_is_refused(path, tmp_path):
    metadata = parquet.read_metadata(path).metadata[b"kareus"].decode()
    unsealed = re.sub('"content_hash":"[0-9a-f]*",', "", metadata)
    pl.DataFrame(ROWS).write_parquet(tmp_path / "old.parquet", metadata={"kareus": unsealed})
    with pytest.raises(ArtifactError, match="a Parquet file that Kareus did not write, or a damaged one: it has no"):
        read_table(tmp_path / "old.parquet", SCHEMA)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + b"\xff" * 64 + b"PAR1", b"\x00" * 4096])
def test_bytes_without_a_seal_never_reach_the_parser(tmp_path, monkeypatch, content):
    """Readers of Parquet may crash or take all memory on bytes that nobody wrote."""

    def parse(*_):
        raise AssertionError("parsed")

    monkeypatch.setattr(pl, "read_parquet", parse)
    monkeypatch.setattr(pl, "read_parquet_metadata", parse)
    (tmp_path / "t.parquet").write_bytes(content)
    for read in (read_table, read_provenance):
        with pytest.raises(DamagedFileError, match=r"t\.parquet: .*Parquet file .*; delete it and rerun the stage"):
            read(tmp_path / "t.parquet", SCHEMA)


def test_a_sealed_file_without_metadata_of_kareus_is_refused(path, tmp_path):
    """The words of a seal may stand in anybody's file; what they seal has to be a table of Kareus all the same."""
    content = b"PAR1" + b'"content_hash":"' + b"0" * 64 + b'"PAR1'
    found = hashlib.sha256(content).hexdigest().encode()
    (tmp_path / "t.parquet").write_bytes(content.replace(b"0" * 64, found))
    with pytest.raises(ArtifactError, match="corrupt or truncated Parquet file"):
        read_table(tmp_path / "t.parquet", SCHEMA)


def test_a_table_that_may_not_be_read_does_not_count_as_damaged(path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ArtifactError, match=r"things\.parquet: Permission denied; check its permissions") as refused:
        read_table(path, SCHEMA)
    assert not isinstance(refused.value, DamagedFileError)


def test_a_panic_of_the_reader_is_one_line(path, monkeypatch):
    def panic(_):
        raise pl.exceptions.PanicException("assertion failed\n left: 1\n right: 2")

    monkeypatch.setattr(pl, "read_parquet", panic)
    with pytest.raises(ArtifactError, match=r"corrupt or truncated Parquet file \(assertion failed\); delete it"):
        read_table(path, SCHEMA)


def test_a_table_of_another_schema_version_is_refused(path):
    newer = dataclasses.replace(SCHEMA, version=3)
    with pytest.raises(ArtifactError, match=r"schema version 2 of 'things', this Kareus reads 3; delete it and rerun"):
        read_table(path, newer)


def test_another_table_in_its_place_is_refused(path):
    other = dataclasses.replace(SCHEMA, name="others")
    with pytest.raises(ArtifactError, match="holds the table 'things', expected 'others'"):
        read_table(path, other)


def test_a_parquet_file_of_someone_else_is_refused(tmp_path):
    path = tmp_path / "foreign.parquet"
    pl.DataFrame(ROWS).write_parquet(path)
    with pytest.raises(ArtifactError, match="a Parquet file that Kareus did not write"):
        read_table(path, SCHEMA)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda f: f.drop("time_s"), "columns differ from the schema of 'things' at time_s"),
        (lambda f: f.with_columns(pl.lit(1).alias("extra")), "at extra"),
        (lambda f: f.with_columns(pl.col("time_s").cast(pl.Float32)), "at time_s"),
        (lambda _: SCHEMA.frame([ROWS[0] | {"time_s": None}]), "empty values in time_s"),
        (lambda _: SCHEMA.frame([ROWS[0], ROWS[0]]), r"repeated key \(name\)"),
        (lambda _: SCHEMA.frame([ROWS[0] | {"time_s": 0.0}]), "numbers that are not greater than 0 in time_s"),
        (lambda _: SCHEMA.frame([ROWS[0] | {"gain": math.nan}]), r"infinite numbers or none at all \(NaN\) in gain"),
        (
            lambda _: SCHEMA.frame([ROWS[0] | {"time_s": math.inf}]),
            r"infinite numbers or none at all \(NaN\) in time_s",
        ),
    ],
)
def test_a_frame_that_breaks_the_schema_is_not_written(tmp_path, broken, message):
    frame = broken(pl.DataFrame(ROWS))
    with pytest.raises(ArtifactError, match=message):
        write_table(tmp_path / "t.parquet", frame, SCHEMA, PROVENANCE)
    assert list(tmp_path.iterdir()) == []


def test_bounds_hold_for_what_is_read_too(path):
    bounded = dataclasses.replace(SCHEMA, columns=(*SCHEMA.columns[:2], BOUNDED_GAIN, SCHEMA.columns[3]))
    with pytest.raises(ArtifactError, match="numbers that are not greater than 0 in gain; delete it and rerun"):
        read_table(path, bounded)


def test_what_derives_from_two_testbeds_is_refused():
    other = Provenance(config_hash="x", testbed=TestbedIdentity(kind="cuda", gpu="A100", detail="GPU-1"), seed=7)
    with pytest.raises(ArtifactError, match=r"different testbeds: measured on A100 .*; simulated testbed, A100"):
        derived("y", {"a": PROVENANCE, "b": other})


def test_what_derives_from_a_simulated_table_says_so():
    unmeasured = Provenance(config_hash="x")
    assert derived("y", {"a": unmeasured, "b": PROVENANCE}).testbed == TESTBED


def test_mixed_provenance_is_refused_naming_both_workloads():
    one, two = (dataclasses.replace(PROVENANCE, subject=subject) for subject in ("1" * 16, "2" * 16))
    with pytest.raises(ArtifactError, match=r"b\.parquet: made for another workload than a\.parquet .subject 2222"):
        derived("y", {"a.parquet": one, "b.parquet": two})
    assert derived("y", {"a.parquet": one, "b.parquet": one}).subject == "1" * 16


def test_a_table_of_another_subject_or_configuration_is_named():
    found = {"t.parquet": dataclasses.replace(PROVENANCE, subject="1" * 16)}
    check_subject("1" * 16, found)
    check_config("abc", "t.parquet", PROVENANCE)
    with pytest.raises(ArtifactError, match=r"t\.parquet: made for another workload .subject 1+, the config"):
        check_subject("2" * 16, found)
    with pytest.raises(ArtifactError, match=r"t\.parquet: made with another configuration .hash abc, expected abd"):
        check_config("abd", "t.parquet", PROVENANCE)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "f"
    write_text(path, "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]  # noqa: PTH208
