"""Numbers in words: durations, and what is saved beside a baseline."""

import re
from pathlib import Path

import pytest

import kareus
from kareus.plans.units import compared, duration, less, money, rounded, scaled, significant

HOUR_S, DAY_S, YEAR_S = 3600.0, 86400.0, 365.25 * 86400.0


@pytest.mark.parametrize(
    ("time_s", "said"),
    [
        (0.5 * HOUR_S, "0.50 h"),
        (12.5 * HOUR_S, "12.5 h"),
        (47 * HOUR_S, "47.0 h"),
        (2 * DAY_S, "2.00 days"),
        (200 * DAY_S, "200 days"),
        (YEAR_S, "1.00 years"),
        (-7.78 * YEAR_S, "-7.78 years"),
    ],
)
def test_durations_scale_to_days_and_years(time_s, said):
    assert duration(time_s) == said


@pytest.mark.parametrize(
    ("time", "energy", "said"),
    [
        (10.0, 20.0, "10 % less time and 20 % less energy than x"),
        (0.01, 20.0, "20 % less energy than x in the same time"),
        (-5.0, -0.01, "5.0 % more time than x with the same energy"),
        (0.0, 0.0, "the same time and energy as x"),
    ],
)
def test_what_is_the_same_is_not_said_to_be_less(time, energy, said):
    assert compared(less(time, "time"), less(energy, "energy"), "x") == said


@pytest.mark.parametrize("value", [0.0, -0.0, -1e-12, 1e-12])
def test_what_rounds_to_zero_has_no_sign(value):
    said = [scaled(value, "s"), money(value), duration(value), rounded(value), significant(0.0 * value)]
    assert said == ["0.00 s", "0.00", "0.00 h", "0.0", "0.000"]


def test_numbers_with_a_sign_are_written_without_that_of_zero():
    """`z` in a format: what rounds to zero is none that is less."""
    texts = {path: path.read_text() for path in Path(kareus.__file__).parent.rglob("*.py")}
    signed = {
        path.name: found for path, text in texts.items() if (found := re.findall(r":\+[,.0-9]*[f%]\}|%\+\.\df", text))
    }
    assert signed == {"api.py": [":+.0f}"]}  # of an example
