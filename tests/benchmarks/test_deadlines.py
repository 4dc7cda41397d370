"""Deadlines of the comparison with lowtime: as many as were promised, wherever its plans lie."""

import numpy as np
import pytest

from iteration.compare import evenly_spaced


def test_even_times_are_taken_evenly():
    assert evenly_spaced(np.linspace(1.0, 2.0, 101), 5).tolist() == [0, 25, 50, 75, 100]


@pytest.mark.parametrize("gap", [0.1, 10.0])
def test_a_gap_between_times_costs_no_deadline(gap):
    times_s = np.concatenate((np.linspace(1.0, 2.0, 50), np.linspace(2.0 + gap, 3.0 + gap, 50)))
    chosen = evenly_spaced(times_s, 20)
    assert 20 <= len(np.unique(chosen)) <= 25
    assert {0, 99} <= set(chosen.tolist())


def test_few_times_are_all_taken():
    assert evenly_spaced(np.array([1.0, 2.0, 9.0]), 20).tolist() == [0, 1, 2]
