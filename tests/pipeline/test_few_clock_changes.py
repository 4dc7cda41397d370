"""What changes of clock cost, and plans with few of them, against enumerating every plan of small pipelines."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers.pipelines import B, F
from helpers.pipelines import pipeline_slice as config
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.frontiers.tables import MICROBATCH
from kareus.gpu_model.gpu import ClockChangeCost
from kareus.pipeline.clock_changes import clocked_points, priced_changes
from kareus.pipeline.fewer_changes import TOLL
from kareus.pipeline.frontiers import iteration_rows
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.solver.dag import iteration_dag, makespan

BLOCKING_W = config().gpu.blocking_power_w
CLOCKS_MHZ = (1410, 1200, 990)
FREE = ClockChangeCost(latency_s=0.0, pause_s=0.0, energy_j=0.0, interval_s=0.0)


def cost(latency_s, pause_s, energy_j, interval_s):
    return ClockChangeCost(latency_s=latency_s, pause_s=pause_s, energy_j=energy_j, interval_s=interval_s)


def slice_with(change, **changes):
    own = config(**changes)
    return dataclasses.replace(own, gpu=dataclasses.replace(own.gpu, clock_change=change))


def points(seconds, joules):
    """A table `MICROBATCH` of kareus; `seconds` and `joules` of one GPU by (stage, direction), at each clock."""
    rows = []
    for method, ((stage, direction), times_s) in itertools.product(("sequential", "kareus"), seconds.items()):
        for point, (mhz, time_s, energy_j) in enumerate(
            zip(CLOCKS_MHZ, times_s, joules[stage, direction], strict=True)
        ):
            rows.append(
                {"method": method, "stage": stage, "chunk": 0, "direction": direction, "point": point}
                | {"execution": "sequential", "frequency_mhz": mhz, "time_s": time_s, "energy_j": energy_j}
                | {"dynamic_energy_j": energy_j - 60 * time_s, "effective_energy_j": energy_j - BLOCKING_W * time_s}
                | {"is_thinned": False, "time_error_s": 0.0, "energy_error_j": 0.0, "on_frontier": True, "choices": []}
            )
    return MICROBATCH.frame(rows)


def steady(stages=1):
    """Clocks that save the less the lower they are."""
    seconds, joules = {}, {}
    for stage, (direction, time_s) in itertools.product(range(stages), ((F, 1.0), (B, 2.0))):
        seconds[stage, direction] = [time_s * slower * (1 - 0.2 * stage) for slower in (1.0, 1.1, 1.3)]
        joules[stage, direction] = [time_s * energy_j for energy_j in (400.0, 350.0, 335.0)]
    return points(seconds, joules)


def numbers_of(own, clocks_mhz):
    return [CLOCKS_MHZ.index(mhz) for mhz, _ in zip(clocks_mhz, instructions_of(own), strict=True)]


def test_the_former_clock_runs_on_until_the_next_one_holds():
    """Up: half a second of work as at 1200 MHz misses 1/22 of a second. Down: it takes more energy, which is saved."""
    own = slice_with(cost(0.5, 0.01, 3.0, 0.0), pp=1, num_microbatches=1)
    ((up, down),) = priced_changes(own, steady(), "kareus", [numbers_of(own, (1410, 1200))])
    assert up.time_s == pytest.approx(0.01 + 0.5 * (1 - 1 / 1.1))
    assert up.energy_j == pytest.approx(3.0 + BLOCKING_W * up.time_s)
    assert down.time_s == pytest.approx(0.01)
    effective_j = (2 * 400.0 - BLOCKING_W * 2.0, 2 * 350.0 - BLOCKING_W * 2.2)
    assert down.energy_j == pytest.approx(
        3.0 + BLOCKING_W * 0.01 + 0.5 / 2.0 * max(0.0, effective_j[0] - effective_j[1])
    )


def test_an_iteration_follows_another_one():
    own = slice_with(cost(0.0, 0.01, 0.0, 0.0), pp=1, num_microbatches=2)
    clocked = clocked_points(own, steady(), "kareus")
    for clocks_mhz, expected in (
        ((1410, 1410, 1410, 1410), 0),
        ((1410, 1410, 1410, 1200), 2),
        ((1410, 1200, 1410, 1200), 4),
    ):
        plans = clocked.option(numbers_of(own, clocks_mhz))[:, np.newaxis]
        costs = clocked.cost(plans)
        assert costs.changes[0] == expected
        (changes,) = priced_changes(own, steady(), "kareus", [numbers_of(own, clocks_mhz)])
        assert sum(change.time_s for change in changes) == pytest.approx(0.01 * expected)


def test_a_change_may_not_follow_too_soon_on_another():
    own = slice_with(cost(0.0, 0.0, 0.0, 1.05), pp=1, num_microbatches=2)
    clocked = clocked_points(own, steady(), "kareus")
    close = [clocked.option(numbers_of(own, mhz)) for mhz in ((1200, 1410, 1410, 1410), (1410, 1410, 1200, 1410))]
    assert clocked.cost(np.column_stack(close)).too_close.tolist() == [0, 0]  # 1.1 s at 1200 MHz
    close = [clocked.option(numbers_of(own, mhz)) for mhz in ((1410, 1200, 1200, 1200), (1200, 1200, 1410, 1200))]
    assert clocked.cost(np.column_stack(close)).too_close.tolist() == [1, 1]  # 1 s at 1410 MHz


def enumerated(own, microbatch, method="kareus"):
    """Time, energy, changes and least work between two of them, of every plan, worked out one by one."""
    change, gpus = own.gpu.clock_change, own.parallelism.gpus_per_stage
    instructions, dag = instructions_of(own), iteration_dag(own)
    of_kind = {}
    for row in microbatch.filter(method=method).iter_rows(named=True):
        of_kind.setdefault((row["stage"], row["direction"]), []).append(row)
    offered = [of_kind[i.key.stage, str(i.key.direction)] for i in instructions]
    for chosen in itertools.product(*offered):
        times_s, effective_j, changes, soonest_s = [], 0.0, 0, float("inf")
        for n, (i, row) in enumerate(zip(instructions, chosen, strict=True)):
            stage = [m for m, other in enumerate(instructions) if other.key.stage == i.key.stage]
            mhz = chosen[stage[stage.index(n) - 1]]["frequency_mhz"]
            as_before = next(r for r in offered[n] if r["frequency_mhz"] == mhz)
            longer_s = more_j = 0.0
            if mhz != row["frequency_mhz"]:
                changes += 1
                share = min(1.0, change.latency_s / as_before["time_s"])
                longer_s = change.pause_s + max(0.0, share * (as_before["time_s"] - row["time_s"]))
                saved_j = as_before["effective_energy_j"] - row["effective_energy_j"]
                more_j = change.energy_j + max(0.0, share * saved_j)
            times_s.append(row["time_s"] + longer_s)
            effective_j += gpus * (row["effective_energy_j"] + more_j)
        for s in range(own.parallelism.pp):
            stage = [m for m, other in enumerate(instructions) if other.key.stage == s]
            mhz = [chosen[m]["frequency_mhz"] for m in stage]
            begins = [k for k in range(len(stage)) if mhz[k] != mhz[k - 1]]
            for k, following in zip(begins, [*begins[1:], *(b + len(stage) for b in begins[:1])], strict=True):
                soonest_s = min(soonest_s, sum(times_s[stage[j % len(stage)]] for j in range(k, following)))
        time_s = makespan(dag, times_s)
        yield time_s, effective_j + BLOCKING_W * own.parallelism.gpus * time_s, changes, soonest_s


changes_of_clock = st.builds(
    ClockChangeCost,
    latency_s=st.sampled_from([0.0, 0.2, 3.0]),
    pause_s=st.sampled_from([0.0, 0.01, 0.2]),
    energy_j=st.sampled_from([0.0, 5.0]),
    interval_s=st.sampled_from([0.01, 1.0, 2.5]),
)


@st.composite
def tables(draw, stages):
    seconds, joules = {}, {}
    for stage, direction in itertools.product(range(stages), (F, B)):
        longer_s = draw(st.lists(st.floats(0.02, 0.4), min_size=2, max_size=2))
        less_j = draw(st.lists(st.floats(5.0, 120.0), min_size=2, max_size=2))
        first_s = draw(st.floats(0.5, 2.0))
        seconds[stage, direction] = np.cumsum([first_s, *longer_s]).tolist()
        effective_j = np.cumsum([500.0, *(-j for j in less_j)]).tolist()
        joules[stage, direction] = [
            j + BLOCKING_W * s for j, s in zip(effective_j, seconds[stage, direction], strict=True)
        ]
    return points(seconds, joules)


@settings(max_examples=12, deadline=None)
@given(st.data(), st.sampled_from([(1, 2), (1, 3), (2, 1)]), changes_of_clock)
def test_plans_are_close_to_the_best_of_all(data, size, change):
    stages, microbatches = size
    own = slice_with(change, pp=stages, num_microbatches=microbatches)
    own = dataclasses.replace(own, pipeline=dataclasses.replace(own.pipeline, deadlines=6))
    microbatch = data.draw(tables(stages))
    every = [
        (time_s, energy_j, changes)
        for time_s, energy_j, changes, soonest_s in enumerated(own, microbatch)
        if not changes or soonest_s >= change.interval_s * (1 - 1e-9)
    ]
    found = [row for row in iteration_rows(own, microbatch) if row["method"] == "kareus"]
    assert found
    costs = clocked_points(own, microbatch, "kareus")
    for row in found:
        plan = costs.cost(costs.option(row["points"])[:, np.newaxis])
        assert plan.too_close[0] == 0
        assert row["time_s"] == pytest.approx(plan.time_s[0])
        assert row["energy_j"] == pytest.approx(plan.energy_j[0])
        assert any(
            abs(t - row["time_s"]) < 1e-9 and abs(e - row["energy_j"]) < 1e-6 and c == plan.changes[0]
            for t, e, c in every
        )
        toll_j = TOLL * row["energy_j"] / stages
        best_j = min(e + toll_j * c for t, e, c in every if t <= row["deadline_s"] * (1 + 1e-9))
        assert row["energy_j"] + toll_j * plan.changes[0] <= best_j * 1.01
        assert row["lower_bound_j"] <= row["energy_j"] * (1 + 1e-9)


def test_changes_that_cost_nothing_are_as_many_as_the_solver_likes():
    own = slice_with(FREE, pp=2, num_microbatches=4)
    dear = slice_with(dataclasses.replace(FREE, pause_s=10.0), pp=2, num_microbatches=4)
    for config_of, most in ((own, None), (dear, 0)):
        clocked = clocked_points(config_of, steady(2), "kareus")
        rows = [row for row in iteration_rows(config_of, steady(2)) if row["method"] == "kareus"]
        counts = [clocked.cost(clocked.option(row["points"])[:, np.newaxis]).changes[0] for row in rows]
        assert max(counts) == most if most is not None else max(counts) > 0
