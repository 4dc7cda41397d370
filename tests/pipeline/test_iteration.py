"""Composition of iterations: energy is that of GPUs that work or wait at every moment; lanes agree with single ones."""

import doctest

import numpy as np
import pytest
from helpers.pipelines import makespan_by_passes, one_f_one_b
from hypothesis import given
from hypothesis import strategies as st

from kareus.gpu_model.waiting import effective_energy_j
from kareus.pipeline import iteration
from kareus.pipeline.iteration import iteration_cost, iteration_costs
from kareus.pipeline.solver.dag import build_dag

STAGES, MICROBATCHES, TRANSFER_S, WAITING_W = 2, 3, 0.05, 85.0
INSTRUCTIONS = one_f_one_b(STAGES, MICROBATCHES)
DAG = build_dag(INSTRUCTIONS, [TRANSFER_S] * (STAGES - 1))
COSTS = st.lists(
    st.tuples(st.floats(0.01, 2.0), st.floats(50.0, 400.0)), min_size=len(DAG.order), max_size=len(DAG.order)
)
"""Seconds and watts of every instruction."""


def test_example_of_the_docstring_holds():
    assert doctest.testmod(iteration).failed == 0


@given(COSTS)
def test_a_gpu_that_does_not_work_waits_until_the_iteration_ends(costs):
    times_s = [time_s for time_s, _ in costs]
    effective_j = [effective_energy_j(time_s * power_w, time_s, WAITING_W) for time_s, power_w in costs]
    found = iteration_cost(DAG, times_s, effective_j, STAGES * WAITING_W)
    end_s = makespan_by_passes(INSTRUCTIONS, times_s, TRANSFER_S)
    energy_j = 0.0
    for stage in range(STAGES):
        own = [cost for cost, i in zip(costs, INSTRUCTIONS, strict=True) if i.key.stage == stage]
        energy_j += sum(time_s * power_w for time_s, power_w in own)
        energy_j += WAITING_W * (end_s - sum(time_s for time_s, _ in own))
    assert found.time_s == pytest.approx(end_s)
    assert found.energy_j == pytest.approx(energy_j)


@given(st.lists(COSTS, min_size=1, max_size=4))
def test_many_iterations_at_once_cost_what_each_costs_alone(lanes):
    costs = np.array(lanes).transpose(1, 0, 2)  # [instructions, lanes, 2]
    times_s, energies_j = iteration_costs(DAG, costs[..., 0], costs[..., 1], WAITING_W)
    for lane, own in enumerate(lanes):
        alone = iteration_cost(DAG, [s for s, _ in own], [j for _, j in own], WAITING_W)
        assert times_s[lane] == alone.time_s
        assert energies_j[lane] == pytest.approx(alone.energy_j, rel=1e-12)
