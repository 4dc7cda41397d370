"""What a clock that was not kept means."""

import pytest

from kareus.device.held_clock import HOT, ClockOutcome, clock_outcome, outcome_of_readings


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


@pytest.mark.parametrize(
    ("read", "outcome"),
    [
        ([], ClockOutcome.KEPT),  # shorter than the period of readings
        ([(210, ("idle",)), (1410, ()), (1410, ())], ClockOutcome.KEPT),
        ([(900, ()), (900, ()), (1410, ()), (1395, ())], ClockOutcome.KEPT),  # it was still changing
        ([(1410, ()), (900, ("thermal-limit",)), (900, ("thermal-limit",))], ClockOutcome.LOST),
        ([(900, ("thermal-limit",)), (900, ())], ClockOutcome.LOST),
        ([(1200, ("power-limit",)), (1300, ("power-limit",))], ClockOutcome.POWER_LIMITED),
    ],
)
def test_readings_beside_a_load_say_whether_its_clock_was_kept(read, outcome):
    readings = [(0.025 * n, mhz, reasons) for n, (mhz, reasons) in enumerate(read)]
    assert outcome_of_readings(1410, readings) is outcome
