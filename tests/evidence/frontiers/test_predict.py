"""Planned iterations against a simulation of their pipeline; curves and savings against arithmetic by hand."""

import dataclasses
from types import SimpleNamespace

import moocore
import numpy as np
import pytest
from helpers.builders import CONFIG, software
from helpers.examples import about
from helpers.references import ODD, SMALL, B, F, frontier_row, one_f_one_b_clocks, reduction_row
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ArtifactError
from kareus.evidence.frontiers.plans import microbatch_frontiers
from kareus.evidence.frontiers.predict import PlannedMethods, planned_costs, predicted_percent, undominated
from kareus.evidence.frontiers.subject import subject
from kareus.graph.recomputation import Recomputation
from kareus.pipeline.frontiers import iteration_rows
from kareus.profile.measure import measure_once
from kareus.profile.programs import Execution, instruction_program, stage_shapes
from kareus.testbed.protocol import open_testbed
from kareus.workload.slices import cut

EXECUTION = {"sequential+perseus": Execution.SEQUENTIAL, "nanobatching+perseus": Execution.NANOBATCHING}


@pytest.fixture(scope="module")
def small():
    return subject(SMALL, (), CONFIG)


@pytest.fixture(scope="module")
def planned(small):
    return PlannedMethods(small, with_transfers=True)


def costs_by_hand(small, clocks, execution):
    """Seconds and joules of the instructions of each stage, in order, as a profile without noise measures them."""
    shapes = stage_shapes(small.workload.parallelism.split)
    found = []
    for shape, stage in zip(shapes, clocks, strict=True):
        programs = {
            direction: instruction_program(
                small.graphs,
                shape,
                direction,
                execution,
                recomputation=Recomputation.STAGE,
                default_sm_count=24,
                software=software(),
            )
            for direction in (F, B)
        }
        found.append([(direction, *profiled(small.workload, programs[direction], mhz)) for direction, mhz in stage])
    return found


def profiled(workload, program, mhz):
    """Seconds and joules of a program by a measurement on a simulated chip, heat included."""
    testbed = dataclasses.replace(workload.testbed, time_noise=0.0, power_noise=0.0)
    with open_testbed(testbed, workload.gpu, workload.protocol.predecessor_power_w, 0).session(program, "p") as session:
        row = measure_once(session, mhz, workload.protocol)
    return row["time_s"], row["energy_j"]


def end_by_events(stages):
    """When a 1F1B iteration ends whose stages run (direction, seconds) in order, and nothing takes time between them.

    Events by the clock: a free stage starts its next instruction once the microbatch has arrived.
    """
    now_s, busy_until_s, done = 0.0, [0.0] * len(stages), set()
    queues = [list(stage) for stage in stages]
    counts = [{F: 0, B: 0} for _ in stages]
    running = [None] * len(stages)
    while any(queues) or any(running):
        for stage, queue in enumerate(queues):
            if running[stage] or not queue:
                continue
            direction, time_s = queue[0]
            microbatch = counts[stage][direction]
            source = {F: (stage - 1, F), B: (stage + 1, B)}[direction]
            if source == (-1, F) or ((*source, microbatch) in done or source == (len(stages), B)):
                queue.pop(0)
                counts[stage][direction] += 1
                running[stage] = (stage, direction, microbatch)
                busy_until_s[stage] = now_s + time_s
        now_s = min(end for end, work in zip(busy_until_s, running, strict=True) if work)
        for stage, work in enumerate(running):
            if work and busy_until_s[stage] <= now_s:
                done.add(work)
                running[stage] = None
    return now_s


def test_without_transfers_a_plan_costs_what_its_clocks_cost(small, planned):
    (cost,) = planned_costs([frontier_row(clocks=one_f_one_b_clocks(SMALL, 1410))], {SMALL: small})
    without_s, without_j = PlannedMethods(small, with_transfers=False).at_max_throughput("sequential")
    assert without_s == pytest.approx(cost.time_s, rel=1e-9)
    assert without_j == pytest.approx(cost.energy_j * small.workload.parallelism.gpus_per_stage, rel=1e-9)
    assert planned.at_max_throughput("sequential")[0] > without_s


clock = st.sampled_from([900, 990, 1080, 1200, 1290, 1380, 1410])
clocks_of_rows = st.one_of(clock, st.lists(clock, min_size=12, max_size=12))


@pytest.mark.parametrize("method", EXECUTION)
@about(10)
@given(drawn=clocks_of_rows)
def test_a_planned_row_has_pipeline_time_and_idle_energy(small, method, drawn):
    row = frontier_row(method=method, clocks=one_f_one_b_clocks(SMALL, drawn))
    (cost,) = planned_costs([row], {SMALL: small})
    stages = costs_by_hand(small, row.clocks, EXECUTION[method])
    end_s = end_by_events([[(direction, time_s) for direction, time_s, _ in stage] for stage in stages])
    assert cost.time_s == pytest.approx(end_s, rel=1e-9)
    waiting_s = [end_s - sum(time_s for _, time_s, _ in stage) for stage in stages]
    worked_j = sum(energy_j for stage in stages for _, _, energy_j in stage)
    waited_j = small.workload.gpu.blocking_power_w * sum(waiting_s)
    assert cost.energy_j == pytest.approx(worked_j + waited_j, rel=2e-3)  # the counter moves every 0.1 s


@pytest.mark.parametrize("drawn", [1410, range(900, 1260, 30)])
def test_balance_is_last_over_first_stage_time_in_steady_state(small, drawn):
    row = frontier_row(clocks=one_f_one_b_clocks(SMALL, drawn))
    (cost,) = planned_costs([row], {SMALL: small})
    first, last = ([time_s for _, time_s, _ in s] for s in costs_by_hand(small, row.clocks, Execution.SEQUENTIAL))
    assert cost.balance == pytest.approx((last[2] + last[3]) / (first[2] + first[3]))


def test_rows_cost_what_each_costs_alone_in_their_order(small):
    rows = [
        frontier_row(method=method, clocks=one_f_one_b_clocks(SMALL, mhz))
        for method in EXECUTION
        for mhz in (1410, 900, 1200)
    ]
    assert planned_costs(rows, {SMALL: small}) == [planned_costs([row], {SMALL: small})[0] for row in rows]


right = one_f_one_b_clocks(SMALL, 1410)


@pytest.mark.parametrize(
    "clocks",
    [
        (right[1], right[0]),
        ((*right[0][1:], right[0][0]), right[1]),
        (right[0][:-1], right[1]),
        (right[0], (*right[1], (F, 1410))),
        (right[0],),
        None,
    ],
)
def test_instructions_that_are_not_1f1b_are_refused(small, clocks):
    with pytest.raises(ArtifactError) as raised:
        planned_costs([frontier_row(point=7, clocks=clocks)], {SMALL: small})
    assert str(raised.value) == (
        f"{SMALL.label}, sequential+perseus, point 7: its instructions are not those of a 1f1b pipeline; correct the "
        "columns stageN_mhz."
    )


def test_nanobatching_of_an_odd_microbatch_is_refused():
    row = frontier_row(ODD, method="nanobatching+perseus", clocks=one_f_one_b_clocks(ODD, 1410))
    with pytest.raises(ArtifactError) as raised:
        planned_costs([row], {ODD: subject(ODD, (), CONFIG)})
    assert str(raised.value) == (
        f"{ODD.label}, nanobatching+perseus, point 0: an odd microbatch has no nanobatches; correct the columns method "
        "or microbatch_size."
    )


METHODS = ("sequential+perseus", "nanobatching+perseus", "kareus", "kareus-without-frequency")
shares = st.floats(0, 1)


@pytest.mark.parametrize("method", METHODS)
@given(one=shares, other=shares)
def test_more_time_never_costs_more_energy(planned, method, one, other):
    curve = planned.curve(method)
    late_s, least_j = curve.frugal
    times_s = [curve.fastest_s + share * (late_s - curve.fastest_s) for share in sorted((one, other))]
    energies_j = [curve.energy_j(time_s) for time_s in times_s]
    assert energies_j[1] <= energies_j[0] * (1 + 1e-6)
    assert energies_j[1] >= least_j * (1 - 1e-6)


@pytest.mark.parametrize("method", METHODS)
@given(share=st.floats(0.02, 0.98))
def test_time_at_an_energy_is_the_inverse_of_energy_at_a_time(planned, method, share):
    curve = planned.curve(method)
    highest_j, (_, least_j) = curve.energy_j(curve.fastest_s), curve.frugal
    energy_j = least_j + share * (highest_j - least_j)
    time_s = curve.time_s(energy_j)
    assert curve.energy_j(time_s) <= energy_j * (1 + 1e-9)
    earlier_s = time_s * (1 - 3e-4)
    assert earlier_s < curve.fastest_s or curve.energy_j(earlier_s) > energy_j * (1 - 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_limits_beyond_a_curve_give_none_or_its_end(planned, method):
    curve = planned.curve(method)
    late_s, least_j = curve.frugal
    assert curve.energy_j(curve.fastest_s * 0.999) is None
    assert curve.time_s(least_j * 0.999) is None
    assert curve.energy_j(10 * late_s) == pytest.approx(least_j)
    assert curve.time_s(10 * curve.energy_j(curve.fastest_s)) == curve.fastest_s
    assert curve.time_s(least_j) == pytest.approx(late_s, rel=1e-3)


def test_plans_lie_on_their_curve_or_just_above(small, planned):
    rows = iteration_rows(cut(small.workload, "pipeline"), microbatch_frontiers(small))
    for method in ("sequential+perseus", "nanobatching+perseus", "kareus"):
        own = [row for row in rows if row["method"] == method]
        curve = planned.curve(method)
        assert min(row["time_s"] for row in own) == pytest.approx(curve.fastest_s)
        assert all(curve.energy_j(row["time_s"]) <= row["energy_j"] * (1 + 1e-6) for row in own)
        gaps = [row["energy_j"] / curve.energy_j(row["time_s"]) - 1 for row in own]
        assert np.mean(gaps) < 0.01


@pytest.mark.parametrize("method", ["sequential", "sequential+perseus", "kareus"])
def test_the_fastest_plan_is_the_start_of_the_curve(planned, method):
    time_s, energy_j = planned.at_max_throughput(method)
    assert time_s == planned.curve(method).fastest_s
    assert energy_j == planned.curve(method).energy_j(time_s)


def test_sequential_is_planned_as_its_maximum_clock_row(small, planned):
    """The curve adds point-to-point time, which the row leaves out."""
    (cost,) = planned_costs([frontier_row(clocks=one_f_one_b_clocks(SMALL, 1410))], {SMALL: small})
    time_s, energy_j = planned.at_max_throughput("sequential")
    assert 1 <= time_s / cost.time_s < 1.02
    assert 1 <= energy_j / (small.workload.parallelism.gpus_per_stage * cost.energy_j) < 1.02


class Line:
    """A curve that falls straight from its fastest to its most frugal plan."""

    def __init__(self, fastest, frugal):
        (self.fastest_s, self.highest_j), self.frugal = fastest, frugal

    def energy_j(self, time_s):
        if time_s < self.fastest_s:
            return None
        times_s, energies_j = (self.fastest_s, self.frugal[0]), (self.highest_j, self.frugal[1])
        return float(np.interp(time_s, times_s, energies_j))

    def time_s(self, energy_j):
        if energy_j < self.frugal[1]:
            return None
        times_s, energies_j = (self.frugal[0], self.fastest_s), (self.frugal[1], self.highest_j)
        return float(np.interp(energy_j, energies_j, times_s))


LINES = {
    "sequential": Line((10.0, 1000.0), (10.0, 1000.0)),
    "sequential+perseus": Line((10.0, 900.0), (14.0, 500.0)),
    "nanobatching": Line((11.0, 800.0), (11.0, 800.0)),
    "nanobatching+perseus": Line((11.0, 800.0), (13.0, 600.0)),
    "kareus": Line((8.0, 800.0), (12.0, 400.0)),
    "kareus-without-frequency": Line((8.0, 880.0), (8.0, 880.0)),
    "kareus-without-kernel-schedule": Line((10.0, 720.0), (13.0, 500.0)),
}
BY_HAND = SimpleNamespace(
    curve=LINES.__getitem__, at_max_throughput=lambda method: (LINES[method].fastest_s, LINES[method].highest_j)
)
ALL = dict.fromkeys(("sequential+perseus", "nanobatching+perseus", "kareus"), 0.0)


@pytest.mark.parametrize(
    ("metric", "sequential", "nanobatching", "kareus"),
    [
        ("time_reduction_pct", 0.0, -10.0, 20.0),  # fastest: 10, 11 and 8 s against 10 s
        ("energy_reduction_pct", 10.0, 20.0, 20.0),  # there: 900, 800 and 800 J against 1000 J
        ("iso_time_energy_reduction_pct", 0.0, None, 100 / 3),  # within 10 s: 900, none and 600 J against 900 J
        ("iso_energy_time_reduction_pct", 0.0, None, 100 * 3 / 14),  # within 500 J: 14, none and 11 s against 14 s
    ],
)
def test_what_methods_save_by_hand(metric, sequential, nanobatching, kareus):
    found = predicted_percent(BY_HAND, reduction_row(metric, ALL))
    assert found == pytest.approx(
        {"sequential+perseus": sequential, "nanobatching+perseus": nanobatching, "kareus": kareus}
    )


def test_only_methods_that_a_row_gives_are_predicted():
    assert set(predicted_percent(BY_HAND, reduction_row("time_reduction_pct", {"kareus": 3.0}))) == {"kareus"}


@pytest.mark.parametrize(
    ("table", "time_pct", "energy_pct"),
    [
        ("ablation_without_frequency", 0.0, 10.0),
        ("ablation_without_kernel_schedule", 25.0, -10.0),
        ("ablation_nanobatching", 37.5, 0.0),
    ],
)
def test_an_ablation_compares_fastest_plans_with_kareus(table, time_pct, energy_pct):
    for metric, expected in (("time_increase_pct", time_pct), ("energy_increase_pct", energy_pct)):
        assert predicted_percent(BY_HAND, reduction_row(metric, {"kareus": 1.0}, table)) == pytest.approx(
            {"kareus": expected}
        )


grid = st.integers(1, 6).map(float)
rows = st.lists(
    st.builds(
        lambda scenario, method, time_s, energy_j: frontier_row(
            scenario, method=method, time_s=time_s, energy_j=energy_j
        ),
        st.sampled_from([SMALL, ODD]),
        st.sampled_from(["sequential+perseus", "kareus"]),
        grid,
        grid,
    ),
    max_size=16,
)


@given(rows)
def test_only_rows_undominated_in_their_own_curve_count(rows):
    found = undominated(rows)
    assert found.shape == (len(rows),)
    curves = {(row.scenario, row.method) for row in rows}
    for curve in curves:
        own = [n for n, row in enumerate(rows) if (row.scenario, row.method) == curve]
        costs = np.array([(rows[n].time_s, rows[n].energy_j) for n in own])
        assert found[own].tolist() == moocore.is_nondominated(costs, keep_weakly=True).tolist()
