"""A profiler over shelves in memory measures what one over the durable store does."""

import pytest
from helpers.builders import a100, gemm, protocol, search, simulated

from kareus.graph.program import Program, Step
from kareus.profile.bench import Bench
from kareus.profile.measure import memory_profiler
from kareus.search.config import SearchSlice
from kareus.testbed.factory import open_testbed

PROGRAM = Program(name="linear", steps=(Step(operators=(gemm("linear", 16384, 4096, 3072),)),))


@pytest.fixture
def testbed():
    return open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0)


def test_what_was_measured_is_kept_in_memory(testbed):
    profiler = memory_profiler(testbed, protocol())
    first = profiler.measure(PROGRAM, 1200), profiler.measure_time(PROGRAM, 1200)
    assert (profiler.measure(PROGRAM, 1200), profiler.measure_time(PROGRAM, 1200)) == first
    assert profiler.tally == "1 measured, 1 from the store"
    assert profiler.time_tally == "1 taken, 1 from the store"


def test_memory_and_store_hold_the_same(testbed, tmp_path):
    config = SearchSlice(gpu=a100(), testbed=simulated(), protocol=protocol(), search=search(), seed=0)
    memory = memory_profiler(testbed, protocol())
    with Bench(config, testbed).profiler(tmp_path, "linear", PROGRAM) as durable:
        assert memory.measure(PROGRAM, 1200, repeat=2) == durable.measure(PROGRAM, 1200, repeat=2)
        assert memory.measure_time(PROGRAM, 900) == durable.measure_time(PROGRAM, 900)
