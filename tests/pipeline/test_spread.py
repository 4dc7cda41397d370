"""Standard errors of savings, against a pipeline of one stage whose plans can be worked out by hand."""

import math

import polars as pl
import pytest
from helpers.builders import CONFIG

from kareus.frontiers.tables import MICROBATCH
from kareus.pipeline.frontiers import iteration_rows
from kareus.pipeline.spread import Spread, savings_errors
from kareus.pipeline.tables import ITERATION
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

MICROBATCHES = 4
BLOCKING_W = 85.0


@pytest.fixture(scope="module")
def config():
    overrides = ["parallelism.pp=1", "microbatch_size=4", f"num_microbatches={MICROBATCHES}"]
    (workload,) = resolve_accepted([*overrides, "iteration.include_update=false"], CONFIG).values()
    return cut(workload, "pipeline")


def microbatch(time_error: float, energy_error: float) -> pl.DataFrame:
    """`sequential` at one clock, `kareus` at another: both take 1 s forward and 2 s backward, at 300 and 200 W."""
    rows = [
        {
            "method": method,
            "stage": 0,
            "chunk": 0,
            "direction": direction,
            "point": 0,
            "execution": execution,
            "frequency_mhz": 1410,
            "time_s": time_s,
            "energy_j": power_w * time_s,
            "dynamic_energy_j": (power_w - 60) * time_s,
            "effective_energy_j": (power_w - BLOCKING_W) * time_s,
            "is_thinned": False,
            "time_error_s": time_error * time_s,
            "energy_error_j": energy_error * power_w * time_s,
            "on_frontier": True,
            "choices": [],
        }
        for method, execution, power_w in (("sequential", "sequential", 300.0), ("kareus", "overlap", 200.0))
        for direction, time_s in (("forward", 1.0), ("backward", 2.0))
    ]
    return MICROBATCH.frame(rows)


def errors(config, time_error: float, energy_error: float):
    points = microbatch(time_error, energy_error)
    return savings_errors(Spread(config, points), ITERATION.frame(iteration_rows(config, points)))


def test_errors_of_points_propagate_as_those_of_a_ratio(config):
    """Forward and backward are independent; points are off by 1 % of time and 2 % of energy."""
    found = errors(config, 0.01, 0.02)["kareus"]
    shares = 1 / 3, 2 / 3
    of_each = math.hypot(*shares)
    assert found.time_reduction == pytest.approx(100 * math.sqrt(2) * 0.01 * of_each, rel=0.25)
    assert found.energy_reduction == pytest.approx(100 * (2 / 3) * math.sqrt(2) * 0.02 * of_each, rel=0.25)


def test_points_shared_with_the_baseline_give_no_error(config):
    found = errors(config, 0.01, 0.02)
    assert found["sequential"].time_reduction is None
    assert found["sequential+perseus"].time_reduction == pytest.approx(0.0, abs=1e-9)
    assert found["sequential+perseus"].energy_reduction == pytest.approx(0.0, abs=1e-9)


def test_the_same_tables_give_the_same_errors(config):
    assert errors(config, 0.003, 0.006) == errors(config, 0.003, 0.006)


def test_without_errors_nothing_is_said_of_noise(config):
    assert set(errors(config, 0.0, 0.0)["kareus"].__getstate__()) == {None}
