"""The law of overlap: whom a collective slows, and by what."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import a100, all_reduce, gemm, memory

from kareus.gpu_model import laws
from kareus.gpu_model.overlap import step_phases

CLOCK = np.asarray(1410.0)
REDUCE = all_reduce(2**30)


def with_coefficients(**values):
    gpu = a100()
    return dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, **values))


def phases(operator, **values):
    """Time of what both do at once, and of all, with the collective from the start."""
    found = step_phases(with_coefficients(**values), [operator], REDUCE, CLOCK, 12, 0)
    times_s = [float(phase.time_s) for phase in found]
    return times_s[0], sum(times_s)


def test_a_crowd_slows_the_operator_not_the_collective():
    """The long collective outlasts the operator, which ends later by the share of SMs that the collective occupies."""
    operator = gemm("g", 4096, 4096, 4096)
    calm = {"contention": 0.0, "hbm_bytes_per_bus_byte": 0.0, "collective_latency_s": 0.0}
    beside_s, all_s = phases(operator, **calm, crowding=0.0)
    crowded_s, crowded_all_s = phases(operator, **calm, crowding=2.0)
    assert crowded_s / beside_s == pytest.approx(1 + 2.0 * 12 / 108)
    assert crowded_all_s == pytest.approx(all_s)


def test_contention_slows_both_by_the_product_of_demands():
    operator = memory("m", 2**26)
    gpu = with_coefficients(crowding=0.0)
    collective_s = float(laws.collective_time_s(gpu, REDUCE, CLOCK, np.asarray(12.0)))
    _, alone = phases(operator, contention=0.0, crowding=0.0)
    _, rough = phases(operator, contention=1.0, crowding=0.0)
    assert alone == pytest.approx(collective_s, rel=0.05)
    assert rough > alone
