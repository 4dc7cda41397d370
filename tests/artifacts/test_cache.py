"""The folder of caches."""

import pytest

from kareus.artifacts.cache import CACHE_VARIABLE, cache_folder


@pytest.mark.parametrize(
    ("own", "shared", "expected"), [("/a", "/b", "/a"), ("", "/b", "/b/kareus"), ("", "", "/home/.cache/kareus")]
)
def test_the_folder_follows_the_environment(own, shared, expected, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, own)
    monkeypatch.setenv("XDG_CACHE_HOME", shared)
    monkeypatch.setenv("HOME", "/home")
    assert str(cache_folder()) == expected
