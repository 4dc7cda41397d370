"""The selectors of a campaign: at least one, each but once."""

import pytest

from kareus.errors import ConfigError
from kareus.plans.selectors import check_selectors


def test_different_selectors_are_fine():
    check_selectors(["fastest", "edp", "deadline=5.2s", "deadline=5.3s", "cost=0.12perkWh", "cost=0.12perGPUh"])


def test_no_selector_is_refused():
    with pytest.raises(ConfigError, match="no selector; give at least one"):
        check_selectors([])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("fastest", "fastest"),
        ("deadline=5.2s", "deadline=5200ms"),
        ("deadline=1.1min", "deadline=66s"),
        ("energy=20kJ", "energy=0.02MJ"),
        ("straggler=1.15x", "straggler=1.150x"),
        ("cost=0.12perkWh+0perGPUh", "cost=0.12perkWh"),
    ],
)
def test_two_selectors_that_ask_for_the_same_are_refused(first, second):
    with pytest.raises(ConfigError, match="leave one of the two out"):
        check_selectors(["edp", first, second])


def test_what_is_no_selector_is_refused():
    with pytest.raises(ConfigError, match="not understood"):
        check_selectors(["fastest", "quickest"])
