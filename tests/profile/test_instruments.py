"""Measurements on instruments whose every reading can be worked out by hand."""

import pytest
from helpers.builders import a100, gemm, protocol, search, simulated

from kareus.errors import DeviceError
from kareus.graph.records import Program, Step
from kareus.profile.bench import Bench
from kareus.profile.measure import measure_once, measure_time_once, measured_row
from kareus.search.config import SearchSlice
from kareus.testbed.protocol import ClockReport, open_testbed

IDLE_W, LOAD_W = 60.0, 300.0
COLD_S, WARM_S = 0.4, 0.3
"""Time of the first execution, and of every later one."""
PROTOCOL = protocol(window_s=5.0, cooldown_s=4.0, warmup_s=1.0, settle_s=0.25)


class Instruments:
    """A session with a counter that is `age_s` old, and instruments that take `reading_s` to read."""

    def __init__(self, age_s=0.0, reading_s=0.0, reports=()):
        self._age_s, self._reading_s = age_s, reading_s
        self._now_s, self._history = 1000.0, [(1000.0, 0.0)]
        self.executed, self.rested_s = [], []
        self._reports = list(reports)

    def _pass(self, duration_s, power_w):
        self._now_s += duration_s
        self._history.append((self._now_s, self._history[-1][1] + power_w * duration_s))

    def set_clock(self, frequency_mhz):
        self._pass(0.125, IDLE_W)

    def execute(self, repetitions):
        cold_s = 0.0 if self.executed else COLD_S - WARM_S
        self.executed.append(repetitions)
        self._pass(repetitions * WARM_S + cold_s, LOAD_W)

    def rest(self, duration_s):
        self.rested_s.append(duration_s)
        self._pass(duration_s, IDLE_W)

    def now_s(self):
        return self._now_s

    def energy_j(self):
        self._pass(self._reading_s, IDLE_W)
        seen_s = self._now_s - self._age_s
        (from_s, from_j), (to_s, to_j) = next(
            pair
            for pair in reversed(list(zip(self._history, self._history[1:], strict=False)))
            if pair[0][0] <= seen_s and pair[0][0] < pair[1][0]
        )
        return from_j + (to_j - from_j) * (seen_s - from_s) / (to_s - from_s)

    def temperature_c(self):
        self._pass(self._reading_s, IDLE_W)
        return 30.0 + len(self.executed)

    def clock_report(self):
        self._pass(self._reading_s, IDLE_W)
        if self._reports:
            return self._reports.pop(0)
        return ClockReport(mean_mhz=1317.5, throttle_reasons=("power-limit",))


@pytest.mark.parametrize("age_s", [0.0, 0.125, 0.25])
def test_a_counter_as_old_as_the_settling_misses_nothing(age_s):
    row = measure_once(Instruments(age_s=age_s), 1410, PROTOCOL)
    assert row["energy_j"] == pytest.approx(LOAD_W * WARM_S, rel=1e-9)


def test_slow_readings_are_not_part_of_the_time():
    row = measure_once(Instruments(reading_s=0.05), 1410, PROTOCOL)
    assert row["time_s"] == pytest.approx(WARM_S, rel=1e-9)
    assert row["window_s"] == pytest.approx(17 * WARM_S, rel=1e-9)


def test_the_warm_up_and_the_window_are_filled():
    """A warm-up of 1 s takes 3 executions of the 0.4 s of the first; a window of 5 s takes 17 of 0.3 s."""
    session = Instruments()
    assert measure_once(session, 1410, PROTOCOL)["repetitions"] == 17
    assert session.executed == [1, 3, 17]


def test_a_measurement_takes_as_long_as_its_parts():
    row = measure_once(Instruments(), 1410, PROTOCOL)
    # clock; first execution; warm-up; settling; cool-down; window; settling
    assert row["duration_s"] == pytest.approx(0.125 + 0.4 + 3 * 0.3 + 0.25 + 4.0 + 17 * 0.3 + 0.25)


def test_a_time_alone_takes_as_long_as_its_parts():
    row = measure_time_once(Instruments(), 1410, PROTOCOL)
    assert row["duration_s"] == pytest.approx(0.125 + 0.4 + 3 * 0.3)


def test_a_time_alone_leaves_out_the_cold_execution():
    assert measure_time_once(Instruments(), 1410, PROTOCOL)["time_s"] == pytest.approx(WARM_S, rel=1e-9)


@pytest.mark.parametrize("take", [measure_once, measure_time_once])
def test_the_clock_is_what_the_session_reports(take):
    row = take(Instruments(), 1410, PROTOCOL)
    assert (row["clock_mean_mhz"], row["throttle_reasons"]) == (1317.5, ["power-limit"])


HELD = ClockReport(mean_mhz=1410, throttle_reasons=())
HOT = ClockReport(mean_mhz=700, throttle_reasons=("power-limit", "thermal-limit"))


@pytest.mark.parametrize("take", [measure_once, measure_time_once])
def test_a_clock_lost_to_heat_is_measured_again_after_a_longer_rest(take):
    session = Instruments(reports=[HOT, HOT, HELD])
    assert measured_row(take, session, 1410, PROTOCOL)["clock_mean_mhz"] == 1410
    longer = [s for s in session.rested_s if s > PROTOCOL.cooldown_s]
    assert len(longer) == 2
    assert longer == sorted(longer)


@pytest.mark.parametrize("take", [measure_once, measure_time_once])
def test_a_clock_that_stays_lost_is_refused_in_one_line(take):
    session = Instruments(reports=[HOT] * 9)
    with pytest.raises(DeviceError) as refused:
        measured_row(take, session, 1410, PROTOCOL)
    assert str(refused.value) == (
        "asked for 1410 MHz and measured at 700 MHz, 3 times (power-limit, thermal-limit); see to the cooling and "
        "power of this machine and to who else sets its clocks (`nvidia-smi -q -d PERFORMANCE`), then run this again: "
        "what was measured before is kept."
    )


def test_the_power_limit_alone_is_measured_once():
    session = Instruments()
    assert measured_row(measure_once, session, 1410, PROTOCOL)["clock_mean_mhz"] == 1317.5
    assert session.executed == [1, 3, 17]


def test_a_measurement_has_the_temperatures_around_it():
    row = measure_once(Instruments(), 1410, PROTOCOL)
    assert (row["temperature_before_c"], row["temperature_after_c"]) == (32.0, 33.0)


def test_programs_that_differ_in_blocks_are_kept_apart(tmp_path):
    """A program's blocks decide how a testbed repeats its steps, and so what is measured."""
    steps = tuple(Step(operators=(gemm(name, 16384, 4096, 3072),)) for name in ("one", "two"))
    programs = [Program(name="same", steps=steps, blocks=blocks) for blocks in (None, (0, 1), (0, 2))]
    config = SearchSlice(gpu=a100(), testbed=simulated(), protocol=protocol(), search=search(), seed=0)
    bench = Bench(config, open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0))
    with bench.profiler(tmp_path, "same", "x") as profiler:
        for program in programs:
            profiler.measure(program, 1200)
            profiler.measure_time(program, 1200)
        assert profiler.tally == "3 measured, 0 from the store"
        assert profiler.time_tally == "3 taken, 0 from the store"
