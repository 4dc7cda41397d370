import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError
from kareus.plan.selectors import Goal, Selector, parse_selector, select

FRONTIER = pl.DataFrame({"time_s": [5.0, 5.5, 6.0], "energy_j": [30e3, 25e3, 22e3]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fastest", Selector(Goal.FASTEST)),
        ("min-energy", Selector(Goal.MIN_ENERGY)),
        ("deadline=5.2s", Selector(Goal.DEADLINE, 5.2)),
        ("deadline=900ms", Selector(Goal.DEADLINE, 0.9)),
        ("deadline=2min", Selector(Goal.DEADLINE, 120.0)),
        ("energy=20kJ", Selector(Goal.ENERGY, 20e3)),
        ("energy=1.5MJ", Selector(Goal.ENERGY, 1.5e6)),
    ],
)
def test_selectors_are_read_with_their_units(text, expected):
    assert parse_selector(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "fast", "fastest=1", "deadline", "deadline=", "deadline=5.2", "deadline=5.2kJ", "energy=20s", "deadline=..s"],
)
def test_what_is_no_selector_is_refused_with_all_that_are(text):
    with pytest.raises(ConfigError, match=r"allowed: fastest, min-energy, deadline=<time>"):
        parse_selector(text)


@pytest.mark.parametrize("text", ["deadline=0s", "deadline=-1s", "energy=1e999J"])
def test_a_limit_is_a_positive_number(text):
    with pytest.raises(ConfigError, match="is not a positive number"):
        parse_selector(text)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("fastest", 0),
        ("min-energy", 2),
        ("deadline=5.7s", 1),
        ("deadline=5.5s", 1),
        ("deadline=99s", 2),
        ("energy=26kJ", 1),
        ("energy=1MJ", 0),
    ],
)
def test_a_selector_picks_the_best_plan_within_its_limit(text, row):
    assert select(parse_selector(text), FRONTIER) == row


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deadline=4.9s", r"deadline=4\.9s: no plan is within it; the least that can be reached is 5s\."),
        ("energy=20kJ", r"energy=20000J: no plan is within it; the least that can be reached is 22000J\."),
    ],
)
def test_a_limit_out_of_reach_says_what_can_be_reached(text, message):
    with pytest.raises(ConfigError, match=message):
        select(parse_selector(text), FRONTIER)


plans = st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=1, max_size=9)


@given(plans, st.floats(1, 9))
def test_no_other_plan_within_the_deadline_uses_less_energy(rows, limit):
    frame = pl.DataFrame(rows, schema={"time_s": pl.Float64, "energy_j": pl.Float64}, orient="row")
    within = [row for row in rows if row[0] <= limit]
    if within:
        assert rows[select(Selector(Goal.DEADLINE, limit), frame)][1] == min(energy for _, energy in within)
