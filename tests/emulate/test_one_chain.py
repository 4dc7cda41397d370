"""Stragglers, power caps and comparisons on a pipeline whose plans can all be listed."""

import dataclasses

import pytest
from helpers.chains import WAITING_W, chain, plans

from kareus.emulate.fleet import Scale
from kareus.emulate.frontiers import with_iso_plans
from kareus.emulate.rows import crossing_plan, power_cap_columns, straggler_columns


def scale(exposed_s=0.0):
    return Scale(
        pipelines=3,
        pipeline_gpus=1,
        reduction_s=0.5,
        exposed_s=exposed_s,
        blocking_power_w=WAITING_W,
        least_waiting_w=WAITING_W,
        static_power_w=5.0,
    )


def costs(found):
    return [(plan.time_s, plan.energy_j) for plan in found]


def test_the_chain_has_the_plans_that_it_says():
    assert costs(plans(3.0, 4.0, 5.0)) == [(3, 530), (4, 390), (5, 350)]


@pytest.mark.parametrize("exposed_s", [0.0, 0.5])
def test_the_others_of_a_straggler_save_by_hand(exposed_s):
    """Within 4 s the slow one takes 540 J and both others 390 J instead of 540; a reduction takes 5 J of each."""
    (fastest,) = plans(3.0)
    columns = straggler_columns(4 / 3, fastest, chain(), scale(exposed_s))
    reduction_j = 3 * 10 * exposed_s
    assert columns["time_s"] == pytest.approx(4 + exposed_s)
    assert columns["plan_time_s"] == 4
    assert columns["waiting_energy_j"] == pytest.approx(3 * 540 + reduction_j)
    assert columns["energy_j"] == pytest.approx(540 + 2 * 390 + reduction_j)
    assert columns["saving_percent"] == pytest.approx(100 * 300 / (1620 + reduction_j))
    assert columns["gap"] == pytest.approx(0, abs=1e-6)
    assert columns["points"] == (0, 1)


def test_the_gap_of_a_straggler_is_to_a_mix_of_points():
    """Within 4.5 s the others take 395 J; half of either point would take 325 J and 45 J of waiting."""
    (fastest,) = plans(3.0)
    columns = straggler_columns(1.5, fastest, chain(), scale())
    assert columns["plan_time_s"] == 4
    assert columns["energy_j"] == pytest.approx(545 + 2 * 395)
    assert columns["gap"] == pytest.approx((545 + 2 * 395) / (545 + 2 * 370) - 1)


def capped(gpu_cap_w, own, of):
    return power_cap_columns(gpu_cap_w, [*own, *crossing_plan(gpu_cap_w, own, chain(), of)], of)


@pytest.mark.parametrize(
    ("gpu_cap_w", "time_s", "waiting_s"),
    [
        (200, 3, 0),
        (530 / 3, 3, 0),
        (176, 515 / 171, 2 / 171),
        (97.5, 4, 0),
        (97, 370 / 92, 2 / 92),
        (70, 5, 0),
        (69.9, 325 / 64.9, 0.5 / 64.9),
        (5, None, None),
    ],
)
def test_a_cap_is_kept_by_a_plan_within_it_or_by_waiting(gpu_cap_w, time_s, waiting_s):
    """Three GPUs draw 176.7, 97.5 and 70 W each, 5 W waiting; a plan keeps P in (E - 5 T) / (P - 5) s."""
    columns = capped(gpu_cap_w, plans(3.0, 4.0, 5.0), scale())
    assert columns["cap_w"] == pytest.approx(3 * gpu_cap_w)
    assert columns["time_s"] == (None if time_s is None else pytest.approx(time_s))
    assert columns["waiting_s"] == (None if time_s is None else pytest.approx(waiting_s))


@pytest.mark.parametrize(("gpu_cap_w", "time_s"), [(88, 4.5), (87, 5.5)])
def test_a_cap_holds_over_the_exposed_reduction_too(gpu_cap_w, time_s):
    """With half a second at 10 W each GPU draws 395 J in 4.5 s: 87.8 W; the grid has only the ends."""
    assert capped(gpu_cap_w, plans(3.0, 5.0), scale(exposed_s=0.5))["time_s"] == pytest.approx(time_s)


def test_the_plan_within_the_time_of_the_baseline_is_added():
    baseline = (dataclasses.replace(plans(4.0)[0], energy_j=600.0),)
    assert costs(with_iso_plans(plans(3.0, 5.0), chain(), baseline)) == [(3, 530), (4, 390), (5, 350)]


def test_a_costly_plan_at_the_time_of_the_baseline_is_replaced():
    (at_baseline,) = plans(4.0)
    costly = dataclasses.replace(at_baseline, energy_j=400.0)
    assert costs(with_iso_plans((costly,), chain(), (at_baseline,))) == [(4, 390)]


def test_the_plan_within_the_energy_of_the_baseline_is_added():
    fast, slow = plans(3.0, 5.0)
    baseline = (
        dataclasses.replace(fast, time_s=2.0, energy_j=900.0),
        dataclasses.replace(slow, time_s=6.0, energy_j=391.0),
    )
    assert costs(with_iso_plans((fast, slow), chain(), baseline)) == [(3, 530), (4, 390), (5, 350)]


def test_a_slow_plan_at_the_energy_of_the_baseline_is_replaced():
    fast, at_baseline = plans(3.0, 4.0)
    slow = dataclasses.replace(at_baseline, time_s=4.5)
    assert costs(with_iso_plans((fast, slow), chain(), (fast, at_baseline))) == [(3, 530), (4, 390)]


def test_nothing_is_added_for_a_baseline_out_of_reach():
    """Faster than 3 s and below 350 J there is no plan."""
    fast, slow = plans(3.0, 5.0)
    baseline = (
        dataclasses.replace(fast, time_s=2.0, energy_j=900.0),
        dataclasses.replace(slow, time_s=6.0, energy_j=349.0),
    )
    assert costs(with_iso_plans((fast, slow), chain(), baseline)) == [(3, 530), (5, 350)]
