"""The scripts of pages, kept in the folder of caches."""

import json

import pytest
from helpers.builders import resealed

from kareus.artifacts.cache import CACHE_VARIABLE
from kareus.report import page
from kareus.report.page import vega_scripts


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """How often scripts were bundled, with a folder of caches of its own; bundling takes its time and is not run."""
    calls = []
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(page, "_bundled", lambda: calls.append(1) or "window.vegaEmbed = () => {};")
    vega_scripts.cache_clear()
    yield calls
    vega_scripts.cache_clear()


def again():
    """The scripts as the next process finds them."""
    vega_scripts.cache_clear()
    return vega_scripts()


def test_scripts_are_bundled_once_for_all_processes(bundled):
    assert again() == again() == "window.vegaEmbed = () => {};"
    assert len(bundled) == 1


def scripts(value):
    """What another process keeps in place of the scripts."""
    return lambda text: json.dumps(resealed({**json.loads(text), "content": {"scripts": value}}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("vegaEmbed", "evil"),
        lambda _: "",
        lambda _: "[]",
        scripts(5),
        scripts(None),
        scripts("</SCRIPT><script>alert(1)</script>"),
    ],
)
def test_a_damaged_file_is_made_anew(bundled, tmp_path, damage):
    first = again()
    (path,) = (tmp_path / "cache/vega").iterdir()
    path.write_text(damage(path.read_text()))
    assert again() == first
    assert len(bundled) == 2
    assert again() == first
    assert len(bundled) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(bundled, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert again() == again()
    assert len(bundled) == 2
