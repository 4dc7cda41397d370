import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.builders import CONFIG, a100, gemm, protocol, search, simulated

from kareus.artifacts.provenance import TestbedIdentity
from kareus.artifacts.store import RowShelf
from kareus.artifacts.tables import read_table
from kareus.gpu_model.gpu import FrequencyRange
from kareus.gpu_model.model import run_program
from kareus.graph.records import Program, Step
from kareus.profile.bench import Bench
from kareus.profile.measure import Profiler, measure_once, measure_time_once
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.search.config import SearchSlice
from kareus.testbed.protocol import open_testbed
from kareus.workload.resolve import resolve_accepted

LINEAR = gemm("linear", 16384, 4096, 3072)
PROGRAM = Program(name="linear", steps=(Step(operators=(LINEAR,)),))


class CountingTestbed:
    """The simulated testbed, counting the sessions it opens."""

    def __init__(self, seed=0, **changes):
        self._inner = open_testbed(simulated(**changes), a100(), protocol().predecessor_power_w, seed)
        self.sessions = 0

    @property
    def identity(self):
        return self._inner.identity

    def session(self, program, measurement):
        self.sessions += 1
        return self._inner.session(program, measurement)


def shelf(folder, testbed, content="x", seed=0, **changes):
    config = SearchSlice(gpu=a100(**changes), testbed=simulated(), protocol=protocol(), search=search(), seed=seed)
    return Bench(config, testbed).shelf(folder, "linear", content)


def over(testbed, store):
    return Profiler(testbed, protocol(), store, RowShelf(LOOKS))


def test_a_measurement_is_near_the_truth_and_documented(tmp_path):
    testbed = CountingTestbed()
    with shelf(tmp_path, testbed) as store:
        measured = over(testbed, store).measure(PROGRAM, 1200)
        (row,) = store._rows.values()
    truth = run_program(a100(), PROGRAM, 1200)
    assert measured.time_s == pytest.approx(truth.time_s, rel=0.02)
    assert measured.energy_j == pytest.approx(truth.energy_j, rel=0.08)
    assert row["window_s"] >= protocol().window_s * 0.98
    assert row["repetitions"] == pytest.approx(5 / truth.time_s, rel=0.05)
    assert row["temperature_after_c"] > row["temperature_before_c"] > 0
    assert row["clock_mean_mhz"] == pytest.approx(1200, rel=1e-12)
    assert row["throttle_reasons"] == []
    assert 10 < row["duration_s"] < 15  # paper, section 5.3: about 13 s a candidate
    assert set(row) == set(MEASUREMENTS.polars)


def test_what_the_store_has_is_not_measured_again(tmp_path):
    testbed = CountingTestbed()
    results = []
    for _ in range(2):
        with shelf(tmp_path, testbed) as store:
            profiler = over(testbed, store)
            results.append([profiler.measure(PROGRAM, f) for f in (900, 1410, 900)])
    assert testbed.sessions == 2
    assert results[0] == results[1]
    assert results[0][0] == results[0][2]


def test_a_repeat_is_another_measurement_of_the_same(tmp_path):
    testbed = CountingTestbed()
    with shelf(tmp_path, testbed) as store:
        profiler = over(testbed, store)
        first, second = profiler.measure(PROGRAM, 1410), profiler.measure(PROGRAM, 1410, repeat=1)
    assert first != second
    assert first.time_s == pytest.approx(second.time_s, rel=0.03)


def test_the_order_of_measuring_changes_nothing(tmp_path):
    results = []
    for name, order in (("one", [900, 1200, 1410]), ("two", [1410, 900, 1200])):
        testbed = CountingTestbed()
        with shelf(tmp_path / name, testbed) as store:
            profiler = over(testbed, store)
            results.append({f: profiler.measure(PROGRAM, f) for f in order})
    assert results[0] == results[1]


def test_shelves_differ_by_whatever_decides_a_measurement(tmp_path):
    testbed = CountingTestbed()
    wider = FrequencyRange(minimum_mhz=600, maximum_mhz=1410, stride_mhz=30)

    def place(**changes):
        return shelf(tmp_path, testbed, **changes).folder

    assert place() == place() == place(search_frequencies=wider)
    assert len({place(), place(content="y"), place(seed=1), place(sm_count=100)}) == 4


@pytest.mark.parametrize(("kind", "places"), [("cuda", 1), ("simulated", 2)])
def test_only_simulated_air_decides_a_measurement(tmp_path, kind, places):
    """That around real GPUs is what it is, whether the configuration says it or not."""
    (workload,) = resolve_accepted([f"testbed={kind}"], CONFIG).values()
    identity = TestbedIdentity(kind=kind, gpu="A100-SXM4-40GB", detail="")
    found = set()
    for ambient_c in (25.0, 30.0):
        config = dataclasses.replace(workload, gpu=dataclasses.replace(workload.gpu, ambient_c=ambient_c))
        found.add(Bench(config, SimpleNamespace(identity=identity)).shelf(tmp_path, "x", "y").folder)
    assert len(found) == places


@pytest.mark.parametrize("seed", range(8))
def test_the_age_of_the_counter_does_not_bias_the_energy(seed):
    """Without other noise and at the reference temperature: idle power fills in what a stale counter misses."""
    calm = a100(coefficients=dataclasses.replace(a100().coefficients, leakage_w_per_c=0.0))
    testbed = open_testbed(simulated(time_noise=0.0, power_noise=0.0), calm, protocol().predecessor_power_w, seed)
    with testbed.session(PROGRAM, "phase") as session:
        row = measure_once(session, 1200, protocol())
    assert row["energy_j"] == pytest.approx(float(run_program(calm, PROGRAM, 1200).energy_j), rel=0.003)


@pytest.mark.parametrize("clock_mhz", [900, 1200, 1410])
@pytest.mark.parametrize("power_limit_w", [400, 200], ids=["free", "throttled"])
def test_a_time_alone_is_that_of_a_whole_measurement(clock_mhz, power_limit_w):
    """On the simulated testbed, whose power limit acts at once: no bias, whether the limit holds the clock or not."""
    gpu = a100(power_limit_w=power_limit_w)
    truth = run_program(gpu, PROGRAM, clock_mhz)
    with open_testbed(simulated(time_noise=0.0), gpu, protocol().predecessor_power_w, 0).session(
        PROGRAM, "look"
    ) as session:
        row = measure_time_once(session, clock_mhz, protocol())
    assert row["time_s"] == pytest.approx(float(truth.time_s), rel=1e-9)
    assert row["clock_mean_mhz"] == pytest.approx(float(truth.mean_clock_mhz))
    assert (row["throttle_reasons"] == ["power-limit"]) == bool(truth.power_limited)


def test_times_alone_are_as_noisy_as_measured_ones():
    testbed = open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0)
    truth = float(run_program(a100(), PROGRAM, 1200).time_s)
    errors = []
    for number in range(200):
        with testbed.session(PROGRAM, str(number)) as session:
            errors.append(measure_time_once(session, 1200, protocol())["time_s"] / truth - 1)
    assert abs(np.mean(errors)) < 4 * simulated().time_noise / len(errors) ** 0.5
    assert np.std(errors) == pytest.approx(simulated().time_noise, rel=0.3)


def test_a_time_alone_costs_a_tenth_and_is_kept_apart(tmp_path):
    testbed = CountingTestbed()
    config = SearchSlice(gpu=a100(), testbed=simulated(), protocol=protocol(), search=search(), seed=0)
    bench = Bench(config, testbed)
    with bench.profiler(tmp_path, "linear", "x") as profiler:
        measured, timed = profiler.measure(PROGRAM, 1200), profiler.measure_time(PROGRAM, 1200)
    assert timed.time_s == pytest.approx(measured.time_s, rel=0.02)
    assert timed.time_s != measured.time_s
    assert timed.duration_s < measured.duration_s / 8
    with bench.profiler(tmp_path, "linear", "x") as profiler:
        assert profiler.measure_time(PROGRAM, 1200) == timed
        assert profiler.time_tally == "0 taken, 1 from the store"
    assert testbed.sessions == 2
    (kept,) = tmp_path.rglob("looks.parquet")
    assert len(read_table(kept, LOOKS)) == 1


def test_the_cooldown_brings_a_gpu_below_32_degrees():
    """Paper, section 5.3."""
    with open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0).session(PROGRAM, "hot") as session:
        assert measure_once(session, 1410, protocol())["temperature_before_c"] < 32


def energy_with(**changes):
    calm = simulated(time_noise=0.0, power_noise=0.0)
    with open_testbed(calm, a100(), protocol().predecessor_power_w, 0).session(PROGRAM, "bias") as session:
        return measure_once(session, 1410, protocol(**changes))["energy_j"]


def test_too_short_a_window_reads_less_energy():
    """Paper, section 6.7."""
    windows = [energy_with(window_s=window_s) for window_s in (0.5, 1, 2, 5, 10)]
    assert windows == sorted(windows)
    assert windows[-1] / windows[0] > 1.02


def test_too_short_a_cooldown_reads_more_energy():
    """Paper, section 6.7."""
    cooldowns = [energy_with(cooldown_s=cooldown_s) for cooldown_s in (0, 1, 2, 5, 10)]
    assert cooldowns == sorted(cooldowns, reverse=True)
    assert cooldowns[0] / cooldowns[-1] > 1.02
