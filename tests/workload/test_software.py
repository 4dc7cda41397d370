"""Profiles of software."""

import pytest
from helpers.builders import CONFIG

from kareus.errors import ConfigError
from kareus.workload.software import Accounting, read_software

OPTIONS = sorted(path.stem for path in (CONFIG / "software").glob("*.yaml"))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_profile_is_read(option):
    assert read_software(option, CONFIG).name == option


def test_kareus_leaves_its_overheads_to_the_gpu():
    software = read_software("kareus", CONFIG)
    assert software.accounting is Accounting.SHARE
    assert (software.host_launch_s, software.host_collective_s) == (0, 0)
    assert (software.attention_slowdown, software.traffic) == (1, 1)


def test_an_unknown_profile_is_refused():
    with pytest.raises(ConfigError, match="software/none"):
        read_software("none", CONFIG)
