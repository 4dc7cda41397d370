"""The journal of a stage that measures: whole whenever it is read, and never in the way."""

import os
import time

import pytest

from kareus.progress.journal import Journal, Standing, read_standing


def test_what_is_kept_is_read(tmp_path):
    standing = Standing(budget=64, space=1521, measured=7, looked=40, round=2, hypervolume=0.75)
    Journal(tmp_path / "deep/x.progress.json", standing)
    assert read_standing(tmp_path / "deep/x.progress.json", since_s=0.0) == standing
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x.progress.json"]


def test_it_is_written_now_and_then_however_often_it_is_kept(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    path = tmp_path / "x.progress.json"
    journal = Journal(path, Standing(budget=100, space=100))
    written = set()
    for step in range(100):
        clock[0] = step * 0.01
        journal.standing.measured = step
        journal.keep()
        written.add(path.read_text())
    assert 4 <= len(written) <= 6


def test_a_journal_of_an_earlier_job_is_not_read(tmp_path):
    path = tmp_path / "x.progress.json"
    Journal(path, Standing(budget=1, space=1))
    os.utime(path, (1000.0, 1000.0))
    assert read_standing(path, since_s=1001.0) is None
    assert read_standing(path, since_s=999.0) is not None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"budget": 1}', '{"budget": "many", "space": 1}', "\udcff"])
def test_a_journal_that_is_none_is_not_read(tmp_path, content):
    path = tmp_path / "x.progress.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert read_standing(path, since_s=0.0) is None


def test_a_stage_that_cannot_write_its_journal_goes_on(tmp_path):
    (tmp_path / "file").touch()
    Journal(tmp_path / "file/x.progress.json", Standing(budget=1, space=1))
    Journal(None, Standing(budget=1, space=1)).keep()


def test_the_share_is_of_the_budget_and_at_most_whole():
    assert Standing(budget=40, space=900, measured=10).share == 0.25
    assert Standing(budget=40, space=900, measured=41).share == 1.0  # a round is finished even beyond the budget
