"""Versions that were tried are declared once: pyproject.toml has the same."""

import re
import tomllib
from pathlib import Path

import pytest

from kareus.doctor.software import TRIED, Tried

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
BY_NAME = {tried.distribution: tried for tried in TRIED}


def declared() -> dict[str, str]:
    groups = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *groups["trainers"], *groups["test"]]
    found = {}
    for line in wanted:
        name, limits = re.match(r"([\w.-]+)(?:\[.*\])?([^;]*)", line).groups()
        found[name] = limits.strip()
    return found


@pytest.mark.parametrize("name", [name for name, tried in BY_NAME.items() if tried.oldest is not None])
def test_ranges_are_those_that_are_installed(name):
    assert set(BY_NAME[name].range.split(",")) == set(declared()[name].split(","))


def test_versions_are_compared_as_numbers():
    tried = Tried(distribution="x", oldest=(0, 12), too_new=(0, 17), needed_for="tests")
    assert tried.range == ">=0.12,<0.17"
    assert [tried.has(v) for v in ("0.12", "0.16.1", "0.16.1rc2+cu12")] == [True] * 3
    assert [tried.has(v) for v in ("0.9", "0.17.0", "1.0", "main")] == [False] * 4


def test_a_library_without_power_profiles_is_too_old():
    assert [BY_NAME["nvidia-ml-py"].has(v) for v in ("12.560.30", "12.570.86")] == [False, True]


def test_what_was_never_tried_has_no_version():
    assert not BY_NAME["mscclpp"].has("0.7.0")
    assert BY_NAME["mscclpp"].range == ""
