"""What a clock that was not kept means."""

import pytest

from kareus.device.held_clock import HOT, ClockOutcome, clock_outcome


@pytest.mark.parametrize(
    ("asked_mhz", "mean_mhz", "reasons", "outcome"),
    [
        (1410, 1410.0, (), ClockOutcome.KEPT),
        (1410, 1395.0, ("thermal-limit",), ClockOutcome.KEPT),  # within a step
        (1410, 1394.0, ("power-limit",), ClockOutcome.POWER_LIMITED),
        (1410, 700.0, ("power-limit",), ClockOutcome.POWER_LIMITED),
        (1410, 700.0, (), ClockOutcome.LOST),
        (1410, 700.0, ("sync-boost",), ClockOutcome.LOST),
        (900, 1410.0, (), ClockOutcome.LOST),  # somebody unlocked it
        (900, 1410.0, ("power-limit",), ClockOutcome.LOST),
        *((1410, 700.0, (reason,), ClockOutcome.LOST) for reason in HOT),
        *((1410, 700.0, ("power-limit", reason), ClockOutcome.LOST) for reason in HOT),
    ],
)
def test_only_the_power_limit_explains_a_lower_clock(asked_mhz, mean_mhz, reasons, outcome):
    assert clock_outcome(asked_mhz, mean_mhz, reasons) is outcome
