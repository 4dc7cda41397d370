"""What holds back a program as a whole: the power limit, over longer than kernels take, and the host."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from helpers.builders import a100, all_reduce, gemm, memory
from hypothesis import given
from hypothesis import strategies as st

from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.gpu_model.energy import idle_power_w
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import Behaviour, run_program
from kareus.gpu_model.power_limit import LEAST_CLOCK_MHZ
from kareus.graph.records import Operator, Program, Step

MOST_MHZ = 1410.0
PRODUCT, NORM = gemm("linear", 16384, 4096, 4096), memory("norm", 2**26)
SHORT = memory("bias", 2**12)
REDUCE = all_reduce(2**25)
NO_LIMIT_W = 10_000.0


def driven(limit_w: float = NO_LIMIT_W, ahead: LaunchesAhead = LaunchesAhead.PASS, **numbers: float) -> Gpu:
    """An A100 whose limit means power over a tenth of a second, and whose host takes no time by itself."""
    quiet = dict.fromkeys(("host_launch_s", "host_collective_s", "isolation_overhead", "instruction_overhead_s"), 0.0)
    usual = quiet | {"streaming_kernels": 1.0, "limiter_s": 0.1}
    coefficients = dataclasses.replace(a100().coefficients, **(usual | numbers))
    return a100(coefficients=coefficients, power_limit_w=limit_w, launches_ahead=ahead)


def step(*operators: Operator, reduces: bool = False) -> Step:
    return Step(
        operators=operators,
        collective=REDUCE if reduces else None,
        launch=len(operators) if reduces else 0,
        sm_count=24 if reduces else 0,
    )


def ran(gpu: Gpu, before: Sequence[Step], blocks: Sequence[Step] | None = None, mhz: float = MOST_MHZ) -> Behaviour:
    """What steps do that are no whole instruction, or, with blocks, one that begins with them."""
    place = None if blocks is None else (len(before), len(before) + len(blocks))
    return run_program(gpu, Program(name="test", steps=(*before, *(blocks or ())), blocks=place), np.array(mhz))


STEPS = st.lists(
    st.builds(
        lambda operators, reduces: step(*operators, reduces=reduces),
        st.lists(st.sampled_from([PRODUCT, NORM, SHORT]), min_size=1, max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@given(STEPS, st.floats(90, 400), st.floats(900, MOST_MHZ))
def test_mean_power_never_exceeds_a_limit_that_some_clock_holds(steps, limit_w, mhz):
    gpu, free = driven(limit_w), driven()
    found = ran(gpu, steps, mhz=mhz)
    if float(ran(free, steps, mhz=LEAST_CLOCK_MHZ).power_w) <= gpu.throttling_power_w:
        assert float(found.power_w) <= limit_w * (1 + 1e-6)
    assert float(found.time_s) >= float(ran(free, steps, mhz=mhz).time_s) * (1 - 1e-9)


@given(STEPS, st.floats(100, 350), st.floats(1, 50))
def test_a_lower_limit_never_makes_a_program_faster(steps, limit_w, more_w):
    slow, fast = (float(ran(driven(watts), steps).time_s) for watts in (limit_w, limit_w + more_w))
    assert slow >= fast * (1 - 1e-9)


def test_products_may_exceed_the_limit_where_the_program_does_not():
    """The limit lies between the power of the product alone and that of the program, which HBM bounds for longer."""
    program = [step(PRODUCT), step(*(NORM,) * 10)]
    product_w, mean_w = (float(ran(driven(), steps).power_w) for steps in (program[:1], program))
    limit_w = (product_w + mean_w) / 2
    assert ran(driven(limit_w), program[:1]).power_limited
    free, found = ran(driven(), program), ran(driven(limit_w), program)
    assert not found.power_limited
    assert (found.time_s, found.energy_j) == (free.time_s, free.energy_j)
    at_once = ran(driven(limit_w, limiter_s=0.0), program)
    assert at_once.power_limited
    assert at_once.time_s > found.time_s


def test_a_program_that_exceeds_the_limit_slows_down_to_it():
    program = [step(PRODUCT), step(NORM)]
    free = ran(driven(), program)
    limit_w = 0.9 * float(free.power_w)
    found = ran(driven(limit_w), program)
    assert found.power_limited
    assert found.time_s > free.time_s
    assert 0.9 * limit_w < float(found.power_w) <= limit_w * (1 + 1e-6)


def test_all_clocks_at_once_cost_what_each_costs_alone():
    program, clocks_mhz = [step(PRODUCT, NORM, reduces=True)], np.array([900.0, 1100.0, 1300.0, 1410.0])
    gpu = driven(0.8 * float(ran(driven(), program).power_w))
    together = run_program(gpu, Program(name="test", steps=tuple(program), blocks=None), clocks_mhz)
    for n, mhz in enumerate(clocks_mhz.tolist()):
        alone = ran(gpu, program, mhz=mhz)
        assert together.time_s[n] == pytest.approx(float(alone.time_s), rel=1e-3)  # between clocks of another grid
        assert together.energy_j[n] == pytest.approx(float(alone.energy_j), rel=1e-3)


def test_gpus_that_differ_are_held_back_each_by_itself():
    program = Program(name="test", steps=(step(PRODUCT),), blocks=None)
    limit_w = 0.9 * float(ran(driven(), program.steps).power_w)
    joules = [driven().coefficients.gemm_j_per_flop * share for share in (0.5, 1.0, 1.5)]
    many = dataclasses.replace(
        driven(limit_w),
        coefficients=_Many(driven().coefficients, np.array(joules)[:, None]),  # type: ignore[arg-type]
    )
    together = run_program(many, program, np.full((3, 2), [1200.0, MOST_MHZ]))
    for n, one in enumerate(joules):
        alone = run_program(driven(limit_w, gemm_j_per_flop=one), program, np.array([1200.0, MOST_MHZ]))
        assert together.time_s[n] == pytest.approx(alone.time_s)
        assert together.power_limited[n].tolist() == alone.power_limited.tolist()
    assert together.power_limited.any()
    assert not together.power_limited.all()


class _Many:
    """Coefficients of GPUs that differ in the energy of products."""

    def __init__(self, shared, gemm_j_per_flop):
        self._shared, self.gemm_j_per_flop = shared, gemm_j_per_flop

    def __getattr__(self, name):
        return getattr(self._shared, name)


LONG, MANY = [step(gemm("large", 16384, 16384, 16384))], [step(*(SHORT,) * 100)]
LAUNCH_S = 4e-5


@pytest.mark.parametrize("ahead", list(LaunchesAhead))
def test_the_host_shows_where_kernels_are_short(ahead):
    gpu, free = driven(ahead=ahead, host_launch_s=LAUNCH_S), driven(ahead=ahead)
    assert float(ran(gpu, MANY).time_s) == pytest.approx(100 * LAUNCH_S, rel=0.01)
    assert float(ran(gpu, LONG).time_s) == pytest.approx(float(ran(free, LONG).time_s), rel=0.01)


def test_a_host_that_launches_ahead_of_a_pass_makes_up_for_short_kernels_in_it():
    """As long on the GPU as on the host: apart they take twice as long, together little more than once."""
    free_s = float(ran(driven(), LONG).time_s)
    launch_s = free_s / 100
    times_s = {
        ahead: float(ran(driven(ahead=ahead, host_launch_s=launch_s), LONG, MANY).time_s) / free_s
        for ahead in LaunchesAhead
    }
    assert times_s[LaunchesAhead.STEP] == pytest.approx(2, rel=0.05)
    assert times_s[LaunchesAhead.PART] == pytest.approx(2, rel=0.05)
    assert 1 < times_s[LaunchesAhead.PASS] < 1.25


def test_parts_of_an_instruction_are_its_blocks_and_the_rest():
    """In one part, a host makes up for short kernels between long ones."""
    free_s = float(ran(driven(), LONG).time_s)
    launch_s = free_s / 100
    gpu = driven(ahead=LaunchesAhead.PART, host_launch_s=launch_s)
    assert 1 < float(ran(gpu, [], [*LONG, *MANY]).time_s) / free_s < 1.25
    assert 1 < float(ran(gpu, [*LONG, *MANY]).time_s) / free_s < 1.25


@given(STEPS, STEPS, st.floats(1e-6, 1e-3), st.floats(0, 1e-3))
def test_the_further_ahead_a_host_launches_the_less_it_shows(before, blocks, launch_s, collective_s):
    host = {"host_launch_s": launch_s, "host_collective_s": collective_s}
    step_s, part_s, pass_s = (float(ran(driven(ahead=one, **host), before, blocks).time_s) for one in LaunchesAhead)
    free_s = float(ran(driven(), before, blocks).time_s)
    assert free_s * (1 - 1e-9) <= pass_s <= part_s * (1 + 1e-9)
    assert part_s <= step_s * (1 + 1e-9)


@given(STEPS, st.floats(1e-6, 1e-3), st.sampled_from(LaunchesAhead))
def test_a_gpu_that_waits_for_its_host_draws_idle_power(steps, launch_s, ahead):
    waiting, free = ran(driven(ahead=ahead, host_launch_s=launch_s), steps), ran(driven(ahead=ahead), steps)
    waited_s, waited_j = float(waiting.time_s - free.time_s), float(waiting.energy_j - free.energy_j)
    idle_w = float(idle_power_w(driven(), np.array(MOST_MHZ)))
    assert waited_j == pytest.approx(idle_w * waited_s, rel=1e-6, abs=1e-9)


def test_collectives_take_the_host_longer():
    reducing = [step(SHORT, reduces=True)] * 10
    reducing = [dataclasses.replace(one, collective=all_reduce(2)) for one in reducing]
    times_s = [float(ran(driven(host_collective_s=s), reducing).time_s) for s in (1e-3, 2e-3)]
    assert times_s[1] - times_s[0] == pytest.approx(10e-3, rel=0.01)


def test_no_steps_take_neither_gpu_nor_host():
    nothing = ran(driven(host_launch_s=LAUNCH_S), [])
    assert (float(nothing.time_s), float(nothing.energy_j)) == (0, 0)
