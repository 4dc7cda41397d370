"""A profiler over shelves in memory measures what one over the durable store does."""

import pytest
from helpers.builders import a100, gemm, protocol, search, simulated

from kareus.artifacts.store import RowShelf
from kareus.errors import ArtifactError
from kareus.graph.records import Program, Step
from kareus.profile.bench import Bench
from kareus.profile.measure import Profiler, memory_profiler
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.search.config import SearchSlice
from kareus.testbed.protocol import open_testbed

PROGRAM = Program(name="linear", steps=(Step(operators=(gemm("linear", 16384, 4096, 3072),)),))


@pytest.fixture
def testbed():
    return open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0)


def test_what_was_measured_is_kept_in_memory(testbed):
    profiler = memory_profiler(testbed, protocol())
    first = profiler.measure(PROGRAM, 1200), profiler.measure_time(PROGRAM, 1200)
    assert (profiler.measure(PROGRAM, 1200), profiler.measure_time(PROGRAM, 1200)) == first
    assert profiler.tally == "1 measured, 1 from the store"
    assert profiler.time_tally.startswith("1 taken, 1 from")


def test_memory_and_store_hold_the_same(testbed, tmp_path):
    config = SearchSlice(gpu=a100(), testbed=simulated(), protocol=protocol(), search=search(), seed=0)
    memory = memory_profiler(testbed, protocol())
    with Bench(config, testbed).profiler(tmp_path, "linear", PROGRAM) as durable:
        assert memory.measure(PROGRAM, 1200, repeat=2) == durable.measure(PROGRAM, 1200, repeat=2)
        assert memory.measure_time(PROGRAM, 900) == durable.measure_time(PROGRAM, 900)


BAD = {"energy_j": [-20018.0, 0.0, float("nan")], "time_s": [0.0], "repetitions": [1.5], "throttle_reasons": [None]}


@pytest.mark.parametrize(("column", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_memory_refuses_what_the_store_refuses(testbed, tmp_path, column, value):
    """As of a counter that restarted within a window."""
    good = RowShelf(MEASUREMENTS)
    memory_over(testbed, good).measure(PROGRAM, 1200)
    (row,) = good.rows
    config = SearchSlice(gpu=a100(), testbed=simulated(), protocol=protocol(), search=search(), seed=0)
    refusals = []
    with Bench(config, testbed).shelf(tmp_path, "linear", PROGRAM) as durable:
        for shelf in (RowShelf(MEASUREMENTS), durable):
            with pytest.raises(ArtifactError) as refused:
                shelf.append(row | {column: value})
            refusals.append(str(refused.value).split(": ", 1)[1])
            assert shelf.rows == []
    assert len(set(refusals)) == 1


def test_a_stored_row_of_another_clock_is_measured_anew(testbed):
    """As former versions stored them."""
    shelf = RowShelf(MEASUREMENTS)
    first = memory_over(testbed, shelf).measure(PROGRAM, 1200)
    (row,) = shelf.rows
    shelf.append(row | {"clock_mean_mhz": 700.0, "throttle_reasons": ["thermal-limit"], "time_s": 1.0})
    profiler = memory_over(testbed, shelf)
    assert profiler.measure(PROGRAM, 1200) == first
    assert profiler.tally.startswith("1 measured, 0 from")
    assert shelf.rows == [row]


def memory_over(testbed, shelf):
    return Profiler(testbed, protocol(), shelf, RowShelf(LOOKS))
