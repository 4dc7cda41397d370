"""Fleets that wait: no method is worse than what it contains, under any cap and by hours at any price of 0 or more."""

import dataclasses

import polars as pl
import pytest
from helpers.fleets import fleet, microbatch
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.emulate import waiting
from kareus.emulate.frontiers import method_frontiers
from kareus.emulate.rows import hour_rows, power_cap_rows
from kareus.frontiers.tables import MICROBATCH
from kareus.plans.series import HourlySeries, Unit

PART, WHOLE = "sequential+perseus", "kareus"
ROUNDING = 1e-6


def with_sequential_points(frontier: pl.DataFrame, gain: float, points: int) -> pl.DataFrame:
    """Let `kareus` have the points of `sequential` too, and fewer of its own, which take less by `gain`."""
    own = frontier.filter((pl.col("method") == WHOLE) & (pl.col("point") < points))
    names = ("time_s", "energy_j", "effective_energy_j", "dynamic_energy_j")
    kept = frontier.filter(pl.col("method") == "sequential")
    taken = kept.with_columns(method=pl.lit(WHOLE), point=pl.col("point") + points)
    better = own.with_columns(pl.col(name) * (1 - gain) for name in names)
    return MICROBATCH.frame(pl.concat([kept, better, taken]).to_dicts())


@settings(max_examples=4, deadline=None)
@given(st.floats(0, 0.3), st.integers(1, 3), st.lists(st.floats(0, 5), min_size=2, max_size=3), st.data())
def test_kareus_is_never_worse_than_what_it_contains(gain, points, prices, data):
    caps_w = data.draw(st.lists(st.integers(61, 400), min_size=1, max_size=4, unique=True))
    caps = "emulation.power_caps=[" + ",".join(f"{cap_w}W" for cap_w in caps_w) + "]"
    one = fleet(caps, "emulation.deadlines=3", "emulation.stragglers=[]")
    frontiers = method_frontiers(one, with_sequential_points(microbatch(points=6), gain, points))
    capped = {(row["method"], row["cap_w"]): row["time_s"] for row in power_cap_rows(one, frontiers)}
    for cap_w in caps_w:
        assert capped[WHOLE, 64 * cap_w] <= capped[PART, 64 * cap_w] * (1 + ROUNDING)
    slowest_s = max(own.plans[0].time_s for own in frontiers)
    iterations = data.draw(st.integers(1, int(len(prices) * 3600 / slowest_s)))
    emulation = dataclasses.replace(one.emulation, series="prices.csv", iterations=iterations)
    work = dataclasses.replace(one, emulation=emulation)
    rows = hour_rows(work, frontiers, HourlySeries(Unit.PRICE, tuple(prices)))
    for policy in ("steady", "hourly"):
        of = {m: sum(r["charge"] for r in rows if (r["method"], r["policy"]) == (m, policy)) for m in (PART, WHOLE)}
        assert of[WHOLE] <= of[PART] + ROUNDING * max(1.0, of[PART])


@pytest.mark.parametrize("method", [PART, WHOLE])
def test_slower_plans_use_less_than_faster_ones_that_wait(method):
    one = fleet("emulation.deadlines=3")
    (own,) = [own for own in method_frontiers(one, microbatch(points=6)) if own.method == method]
    costs = [(plan.time_s, plan.energy_j - 60 * 16 * plan.time_s) for plan in own.plans]
    assert costs == sorted(costs)
    assert [energy_j for _, energy_j in costs] == sorted((energy_j for _, energy_j in costs), reverse=True)


def test_a_bound_above_a_plan_of_another_method_is_a_fault(monkeypatch):
    """Where the solver misses a plan that the other method has, its bound still has to be below that plan."""
    one = fleet("emulation.deadlines=3", "emulation.stragglers=[]")
    (part, _) = [own for own in method_frontiers(one, microbatch(points=6)) if own.method in (PART, WHOLE)]
    first = part.plans[0]
    missed = dataclasses.replace(first, energy_j=2 * first.energy_j, lower_bound_j=1.5 * first.energy_j)
    monkeypatch.setattr(waiting, "plans_within", lambda problem, deadlines_s: [missed])
    theirs = [(part.problem, [first])]
    with pytest.raises(ArithmeticError, match="its lower bound is"):
        waiting.with_plans_of(list(part.plans[1:]), part.problem, theirs, idle_w=0.0)
