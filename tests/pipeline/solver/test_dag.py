import itertools

import pytest
from helpers.pipelines import makespan_by_passes, one_f_one_b
from hypothesis import given
from hypothesis import strategies as st

from kareus.pipeline.solver.dag import build_dag, earliest_starts, makespan


def test_two_stages_by_hand():
    # Stage 0: F0 0-1, F1 1-2, B0 waits for stage 1. Stage 1: F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5.
    instructions = one_f_one_b(2, 2)
    times_s = [2.0 if i.key.direction == "backward" else 1.0 for i in instructions]
    dag = build_dag(instructions, [0.5])
    assert earliest_starts(dag, times_s) == [0, 1, 5, 8, 1.5, 2.5, 4.5, 5.5]
    assert makespan(dag, times_s) == 10


drawn_times = st.lists(st.integers(1, 50), min_size=24, max_size=24)


@given(st.integers(1, 4), st.integers(1, 3), drawn_times, st.integers(0, 5))
def test_the_makespan_is_what_relaxing_every_edge_gives(stages, microbatches, times, transfer):
    instructions = one_f_one_b(stages, microbatches)
    times_s = [float(t) for t in times[: len(instructions)]]
    dag = build_dag(instructions, [float(transfer)] * (stages - 1))
    assert makespan(dag, times_s) == makespan_by_passes(instructions, times_s, transfer)


def test_each_boundary_has_its_own_transfer_in_both_directions():
    instructions = one_f_one_b(3, 1)
    for boundaries in itertools.permutations([0.25, 4.0]):
        assert makespan(build_dag(instructions, boundaries), [1.0] * 6) == pytest.approx(6 + 2 * sum(boundaries))
    starts = earliest_starts(build_dag(instructions, [0.25, 4.0]), [1.0] * 6)
    assert starts == [0, 13.5, 1.25, 12.25, 6.25, 7.25]


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 3), (4, 6)])
def test_waves_hold_every_instruction_after_what_it_waits_for(stages, microbatches):
    dag = build_dag(one_f_one_b(stages, microbatches), [0.5] * (stages - 1))
    wave_of = {int(i): number for number, wave in enumerate(dag.waves) for i in wave.members}
    assert sorted(wave_of) == list(range(2 * stages * microbatches))
    for i, edges in enumerate(dag.predecessors):
        assert wave_of[i] == max((wave_of[before] + 1 for before, _ in edges), default=0)
    for wave in dag.waves:
        for row, i in enumerate(wave.members):
            waited = [(int(before[row]), float(transfer_s[row, 0])) for before, transfer_s in wave.before]
            assert tuple(edge for edge in waited if edge[0] >= 0) == dag.predecessors[i]
