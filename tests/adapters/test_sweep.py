"""The order in which clocks are visited, and how much that slows a job down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.adapters.sweep import ClockSweep
from kareus.errors import ConfigError

CLOCKS_MHZ = (900, 1050, 1200, 1410)
clock_sets = st.sets(st.integers(300, 2000), min_size=1, max_size=8).map(lambda clocks: tuple(sorted(clocks)))


def sweep_of(clocks_mhz=CLOCKS_MHZ, most_slowdown=0.05, seed=0):
    return ClockSweep(clocks_mhz=clocks_mhz, most_slowdown=most_slowdown, seed=seed)


@given(clock_sets, st.floats(0.01, 2.0), st.integers(0, 5))
def test_the_slow_down_is_bounded_at_any_time(clocks_mhz, most_slowdown, number):
    sweep = sweep_of(clocks_mhz, most_slowdown)
    iterations = sweep.round(number, clocks_mhz)
    usual = added = 0.0
    for one in iterations:  # each takes as long as it can, the inverse of its clock
        usual += 1.0
        added += sweep.maximum_mhz / one.frequency_mhz - 1
        assert added <= most_slowdown * usual * (1 + 1e-6)
    assert added / usual == pytest.approx(sweep.slowdown_bound)
    assert len(iterations) == sweep.round_iterations


def test_a_round_measures_every_clock_once_in_an_order_of_its_own():
    rounds = [[i.frequency_mhz for i in sweep_of().round(n, CLOCKS_MHZ) if i.is_measured] for n in range(4)]
    assert {tuple(sorted(clocks)) for clocks in rounds} == {CLOCKS_MHZ}
    assert len({tuple(clocks) for clocks in rounds}) > 1
    again = [[i.frequency_mhz for i in sweep_of().round(n, CLOCKS_MHZ) if i.is_measured] for n in range(4)]
    assert again == rounds  # on every rank


def test_only_missing_clocks_are_visited_again():
    assert [i.frequency_mhz for i in sweep_of().round(1, [1200]) if i.is_measured] == [1200]


@pytest.mark.parametrize("clocks_mhz", [(), (1410, 900), (900, 900), (0, 900)])
def test_clocks_that_do_not_rise_are_refused(clocks_mhz):
    with pytest.raises(ConfigError, match="must be one or more clocks in MHz, ascending"):
        sweep_of(clocks_mhz)


def test_a_slow_down_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"most_slowdown=0.0: must be greater than 0"):
        sweep_of(most_slowdown=0.0)
