"""Power as the grid sees it, against sums over a fine grid of moments; idle burn and staggered replicas."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers.builders import a100
from helpers.timed_plans import GPUS_OF_A_STAGE, timed_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.graph.records import Direction
from kareus.plans.grid_power import PowerSeries, grid_power, power_line, power_series
from kareus.plans.idle_burn import least_burn
from kareus.plans.selectors import parse_selector
from kareus.plans.staggered import staggered

WAITING_W = 85.0
GPU = a100(blocking_power_w=WAITING_W, power_limit_w=400.0)
STEPS = st.lists(st.tuples(st.floats(0.05, 2), st.floats(0, 1000)), min_size=1, max_size=8)
COST = st.tuples(st.floats(0, 1), st.floats(0.1, 1), st.floats(10, 200))


def series_of(steps):
    lengths_s, powers_w = zip(*steps, strict=True)
    return PowerSeries(np.concatenate(([0.0], np.cumsum(lengths_s))), np.array(powers_w))


def seen_by_sums(series, step_s=1e-3):
    """Means of windows of a second by adding up the power at moments a millisecond apart, over three iterations."""
    moments_s = np.arange(step_s / 2, 3 * series.period_s + 3, step_s)
    powers_w = series.at_w(moments_s % series.period_s)
    totals = np.concatenate(([0.0], np.cumsum(powers_w)))
    window = round(1 / step_s)
    return (totals[window:] - totals[:-window]) / window


@settings(max_examples=30)
@given(STEPS)
def test_the_grid_sees_what_sums_over_moments_give(steps):
    series = series_of(steps)
    seen, means_w = grid_power(series), seen_by_sums(series)
    changes_w = np.abs(means_w[1000:] - means_w[:-1000])
    off_w = 1e-3 * 4 * max(power_w for _, power_w in steps) + 1e-9
    assert seen.least_w == pytest.approx(means_w.min(), abs=off_w)
    assert seen.most_w == pytest.approx(means_w.max(), abs=off_w)
    assert seen.ramp_w_per_s == pytest.approx(changes_w.max(), abs=off_w)


@given(STEPS)
def test_the_mean_that_is_seen_is_the_energy_over_the_time(steps):
    series = series_of(steps)
    energy_j = sum(length_s * power_w for length_s, power_w in steps)
    assert series.energy_j == pytest.approx(energy_j, abs=1e-9)
    moments_s = (np.arange(1000) + 0.5) / 1000 * series.period_s
    most_w = max(power_w for _, power_w in steps)
    assert series.seen_w(moments_s).mean() == pytest.approx(energy_j / series.period_s, abs=2e-3 * most_w + 1e-9)
    assert grid_power(series).least_w <= series.mean_w * (1 + 1e-9)
    assert grid_power(series).most_w >= series.mean_w * (1 - 1e-9)


def test_a_dip_longer_than_a_second_is_seen_whole():
    """Second by second 500, 500, 100, 100 W: one second after the other they change by 400 W."""
    seen = grid_power(series_of([(2.0, 500.0), (2.0, 100.0)]))
    assert (seen.mean_w, seen.least_w, seen.most_w, seen.ramp_w_per_s) == pytest.approx((300, 100, 500, 400))
    assert seen.swing == pytest.approx(400 / 300)
    assert power_line(series_of([(2.0, 500.0), (2.0, 100.0)])) == (
        "all GPUs draw 300 W in the mean, swing 133 %, largest ramp 400 W/s (means of 1 s); second by second in kW: "
        "0.50, 0.50, 0.10, 0.10"
    )
    assert power_line(series_of([(1.0, 500.0)])).endswith(" (means of 1 s)"), "a single second says nothing further"


def test_a_dip_of_a_tenth_of_a_second_is_seen_as_a_tenth():
    seen = grid_power(series_of([(9.9, 500.0), (0.1, 0.0)]))
    assert (seen.least_w, seen.most_w, seen.ramp_w_per_s) == pytest.approx((450, 500, 50))


@given(st.lists(COST, min_size=1, max_size=4), st.lists(COST, min_size=1, max_size=4))
def test_the_energy_that_the_grid_sees_is_the_plans(first, second):
    busy_s = [sum(gap_s + time_s for gap_s, time_s, _ in own) for own in (first, second)]
    plan = timed_plan([first, second], max(busy_s))
    worked_s = sum(time_s for own in (first, second) for _, time_s, _ in own)
    worked_j = sum(energy_j for own in (first, second) for *_, energy_j in own)
    energy_j = GPUS_OF_A_STAGE * (worked_j + WAITING_W * (2 * max(busy_s) - worked_s))
    assert power_series(plan, GPU).energy_j == pytest.approx(energy_j, rel=1e-6)


DIPPING = timed_plan([[(0.0, 4.0, 1200.0)], [(0.0, 2.0, 600.0)]], 4.0)
"""For two seconds the second stage waits: 4.8 kW, then 3.08 kW."""


def test_a_dip_is_filled_with_the_energy_that_its_seconds_lack():
    """Of the two seconds of the dip each needs 920 J for a mean of 4 kW; nothing beside them does."""
    burn = least_burn(DIPPING, GPU, parse_selector("floor=4kW"))
    assert burn.energy_j == pytest.approx(2 * (4000 - 3080), rel=1e-3)
    assert burn.seen.least_w >= 4000 * (1 - 1e-5)


def test_gpus_that_wait_cannot_burn_more_than_their_limit():
    assert least_burn(DIPPING, GPU, parse_selector("floor=4.8kW")) is not None
    colder = dataclasses.replace(GPU, power_limit_w=200.0)  # 8 x 200 W beside 2.4 kW are 4 kW
    assert least_burn(DIPPING, colder, parse_selector("floor=4.8kW")) is None
    assert least_burn(DIPPING, colder, parse_selector("floor=3.9kW")) is not None


def test_what_keeps_a_limit_burns_nothing():
    assert least_burn(DIPPING, GPU, parse_selector("floor=3kW")).energy_j == 0
    assert least_burn(DIPPING, GPU, parse_selector("swing=60%")).energy_j == 0


@settings(max_examples=8)
@given(
    st.lists(COST, min_size=1, max_size=3),
    st.lists(COST, min_size=1, max_size=3),
    st.sampled_from(["swing", "ramp", "floor"]),
    st.floats(0.3, 0.9),
)
def test_burning_keeps_the_limit_and_costs_no_more_than_filling_up(first, second, goal, share):
    """Filling all moments up to one power is a way to keep a floor, and never less than the least."""
    plan = timed_plan([first, second], 0.1 + max(sum(gap + time for gap, time, _ in own) for own in (first, second)))
    series = power_series(plan, GPU)
    seen = grid_power(series)
    limits = {"swing": f"{100 * max(share * seen.swing, 0.01)}%", "ramp": f"{max(share * seen.ramp_w_per_s, 1)}W/s"}
    floor_w = seen.least_w + (1 - share) * (seen.mean_w - seen.least_w)
    burn = least_burn(plan, GPU, parse_selector(f"{goal}={(limits | {'floor': f'{floor_w}W'})[goal]}"))
    if burn is None:
        return
    means_w = seen_by_sums(burn.series)
    off_w = 0.01 * means_w.max()
    if goal == "floor":
        assert means_w.min() >= floor_w - off_w
        filled_j = sum(
            max(floor_w - power_w, 0.0) * (to_s - from_s)
            for power_w, (from_s, to_s) in zip(series.powers_w, itertools.pairwise(series.edges_s), strict=True)
        )
        assert burn.energy_j <= filled_j * 1.02 + 1e-6
    elif goal == "swing":
        assert means_w.max() - means_w.min() <= share * max(seen.swing, 0.01 / share) * burn.series.mean_w + off_w
    else:
        assert np.abs(means_w[1000:] - means_w[:-1000]).max() <= max(share * seen.ramp_w_per_s, 1) + off_w
    middles_s = (burn.series.edges_s[1:] + burn.series.edges_s[:-1]) / 2
    burnt_w = burn.series.at_w(middles_s) - series.at_w(middles_s)
    assert burnt_w.min() >= -1e-6
    assert burnt_w.max() <= plan.gpus * (GPU.power_limit_w - WAITING_W) * (1 + 1e-9)


def test_staggered_replicas_wait_for_as_long_as_they_are_shifted():
    plan = timed_plan([[(0.0, 1.0, 300.0), (0.5, 0.5, 50.0)], [(1.0, 0.5, 150.0), (0.0, 0.5, 50.0)]], 2.0)
    updating = [
        dataclasses.replace(
            stage,
            instructions=(
                stage.instructions[0],
                dataclasses.replace(stage.instructions[1], direction=Direction.UPDATE, microbatch=-1),
            ),
        )
        for stage in plan.stages
    ]
    plan = dataclasses.replace(plan, stages=tuple(updating))
    before = power_series(plan, GPU)
    assert staggered(plan, GPU, replicas=2, shift_s=0.0).energy_j == pytest.approx(before.energy_j)
    after = staggered(plan, GPU, replicas=2, shift_s=0.4)
    assert after.period_s == pytest.approx(2.4)
    assert after.energy_j == pytest.approx(before.energy_j + 0.4 * WAITING_W * plan.gpus)
    alone_w = plan.gpus / 2 * 300 / 2  # half of the replicas work on the first stage
    waiting_w = plan.gpus * WAITING_W
    assert after.at_w(np.array([0.2]))[0] == pytest.approx(waiting_w + alone_w - plan.gpus / 4 * WAITING_W)
    assert after.at_w(np.array([2.1]))[0] == pytest.approx(plan.gpus * 100)  # all update together
