"""Plans by the hour against all vertices of the linear program, enumerated."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.emulate.hours import HourlyProblem, HourShare, charge, hourly, iterations, reachable, steady
from kareus.errors import ArtifactError, ConfigError
from kareus.plans.grid_files import read_series
from kareus.plans.series import HourlySeries, Unit
from kareus.plans.units import SECONDS_PER_HOUR

WORK = HourlyProblem(times_s=(10.0, 12.0), energies_j=(1000e3, 900e3), idle_power_w=20e3, iterations=600)


def series(*values):
    return HourlySeries(Unit.PRICE, values)


def by_vertices(work, prices):
    """Least charge over all solutions in which one hour at most is shared, by two ways: an optimum is among them."""
    ways = [*range(len(work.times_s)), None]
    pace = [SECONDS_PER_HOUR / work.times_s[way] if way is not None else 0.0 for way in ways]
    best = float("inf")
    hours = range(len(prices.values))
    for pure in itertools.product(ways, repeat=len(hours)):
        slots = [HourShare(hour, way, 1.0) for hour, way in zip(hours, pure, strict=True)]
        if sum(iterations(work, slot) for slot in slots) == pytest.approx(work.iterations, rel=1e-9):
            best = min(best, charge(work, prices, slots))
        for shared, (a, b) in itertools.product(hours, itertools.combinations(range(len(ways)), 2)):
            others = [slot for slot in slots if slot.hour != shared]
            missing = work.iterations - sum(iterations(work, slot) for slot in others)
            share = (missing - pace[b]) / (pace[a] - pace[b]) if pace[a] != pace[b] else -1.0
            if 0 <= share <= 1:
                mixed = [*others, HourShare(shared, ways[a], share), HourShare(shared, ways[b], 1 - share)]
                best = min(best, charge(work, prices, mixed))
    return best


def test_dear_hours_are_spent_waiting():
    slots = hourly(WORK, series(1.0, 100.0))
    assert (slots[0].hour, slots[0].plan) == (0, 0)
    second = {slot.plan: slot.share for slot in slots if slot.hour == 1}
    assert second[None] == pytest.approx(1 - (600 - 360) * 12 / 3600)


def test_a_negative_price_adds_no_iterations():
    work, prices = dataclasses.replace(WORK, iterations=100), series(-0.05, 0.1)
    for plan in (hourly, steady):
        assert sum(iterations(work, slot) for slot in plan(work, prices)) == pytest.approx(100)


def test_a_flat_price_needs_no_hours():
    flat = series(0.1, 0.1, 0.1)
    assert charge(WORK, flat, hourly(WORK, flat)) == pytest.approx(by_vertices(WORK, flat))


def test_one_plan_from_the_start_by_hand():
    """600 iterations of 12 s take two hours at 75 kW, then one of waiting at 20 kW; of 10 s, 100 kW for 5/3 hours."""
    slots = steady(WORK, series(0.1, 0.1, 0.2))
    assert [(slot.hour, slot.plan, slot.share) for slot in slots] == [(0, 1, 1.0), (1, 1, 1.0), (2, None, 1.0)]
    assert charge(WORK, series(0.1, 0.1, 0.2), slots) == pytest.approx(2 * 75 * 0.1 + 20 * 0.2)


works = st.builds(
    HourlyProblem,
    times_s=st.tuples(st.floats(8, 10), st.floats(10, 14)),
    energies_j=st.tuples(st.floats(8e5, 2e6), st.floats(4e5, 8e5)),
    idle_power_w=st.floats(0, 2.8e4),  # less than any plan draws
    iterations=st.integers(1, 700),
)


@settings(max_examples=40)
@given(works, st.lists(st.floats(-1, 5), min_size=2, max_size=3))
def test_no_vertex_is_cheaper_and_all_iterations_are_done(work, values):
    prices = series(*values)
    slots = hourly(work, prices)
    expected = by_vertices(work, prices)
    resolved = 1e-6 * max(1.0, *map(abs, values))  # beside a dear hour the solver does not tell cheap ones apart
    assert charge(work, prices, slots) == pytest.approx(expected, rel=1e-6, abs=resolved)
    assert sum(iterations(work, slot) for slot in slots) == pytest.approx(work.iterations, rel=1e-6)
    assert charge(work, prices, slots) <= charge(work, prices, steady(work, prices)) + 1e-6
    for hour in range(len(values)):
        assert sum(slot.share for slot in slots if slot.hour == hour) == pytest.approx(1)


@settings(max_examples=20)
@given(works, st.integers(1, 300))
def test_more_iterations_never_cost_less(work, more):
    prices = series(1.0, 3.0)
    larger = HourlyProblem(
        times_s=work.times_s,
        energies_j=work.energies_j,
        idle_power_w=work.idle_power_w,
        iterations=min(work.iterations + more, int(reachable(work, prices))),
    )
    assert charge(work, prices, hourly(work, prices)) <= charge(larger, prices, hourly(larger, prices)) + 1e-6


def test_more_than_the_fastest_plan_can_do_is_refused():
    work = HourlyProblem(times_s=WORK.times_s, energies_j=WORK.energies_j, idle_power_w=0.0, iterations=721)
    for plan in (hourly, steady):
        with pytest.raises(ConfigError, match=r"iterations=721: 2 hours allow 1 to 720 with the fastest plan"):
            plan(work, series(1.0, 1.0))


def test_the_steady_plan_is_that_of_the_least_charge_not_energy():
    """360 iterations: 100 + 20 kWh for 10 + 200, or with the other plan 75 + 31 kWh for 7.5 + 310."""
    work, prices = dataclasses.replace(WORK, iterations=360), series(0.1, 10.0)
    slots = steady(work, prices)
    assert [(slot.hour, slot.plan, slot.share) for slot in slots] == [(0, 0, 1.0), (1, None, 1.0)]
    assert charge(work, prices, slots) == pytest.approx(210)


@pytest.mark.parametrize("sign", [1, -1])
def test_hours_of_the_least_prices_are_told_apart(sign):
    prices = [sign * price for price in (0.31, 0.12, 0.4, 0.25)]
    slots, others = (hourly(WORK, series(*(price * unit for price in prices))) for unit in (1, 1e-14))
    assert [(slot.hour, slot.plan) for slot in others] == [(slot.hour, slot.plan) for slot in slots]
    assert [slot.share for slot in others] == pytest.approx([slot.share for slot in slots], rel=1e-6)


def test_the_most_that_the_fastest_plan_can_do_is_done():
    work = dataclasses.replace(WORK, iterations=720)
    for plan in (hourly, steady):
        slots = [(slot.hour, slot.plan, slot.share) for slot in plan(work, series(0.1, 0.2))]
        assert slots == [(0, 0, pytest.approx(1)), (1, 0, pytest.approx(1))]


def test_a_series_is_read_from_its_columns(tmp_path):
    path = tmp_path / "carbon.csv"
    path.write_text("hour,carbon_g_per_kwh\n0,300\n1,0\n\n")
    assert read_series(path) == HourlySeries(Unit.CARBON, (300.0, 0.0))


@pytest.mark.parametrize(
    ("header", "value", "unit", "per_kwh"),
    [
        ("price_per_mwh", 52.3, Unit.PRICE, 0.0523),
        ("price_per_mwh", -500, Unit.PRICE, -0.5),  # the floor of the European market
        ("price_per_kwh", -0.5, Unit.PRICE, -0.5),
        ("carbon_kg_per_mwh", 400, Unit.CARBON, 400),
    ],
)
def test_a_header_says_of_how_much_energy_its_values_are(tmp_path, header, value, unit, per_kwh):
    path = tmp_path / "series.csv"
    path.write_text(f"hour,{header}\n0,{value}\n")
    assert read_series(path) == HourlySeries(unit, (pytest.approx(per_kwh),))


def test_a_series_may_come_from_a_spreadsheet(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("\ufeffhour,price_per_kwh\r\n0,0.3\r\n", encoding="utf-8")
    assert read_series(path) == HourlySeries(Unit.PRICE, (0.3,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns none; expected hour,price_per_kwh or hour,carbon_g_per_kwh"),
        ("hour,price\n0,1\n", "columns hour,price; expected"),
        ("hour,price_per_kwh\n", "has no hours"),
        ("hour,price_per_kwh\n0,1\n2,1\n", "row 2: hour 2, expected 1"),
        ("hour,price_per_kwh\n0,cheap\n", "row 1: '0,cheap' is not an hour and a number"),
        ("hour,price_per_kwh\n0\n", "row 1: '0' is not an hour and a number"),
        ("hour,price_per_kwh\n0,1_0\n", "row 1: '0,1_0' is not an hour and a number"),
        ("hour,price_per_kwh\n0_0,1\n", "row 1: '0_0,1' is not an hour and a number"),
        ("hour,price_per_kwh\n0,0,31\n", "row 1: '0,0,31' is not an hour and a number"),
        (f"hour,price_per_kwh\n0,{'1' * 140_000}\n", "is not CSV: field larger than field limit"),
        ("hour,price_per_kwh\n0,nan\n", "row 1: nan is not a finite number"),
        ("hour,price_per_kwh\n0,1e300\n", "row 1: 1e300: a price_per_kwh of"),
        ("hour,price_per_kwh\n0,8\n1,69.2\n", "row 2: 69.2: a price_per_kwh of 69.2 is not plausible; must be from -1"),
        ("hour,price_per_kwh\n0,-40\n", "row 1: -40: a price_per_kwh of -40 is not plausible"),
        ("hour,price_per_mwh\n0,69200\n", "row 1: 69200: a price_per_kwh of 69.2 is not plausible"),
        ("hour,carbon_g_per_kwh\n0,-400\n", "row 1: -400: a carbon_g_per_kwh of -400 is not plausible; must be from 0"),
        ("hour,carbon_g_per_kwh\n0,400000\n", "row 1: 400000: a carbon_g_per_kwh of 400,000 is not plausible"),
        ("hour;price\n0;0,10\n", "columns hour,price; expected hour,price_per_kwh or"),
        ("hour,price\n0,1\n", "(of a MWh: hour,price_per_mwh or hour,carbon_kg_per_mwh), an export of"),
        (f"hour,price_per_kwh\n{'1' * 5000},1\n", "is not an hour and a number"),
        ("hour,price_per_kwh\n" + "".join(f"{n},1\n" for n in range(8785)), "has 8,785 hours; give at most 8,784"),
    ],
)
def test_what_is_no_series_is_refused(tmp_path, text, message):
    path = tmp_path / "series.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_series(path)
    assert message in str(refused.value)


def test_a_series_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"none\.csv: cannot be read"):
        read_series(tmp_path / "none.csv")


@pytest.mark.parametrize("unit", [1e-9, 1e-4, 1e5])
@pytest.mark.parametrize("pace", [1e-6, 100])
def test_hours_do_not_depend_on_currency_or_iteration_size(unit, pace):
    prices = (0.31, 0.12, 0.4, 0.25)
    sized = HourlyProblem(
        times_s=tuple(pace * time_s for time_s in WORK.times_s),
        energies_j=tuple(pace * energy_j for energy_j in WORK.energies_j),
        idle_power_w=WORK.idle_power_w,
        iterations=int(WORK.iterations / pace) or 1,
    )
    plain = dataclasses.replace(WORK, iterations=sized.iterations * pace)
    slots, others = hourly(plain, series(*prices)), hourly(sized, series(*(price * unit for price in prices)))
    assert [(slot.hour, slot.plan) for slot in others] == [(slot.hour, slot.plan) for slot in slots]
    assert [slot.share for slot in others] == pytest.approx([slot.share for slot in slots], rel=1e-6)


def test_a_month_of_hours_is_planned_with_a_frontier_of_a_fleet():
    """A dense program of a month has 720 x 15,120 numbers, and of a year 13 GB."""
    work = HourlyProblem(
        times_s=tuple(10 + n / 5 for n in range(20)),
        energies_j=tuple(1e6 / (1 + n / 40) for n in range(20)),
        idle_power_w=20e3,
        iterations=150_000,
    )
    prices = series(*(0.2 + 0.1 * ((hour * 7) % 24) / 24 for hour in range(720)))
    slots = hourly(work, prices)
    assert sum(iterations(work, slot) for slot in slots) == pytest.approx(150_000)
    assert charge(work, prices, slots) <= charge(work, prices, steady(work, prices))
