"""Power over time: its integral is what the plan is said to cost."""

import dataclasses
import itertools

import pytest
from helpers.builders import a100
from helpers.timed_plans import GPUS_OF_A_STAGE, timed_plan
from hypothesis import given
from hypothesis import strategies as st

from kareus.plans.document import Plan
from kareus.plans.power import power_over_time

BLOCKING_W = 85.0
GPU = a100(blocking_power_w=BLOCKING_W)


def drawn(planned: Plan) -> list[tuple[float, float]]:
    return power_over_time(planned, GPU).rows()


def test_power_holds_from_one_change_to_the_next():
    planned = timed_plan([[(0.0, 1.0, 200.0)], [(1.0, 2.0, 300.0)]], time_s=4.0)
    assert dict(drawn(planned)) == pytest.approx(
        {
            0.0: GPUS_OF_A_STAGE * (200 + 85),
            1.0: GPUS_OF_A_STAGE * (85 + 150),
            3.0: GPUS_OF_A_STAGE * (85 + 85),
            4.0: GPUS_OF_A_STAGE * (85 + 85),
        }
    )


def test_a_stage_waits_at_the_clock_of_what_it_waits_for():
    """It asks for a clock before it waits; after its last instruction it stays at that one's."""
    planned = timed_plan([[(1.0, 1.0, 200.0), (1.0, 1.0, 200.0)], [(0.0, 5.0, 1000.0)]], time_s=5.0)
    first, last = planned.stages
    slow = dataclasses.replace(first.instructions[1], frequency_mhz=900)
    stages = (dataclasses.replace(first, instructions=(first.instructions[0], slow)), last)
    assert first.instructions[0].frequency_mhz == 1410
    gpu = a100(blocking_power_w=90.0, waiting_shares=((900.0, 0.5), (1410.0, 1.0)))
    found = dict(power_over_time(dataclasses.replace(planned, stages=stages), gpu).rows())
    one_w = {at: power_w / GPUS_OF_A_STAGE - 200 for at, power_w in found.items()}
    assert one_w == pytest.approx({0.0: 90.0, 1.0: 200.0, 2.0: 45.0, 3.0: 200.0, 4.0: 45.0, 5.0: 45.0})


COST = st.tuples(st.floats(0, 2), st.floats(0.01, 3), st.floats(1, 900))


@given(st.lists(COST, min_size=1, max_size=6), st.lists(COST, min_size=1, max_size=6), st.floats(0, 5))
def test_the_integral_of_power_is_the_plans_energy(first, second, rest_s):
    busy_s = [sum(gap + time for gap, time, _ in own) for own in (first, second)]
    planned = timed_plan([first, second], max(busy_s) + rest_s)
    rows = drawn(planned)
    integral_j = sum(power_w * (after - at) for (at, power_w), (after, _) in itertools.pairwise(rows))
    running_s = sum(time for own in (first, second) for _, time, _ in own)
    running_j = sum(energy for own in (first, second) for _, _, energy in own)
    waiting_j = BLOCKING_W * (2 * planned.prediction.time_s - running_s)
    assert integral_j == pytest.approx(GPUS_OF_A_STAGE * (running_j + waiting_j), rel=1e-6)
    assert rows[-1][0] == pytest.approx(planned.prediction.time_s)
    assert [at for at, _ in rows] == sorted({at for at, _ in rows})
