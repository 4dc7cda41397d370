"""The paper's metrics on plans whose reductions can be worked out by hand."""

import polars as pl
import pytest

from kareus.errors import ArtifactError
from kareus.pipeline.compare import compare_methods, with_reductions


def iteration(*plans):
    """A quarter of the energy is static."""
    columns = ["method", "time_s", "energy_j", "static_energy_j", "dynamic_energy_j", "gap"]
    rows = [(*plan, 0.25 * plan[-1], 0.75 * plan[-1], 0.0) for plan in plans]
    return pl.DataFrame(rows, schema=columns, orient="row")


PLANS = iteration(
    ("sequential", 10.0, 1000.0),
    ("sequential+perseus", 10.0, 900.0),
    ("sequential+perseus", 12.0, 800.0),
    ("kareus", 8.0, 850.0),
    ("kareus", 9.0, 760.0),
    ("kareus", 10.0, 720.0),
    ("kareus", 11.0, 700.0),
)


def compared(method, plans=PLANS):
    (row,) = [row for row in compare_methods(plans) if row.method == method]
    return row


def test_max_throughput_compares_fastest_plans_with_sequential():
    kareus = compared("kareus")
    assert (kareus.time_s, kareus.energy_j, kareus.static_energy_j, kareus.dynamic_energy_j) == (8, 850, 212.5, 637.5)
    assert kareus.time_reduction_percent == pytest.approx(20.0)
    assert kareus.energy_reduction_percent == pytest.approx(15.0)
    assert compared("sequential+perseus").time_reduction_percent == 0.0
    assert compared("sequential+perseus").energy_reduction_percent == pytest.approx(10.0)


def test_a_slower_method_has_a_negative_reduction():
    slow = compared("nanobatching", PLANS.vstack(iteration(("nanobatching", 11.0, 1050.0))))
    assert (slow.time_reduction_percent, slow.energy_reduction_percent) == pytest.approx((-10, -5))


def test_iso_time_is_least_energy_within_baseline_least_time():
    assert compared("kareus").iso_time_energy_reduction_percent == pytest.approx(100 * (1 - 720 / 900))
    assert compared("sequential").iso_time_energy_reduction_percent == pytest.approx(100 * (1 - 1000 / 900))


def test_iso_energy_is_least_time_within_baseline_least_energy():
    assert compared("kareus").iso_energy_time_reduction_percent == pytest.approx(100 * (1 - 9 / 12))


def test_a_method_that_keeps_to_no_budget_has_no_figure():
    slow = compared("nanobatching", PLANS.vstack(iteration(("nanobatching", 11.0, 950.0))))
    assert slow.iso_time_energy_reduction_percent is None
    assert slow.iso_energy_time_reduction_percent is None


def test_a_budget_forgives_a_rounding_error():
    late = compared("nanobatching", PLANS.vstack(iteration(("nanobatching", 10.0 + 1e-9, 810.0))))
    assert late.iso_time_energy_reduction_percent == pytest.approx(10.0)


def test_a_baseline_is_not_compared_with_itself():
    assert compared("sequential").time_reduction_percent is None
    assert compared("sequential").energy_reduction_percent is None
    assert compared("sequential+perseus").iso_time_energy_reduction_percent is None
    assert compared("sequential+perseus").iso_energy_time_reduction_percent is None


def test_every_plan_is_compared_with_the_fastest_of_sequential():
    saved = with_reductions(PLANS, PLANS)["time_reduction_percent"].to_list()
    assert saved == pytest.approx([0, 0, -20, 20, 10, 0, -10])


def test_every_plan_saves_energy_of_the_fastest_of_sequential():
    saved = with_reductions(PLANS, PLANS)["energy_reduction_percent"].to_list()
    assert saved == pytest.approx([0, 10, 20, 15, 24, 28, 30])


def test_an_ablation_takes_more_than_kareus():
    """Against 8 s and 850 J."""
    ablated = compared("nanobatching", PLANS.vstack(iteration(("nanobatching", 10.0, 952.0))))
    assert ablated.time_increase_percent == pytest.approx(25)
    assert ablated.energy_increase_percent == pytest.approx(12)


def test_kareus_has_no_increase_over_itself():
    assert (compared("kareus").time_increase_percent, compared("kareus").energy_increase_percent) == (None, None)


def test_without_kareus_nothing_has_an_increase():
    without = compared("sequential", PLANS.filter(pl.col("method") != "kareus"))
    assert (without.time_increase_percent, without.energy_increase_percent) == (None, None)


@pytest.mark.parametrize("excess", [1e-4, 1e-6])
def test_a_budget_forgives_no_more_than_a_rounding_error(excess):
    late = compared("nanobatching", PLANS.vstack(iteration(("nanobatching", 10.0 * (1 + excess), 850.0))))
    assert late.iso_time_energy_reduction_percent is None


TIED = iteration(
    ("sequential", 10.0, 1100.0),
    ("sequential", 10.0, 1000.0),
    ("sequential+perseus", 10.0, 950.0),
    ("sequential+perseus", 10.0, 900.0),
    ("sequential+perseus", 12.0, 800.0),
    ("kareus", 8.0, 900.0),
    ("kareus", 8.0, 810.0),
)


def test_of_equally_fast_plans_the_cheapest_is_compared():
    kareus = compared("kareus", TIED)
    assert kareus.energy_j == 810
    assert kareus.energy_reduction_percent == pytest.approx(19)
    assert kareus.iso_time_energy_reduction_percent == pytest.approx(10)


def test_the_order_of_rows_does_not_matter():
    shuffled = PLANS.sample(fraction=1.0, shuffle=True, seed=1)
    assert sorted(map(repr, compare_methods(shuffled))) == sorted(map(repr, compare_methods(PLANS)))


@pytest.mark.parametrize("baseline", ["sequential", "sequential+perseus"])
def test_a_table_without_a_baseline_is_refused(baseline):
    with pytest.raises(ArtifactError, match=rf"no plan of '{baseline.replace('+', '.')}' to compare with"):
        compare_methods(PLANS.filter(pl.col("method") != baseline))
