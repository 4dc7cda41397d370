import math
import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError
from kareus.plans.run_totals import check_tokens
from kareus.plans.selectors import Goal, Prices, Selector, check_selectors, fastest_plan, parse_selector, select

GPUS = 16
FRONTIER = pl.DataFrame({"time_s": [5.0, 5.5, 6.0], "energy_j": [30e3, 25e3, 22e3]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fastest", Selector(Goal.FASTEST)),
        ("min-energy", Selector(Goal.MIN_ENERGY)),
        ("deadline=5.2s", Selector(Goal.DEADLINE, 5.2)),
        ("deadline=900ms", Selector(Goal.DEADLINE, 0.9)),
        ("deadline=2min", Selector(Goal.DEADLINE, 120.0)),
        ("energy=250J", Selector(Goal.ENERGY, 250.0)),
        ("energy=20kJ", Selector(Goal.ENERGY, 20e3)),
        ("energy=1.5MJ", Selector(Goal.ENERGY, 1.5e6)),
        ("power=700W", Selector(Goal.POWER, 700.0)),
        ("power=80kW", Selector(Goal.POWER, 80e3)),
        ("power=1.2MW", Selector(Goal.POWER, 1.2e6)),
        ("straggler=1.15x", Selector(Goal.STRAGGLER, 1.15)),
        ("edp", Selector(Goal.EDP)),
        ("cost=0.12perkWh+2.5perGPUh", Selector(Goal.COST, prices=Prices(0.12, 2.5))),
        ("cost=1e-1perkWh", Selector(Goal.COST, prices=Prices(0.1, 0.0))),
        ("cost=120EURperMWh+2.5EURperGPUh", Selector(Goal.COST, prices=Prices(0.12, 2.5, "EUR"))),
        ("cost=0.12perkWh+2.5USDperGPUh", Selector(Goal.COST, prices=Prices(0.12, 2.5, "USD"))),
        ("cost=2perGPUh", Selector(Goal.COST, prices=Prices(0.0, 2.0))),
    ],
)
def test_selectors_are_read_with_their_units(text, expected):
    assert parse_selector(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("deadline", "needs a limit; write a number and a unit (ms, s or min), such as deadline=5.2s."),
        ("deadline=", "needs a limit; write a number and a unit (ms, s or min), such as deadline=5.2s."),
        ("deadline=5.2", "'5.2' has no unit; write ms, s or min after it, such as deadline=5.2s."),
        ("deadline=5.2kJ", "'kJ' is not a unit of it; write ms, s or min, such as deadline=5.2s."),
        ("energy=20s", "'s' is not a unit of it; write J, kJ or MJ, such as energy=20kJ."),
        ("deadline=..s", "'..' is not a positive number, such as in deadline=5.2s."),
        ("deadline=5,2s", "'5,2s' has a comma; write a decimal point, such as deadline=5.2s."),
        ("power=3J", "'J' is not a unit of it; write W, kW or MW, such as power=4kW."),
        ("straggler=1.2", "'1.2' has no unit; write x after it, such as straggler=1.15x."),
    ],
)
def test_a_limit_without_its_unit_is_told_what_to_write(text, problem):
    with pytest.raises(ConfigError) as refused:
        parse_selector(text)
    assert str(refused.value) == f"selector '{text}': {problem}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "fastest=1",
        "edp=1",
    ],
)
def test_what_is_no_selector_is_refused_with_all_that_are(text):
    with pytest.raises(ConfigError, match=r"allowed: fastest, min-energy, edp, deadline=<time>"):
        parse_selector(text)


@pytest.mark.parametrize("text", ["deadline=0s", "deadline=-1s", "energy=1e999J", "power=0W", "straggler=0x"])
def test_a_limit_is_a_positive_number(text):
    with pytest.raises(ConfigError, match="is not a positive number"):
        parse_selector(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("straggler=0.9x", "no plan is faster than the fastest; give 1x or more"),
        ("cost", "write cost=<price>perkWh+<price>perGPUh"),
        ("cost=", "write cost=<price>perkWh+<price>perGPUh"),
        ("cost=1EURperkWh+2USDperGPUh", "EUR and USD; give both in one currency"),
        ("cost=1perkWh2perGPUh", "write cost=<price>perkWh+<price>perGPUh"),
        ("cost=+2perGPUh", "write cost=<price>perkWh+<price>perGPUh"),
        ("cost=0.12", "write cost=<price>perkWh+<price>perGPUh"),
        ("cost=0perkWh", "prices must be positive numbers"),
        ("cost=1e999perkWh", "prices must be positive numbers"),
        ("cost=..perkWh", "prices must be positive numbers"),
        ("cost=52.3perkWh", "a price_per_kwh of 52.3 is not plausible; must be from -1 to 20.3"),
    ],
)
def test_a_factor_or_a_price_that_means_nothing_is_refused(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
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
        ("straggler=1x", 0),
        ("straggler=1.15x", 1),
        ("power=6kW", 0),
        ("power=5.9kW", 1),
        ("power=3.7kW", 2),
        ("edp", 2),
        ("cost=0.12perkWh", 2),
        ("cost=2perGPUh", 0),
        ("cost=3.2perkWh+1.6perGPUh", 1),
    ],
)
def test_a_selector_picks_the_best_plan_within_its_limit(text, row):
    assert select(parse_selector(text), FRONTIER, GPUS) == row


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "deadline=4.9s",
            "deadline: no plan is within 4.900 s; the least that can be reached is 5.000 s (the frontier ends",
        ),
        ("energy=20kJ", "energy: no plan is within 20.00 kJ; the least that can be reached is 22.00 kJ (the frontier"),
        ("power=3kW", "the least that can be reached is 3.667 kW (the frontier ends at 6.000 kW)."),
    ],
)
def test_a_limit_out_of_reach_says_what_can_be_reached(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        select(parse_selector(text), FRONTIER, GPUS)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("deadline=1e-6s", 1e-6),
        ("deadline=1e9s", 1e9),
        ("straggler=1x", 1),
        ("straggler=1e6x", 1e6),
        ("energy=1e-6J", 1e-6),
        ("energy=1e18J", 1e18),
        ("power=1e-6W", 1e-6),
        ("power=1e12W", 1e12),
    ],
)
def test_a_limit_may_be_either_end_of_its_range(text, limit):
    assert parse_selector(text).limit == limit


@pytest.mark.parametrize(("per_kwh", "per_gpu_hour"), [(1e-300, 1e-300), (20.3, 1e9)])
def test_a_price_may_be_either_end_of_its_range(per_kwh, per_gpu_hour):
    prices = Prices(per_kwh, per_gpu_hour)
    assert parse_selector(f"cost={per_kwh:g}perkWh+{per_gpu_hour:g}perGPUh").prices == prices


def test_a_price_of_a_megawatt_hour_is_a_thousandth_of_one_of_a_kilowatt_hour():
    assert parse_selector("cost=52.3perMWh").prices == Prices(pytest.approx(0.0523), 0.0)
    assert parse_selector("cost=52.3perMWh+2.5perGPUh").prices == Prices(pytest.approx(0.0523), 2.5)
    with pytest.raises(ConfigError, match="the same as"):
        check_selectors(["cost=52.3perMWh", "cost=0.0523perkWh"])


def test_a_selector_has_64_characters_at_most():
    assert parse_selector(f"deadline=5.{'0' * 52}s") == Selector(Goal.DEADLINE, 5.0)
    with pytest.raises(ConfigError, match="has more than 64 characters"):
        parse_selector(f"deadline=5.{'0' * 53}s")


def test_a_cost_is_that_of_energy_and_of_every_gpu():
    """9 MJ are 2.5 kWh; 1,800 s of 16 GPUs are 8 GPU hours."""
    assert Prices(0.12, 2.5).cost(1800.0, 9e6, GPUS) == pytest.approx(2.5 * 0.12 + 8 * 2.5)


def test_the_fastest_plan_is_the_most_frugal_of_those_as_fast_as_noise_can_tell():
    steep = pl.DataFrame({"time_s": [5.0, 5.014, 5.016, 6.0], "energy_j": [30e3, 29e3, 28e3, 22e3]})
    assert select(parse_selector("fastest"), steep, GPUS) == 1
    assert select(parse_selector("straggler=1x"), steep, GPUS) == 0
    assert fastest_plan(steep) == {"time_s": 5.014, "energy_j": 29e3}


@pytest.mark.parametrize(
    ("text", "slow", "fast"),
    [
        ("min-energy", (7.0, 20e3), (6.0, 20e3)),
        ("deadline=9s", (7.0, 20e3), (6.0, 20e3)),
        ("straggler=2x", (7.0, 20e3), (6.0, 20e3)),
        ("edp", (6.0, 25e3), (5.0, 30e3)),
        ("cost=1perkWh", (7.0, 20e3), (6.0, 20e3)),
    ],
)
def test_of_equally_good_plans_the_fastest_is_selected(text, slow, fast):
    for order in ([slow, fast], [fast, slow]):
        frame = pl.DataFrame(order, schema=["time_s", "energy_j"], orient="row")
        assert order[select(parse_selector(text), frame, GPUS)] == fast


plans = st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=1, max_size=9)


@given(plans, st.floats(1, 9))
def test_no_other_plan_within_the_deadline_uses_less_energy(rows, limit):
    frame = pl.DataFrame(rows, schema={"time_s": pl.Float64, "energy_j": pl.Float64}, orient="row")
    within = [row for row in rows if row[0] <= limit]
    if within:
        assert rows[select(Selector(Goal.DEADLINE, limit), frame, GPUS)][1] == min(energy for _, energy in within)


LIMITS = {
    Goal.DEADLINE: ("energy_j", 9.0),
    Goal.STRAGGLER: ("energy_j", 9.0),
    Goal.ENERGY: ("time_s", 9.0),
    Goal.POWER: ("time_s", 9.0),
}
"""What each goal minimises, and a limit that every plan keeps."""


@pytest.mark.parametrize("goal", LIMITS)
@given(plans, st.floats(0, 1), st.floats(0, 1))
def test_a_tighter_limit_never_gives_a_better_plan(goal, rows, share, tighter):
    frame = pl.DataFrame(rows, schema={"time_s": pl.Float64, "energy_j": pl.Float64}, orient="row")
    minimised, loose = LIMITS[goal]
    found = []
    for limit in (max(1.0, loose * share), max(1.0, loose * share * tighter)):
        try:
            found.append(frame[minimised][select(Selector(goal, limit), frame, GPUS)])
        except ConfigError:
            found.append(float("inf"))
    assert found[0] <= found[1]


@given(plans, st.floats(0, 5), st.floats(0, 5))
def test_no_other_plan_has_a_smaller_product_or_costs_less(rows, per_kwh, per_gpu_hour):
    frame = pl.DataFrame(rows, schema={"time_s": pl.Float64, "energy_j": pl.Float64}, orient="row")
    time_s, energy_j = rows[select(Selector(Goal.EDP), frame, GPUS)]
    assert time_s * energy_j == min(t * e for t, e in rows)
    prices = Prices(per_kwh, per_gpu_hour)
    chosen = rows[select(Selector(Goal.COST, prices=prices), frame, GPUS)]
    assert prices.cost(*chosen, GPUS) == min(prices.cost(t, e, GPUS) for t, e in rows)


@pytest.mark.parametrize(
    "text",
    [
        "deadline=1e300s",
        "deadline=1e-300s",
        "energy=1e300J",
        "energy=1e-30J",
        "power=1e300MW",
        "straggler=1e9x",
        "energy=nanJ",
        "deadline=infs",
        "cost=1e300perkWh",
        "cost=0.12perkWh+1e300perGPUh",
        "deadline=5." + "0" * 80 + "s",
        "deadline=5s/../../x",
        "deadline=\x1b[2Js",
    ],
)
def test_a_limit_that_no_iteration_could_have_is_refused(text):
    with pytest.raises(ConfigError, match=r"^selector '") as raised:
        parse_selector(text)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("tokens", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_tokens_that_no_run_has_are_refused(tokens):
    with pytest.raises(ConfigError, match=r"--tokens .*must be"):
        check_tokens(tokens)


def test_a_campaign_may_have_different_selectors():
    check_selectors(["fastest", "edp", "deadline=5.2s", "deadline=5.3s", "cost=0.12perkWh", "cost=0.12perGPUh"])


def test_a_campaign_without_selectors_is_refused():
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


def test_a_campaign_with_an_unknown_selector_is_refused():
    with pytest.raises(ConfigError, match="not understood"):
        check_selectors(["fastest", "quickest"])
