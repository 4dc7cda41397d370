"""Files that were found sound are not read again until they change."""

import os

from kareus.verify.sound_files import SoundFiles, read_known


def remembered(tmp_path, path):
    """What is known in the next run, after `path` was found sound in this one."""
    known = SoundFiles()
    known.add(path)
    known.write(tmp_path / "sound.json")
    return read_known(tmp_path / "sound.json")


def test_a_file_that_did_not_change_is_known(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    assert remembered(tmp_path, path).has(path)


def test_a_change_that_keeps_size_and_time_is_noticed(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    known = remembered(tmp_path, path)
    path.write_text("two")
    os.utime(path, ns=times)
    assert not known.has(path)


def test_a_file_in_the_place_of_another_is_not_known(tmp_path):
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_text("one")
    other.write_text("one")
    known = remembered(tmp_path, path)
    other.replace(path)
    assert not known.has(path)


def test_a_file_that_has_gone_is_not_known(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    known = remembered(tmp_path, path)
    path.unlink()
    assert not known.has(path)


def test_a_file_is_known_by_the_hash_of_its_sound_state(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    known = SoundFiles()
    known.add(path, "hash")
    assert known.has(path, "hash")
    assert not known.has(path, "another")


def test_a_damaged_record_of_what_is_known_knows_nothing(tmp_path):
    path, record = tmp_path / "file", tmp_path / "sound.json"
    path.write_text("one")
    remembered(tmp_path, path)
    for text in ("", "[]", "null", '{"marks": {}}', record.read_text().replace("file", "fire")):
        record.write_text(text)
        assert not read_known(record).has(path)
