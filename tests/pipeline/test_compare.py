"""The paper's metrics on plans whose reductions can be worked out by hand."""

import polars as pl
import pytest

from kareus.errors import ArtifactError
from kareus.pipeline.compare import frontier_improvement, max_throughput


def iteration(*plans):
    return pl.DataFrame(plans, schema=["method", "time_s", "energy_j"], orient="row")


PLANS = iteration(
    ("sequential", 10.0, 1000.0),
    ("sequential+perseus", 10.0, 900.0),
    ("sequential+perseus", 12.0, 800.0),
    ("kareus", 8.0, 850.0),
    ("kareus", 9.0, 760.0),
    ("kareus", 10.0, 720.0),
    ("kareus", 11.0, 700.0),
)


def test_max_throughput_compares_the_fastest_plans_with_sequential():
    perseus, kareus = max_throughput(PLANS)
    assert (perseus.method, perseus.time_reduction_percent) == ("sequential+perseus", 0.0)
    assert perseus.energy_reduction_percent == pytest.approx(10.0)
    assert kareus.time_reduction_percent == pytest.approx(20.0)
    assert kareus.energy_reduction_percent == pytest.approx(15.0)


def test_iso_time_is_the_least_energy_within_the_least_time_of_the_baseline():
    kareus = frontier_improvement(PLANS)[-1]
    assert kareus.iso_time_energy_reduction_percent == pytest.approx(100 * (1 - 720 / 900))


def test_iso_energy_is_the_least_time_within_the_least_energy_of_the_baseline():
    kareus = frontier_improvement(PLANS)[-1]
    assert kareus.iso_energy_time_reduction_percent == pytest.approx(100 * (1 - 9 / 12))


def test_a_method_that_meets_no_budget_has_no_figure():
    slow = PLANS.vstack(iteration(("nanobatching", 11.0, 950.0)))
    (record,) = [r for r in frontier_improvement(slow) if r.method == "nanobatching"]
    assert record.iso_time_energy_reduction_percent is None
    assert record.iso_energy_time_reduction_percent is None


def test_a_table_without_the_baseline_is_refused():
    with pytest.raises(ArtifactError, match="no plan of 'sequential' to compare with"):
        max_throughput(PLANS.filter(pl.col("method") != "sequential"))
