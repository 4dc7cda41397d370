"""Composition of iterations: energy is that of GPUs that work or wait at every moment; lanes agree with single ones."""

import doctest
import itertools

import numpy as np
import pytest
from helpers.pipelines import makespan_by_passes, one_f_one_b
from hypothesis import given
from hypothesis import strategies as st

from kareus.gpu_model.waiting import effective_energy_j
from kareus.pipeline import iteration
from kareus.pipeline.instructions import instructions_by_stage
from kareus.pipeline.iteration import clocked_iteration_cost, iteration_cost, iteration_costs
from kareus.pipeline.solver.dag import build_dag, earliest_starts

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


@given(COSTS, st.lists(st.floats(0.0, 60.0), min_size=len(DAG.order), max_size=len(DAG.order)))
def test_a_gpu_waits_at_the_clock_of_its_next_instruction(costs, above_w):
    """Walked moment by moment: between events a stage runs one instruction, or waits for its next or after its last."""
    times_s = [time_s for time_s, _ in costs]
    effective_j = [effective_energy_j(time_s * power_w, time_s, WAITING_W) for time_s, power_w in costs]
    lanes = instructions_by_stage(INSTRUCTIONS)
    found = clocked_iteration_cost(DAG, times_s, effective_j, STAGES * WAITING_W, lanes, above_w)
    starts_s = earliest_starts(DAG, times_s)
    ends_s = (start_s + time_s for start_s, time_s in zip(starts_s, times_s, strict=True))
    energy_j, events_s = 0.0, sorted({0.0, found.time_s, *starts_s, *ends_s})
    for from_s, to_s in itertools.pairwise(events_s):
        middle_s = (from_s + to_s) / 2
        for lane in lanes:
            running = [n for n in lane if starts_s[n] <= middle_s < starts_s[n] + times_s[n]]
            later = [n for n in lane if starts_s[n] > middle_s]
            waiting_w = WAITING_W + above_w[later[0] if later else lane[-1]]
            energy_j += (costs[running[0]][1] if running else waiting_w) * (to_s - from_s)
    assert found.energy_j == pytest.approx(energy_j)
    alike = clocked_iteration_cost(DAG, times_s, effective_j, STAGES * WAITING_W, lanes, [0.0] * len(above_w))
    assert alike == iteration_cost(DAG, times_s, effective_j, STAGES * WAITING_W)


@given(st.lists(COSTS, min_size=1, max_size=4))
def test_many_iterations_at_once_cost_what_each_costs_alone(lanes):
    costs = np.array(lanes).transpose(1, 0, 2)  # [instructions, lanes, 2]
    times_s, energies_j = iteration_costs(DAG, costs[..., 0], costs[..., 1], WAITING_W)
    for lane, own in enumerate(lanes):
        alone = iteration_cost(DAG, [s for s, _ in own], [j for _, j in own], WAITING_W)
        assert times_s[lane] == alone.time_s
        assert energies_j[lane] == pytest.approx(alone.energy_j, rel=1e-12)
