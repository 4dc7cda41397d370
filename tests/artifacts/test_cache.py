"""Files in the folder of caches: only what this user has made there counts, and nothing else stops anybody."""

import os
import shutil
import socket

import pytest
from helpers.builders import resealed

from kareus.artifacts.cache import CACHE_VARIABLE, keep, kept, place_of
from kareus.artifacts.files import read_json, write_json

NOBODY = 65534


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where a document is kept."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    keep("kind", "key", {"a": [1]})
    return place_of("kind", "key")


def test_what_is_kept_comes_back_under_its_key_only(path):
    assert kept("kind", "key") == {"a": [1]}
    assert kept("kind", "other") is None
    shutil.copy(path, path.with_name("other.json"))
    assert kept("kind", "other") is None


@pytest.mark.parametrize("umask", [0o002, 0o000])
def test_no_umask_lets_others_write_what_is_kept(path, umask):
    before = os.umask(umask)
    try:
        keep("kind", "key", {"a": [2]})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert kept("kind", "key") == {"a": [2]}


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_does_not_count_until_it_is_made_anew(path, mode):
    path.chmod(mode)
    assert kept("kind", "key") is None
    keep("kind", "key", {"a": [1]})
    assert kept("kind", "key") == {"a": [1]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_sealed_file_of_another_user_does_not_count(path):
    os.chown(path, NOBODY, NOBODY)
    assert kept("kind", "key") is None


def _link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _socket(path):
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def _fifo(path):
    path.unlink()
    os.mkfifo(path)


def _folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [_link, _fifo, _socket, _folder, lambda path: path.write_bytes(b"\xff")])
def test_what_is_no_regular_file_of_json_is_not_waited_for(path, spoil):
    spoil(path)
    assert kept("kind", "key") is None
    keep("kind", "key", {"a": [1]})  # over a folder, nothing is kept; it is no error


@pytest.mark.parametrize("change", [{"key": "other"}, {"key": None}, {"content": []}, {"content": None}])
def test_a_resealed_document_of_another_form_does_not_count(path, change):
    write_json(path, resealed({**read_json(path), **change}))
    assert kept("kind", "key") is None
