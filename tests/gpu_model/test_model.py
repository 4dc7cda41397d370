import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
from helpers.builders import a100, all_reduce, gemm, graphs, memory, plain_a100, software
from hypothesis import given
from hypothesis import strategies as st

from kareus.gpu_model import laws
from kareus.gpu_model.energy import collective_switching, operator_switching, relative_voltage
from kareus.gpu_model.model import run_program, run_schedules
from kareus.gpu_model.overlap import host_time_s, step_phases
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, Direction, OperatorKind, Partition, Program, Step
from kareus.profile.programs import Execution, StageShape, instruction_program

TOKENS = 16384
LINEAR = gemm("linear", TOKENS, 2048, 3072)
NORM = memory("norm", TOKENS * 3072)
REDUCE = all_reduce(TOKENS * 3072)
CLOCKS_MHZ = st.integers(900, 1410)


def step_time_s(gpu, one, frequency_mhz):
    """Time of one step where power is no limit."""
    free = dataclasses.replace(gpu, power_limit_w=10_000)
    return float(run_program(free, program(one), frequency_mhz).time_s)


def steady_program(gpu, one, frequency_mhz):
    """Time and energy at steady clocks, with no power limit."""
    behaviour = run_program(dataclasses.replace(gpu, power_limit_w=10_000), one, frequency_mhz)
    return behaviour.time_s, behaviour.energy_j


def step(operators, collective=None, launch=0, sm_count=0):
    return Step(operators=tuple(operators), collective=collective, launch=launch, sm_count=sm_count)


def program(*steps, whole=False):
    return Program(name="test", steps=steps, blocks=(0, len(steps)) if whole else None)


def test_arithmetic_scales_with_the_clock_memory_does_not():
    gpu = a100()
    slow, fast = (laws.operator_time_s(gpu, LINEAR, f, gpu.sm_count) for f in (705, 1410))
    assert slow / fast == pytest.approx(2, rel=0.05)
    slow, fast = (laws.operator_time_s(gpu, NORM, f, gpu.sm_count) for f in (705, 1410))
    assert slow == fast


def test_a_large_gemm_stays_below_the_peak():
    gpu = a100()
    seconds = laws.operator_time_s(gpu, gemm("big", 16384, 16384, 16384), 1410, gpu.sm_count)
    assert 0.5 < 2 * 16384**3 / seconds / (gpu.bf16_tflops * 1e12) < 0.96


def gemm_s(*shape, sm_count=108):
    operator = gemm("gemm", *shape)
    return float(laws.operator_time_s(a100(), operator, np.asarray(1410.0), np.asarray(sm_count)))


def test_a_gemm_of_few_tiles_splits_its_inner_dimension():
    """One tile of every SM would take as long as 108 tiles: its 16 tiles would fill a seventh of the SMs."""
    gap_s = a100().coefficients.kernel_overhead_s
    few, full = gemm_s(2048, 256, 32768) - gap_s, gemm_s(2304, 1536, 32768) - gap_s
    assert full / 7 < few < full / 4


@given(
    st.integers(1, 64),
    st.integers(1, 32),
    st.integers(32, 32768).map(lambda n: 2 * n),
    st.integers(78, 108),
    st.sampled_from((1.0, 0.5)),
)
def test_splitting_a_gemm_helps_within_perfect_use_of_sms(tall, wide, inner, sm_count, share):
    gpu, operator = plain_a100(), gemm("gemm", 128 * tall, 256 * wide, inner)
    c = gpu.coefficients
    taken_s = laws.operator_time_s(gpu, operator, np.asarray(1410.0), np.asarray(sm_count), share)
    perfect_s = operator.flops / (gpu.peak_flops(1410.0, float(sm_count)) * c.gemm_efficiency)
    waves = math.ceil(tall * wide / sm_count)
    unsplit_s = perfect_s * waves * sm_count / (tall * wide) * (1 + c.gemm_inner_half / inner)
    memory_s = laws.hbm_bytes(gpu, operator) / (gpu.hbm_gb_per_s * 1e9 * c.hbm_efficiency * share)
    assert perfect_s < taken_s <= unsplit_s + memory_s + c.kernel_overhead_s


def test_copies_around_attention_are_not_hidden():
    attending = dataclasses.replace(
        gemm("attention", TOKENS, 2048, 3072), kind=OperatorKind.ATTENTION, shape=(8, 16, 8, 2048, 2048, 128)
    )
    copying = dataclasses.replace(attending, copies=3, copied_bytes=10**9)
    gpu = a100()
    alone_s, copied_s = (float(laws.operator_time_s(gpu, o, 1410, gpu.sm_count)) for o in (attending, copying))
    copies_s = 1e9 / float(laws.hbm_bytes_per_s(gpu, gpu.sm_count)) + 3 * gpu.coefficients.kernel_overhead_s
    assert copied_s - alone_s == pytest.approx(copies_s)
    moved_j = [float(operator_switching(gpu, o).at_j(gpu, 1410.0)) for o in (attending, copying)]
    byte_j = gpu.coefficients.hbm_j_per_byte + gpu.coefficients.hbm_core_j_per_byte
    assert moved_j[1] - moved_j[0] == pytest.approx(1e9 * byte_j)


def test_a_collective_gains_from_sms_with_diminishing_returns():
    gpu = a100()
    times = [laws.collective_time_s(gpu, REDUCE, 1410, sm) for sm in range(3, 31, 3)]
    gains = [a - b for a, b in itertools.pairwise(times)]
    assert all(g > 0 for g in gains)
    assert gains == sorted(gains, reverse=True)


def test_collectives_slow_down_less_than_arithmetic():
    gpu = a100()
    slowdown = laws.collective_time_s(gpu, REDUCE, 705, 24) / laws.collective_time_s(gpu, REDUCE, 1410, 24)
    assert 1.1 < slowdown < 1.9


def test_voltage_falls_steeply_to_a_knee_and_is_flat_below():
    gpu = a100()
    volts = [relative_voltage(gpu, f) for f in range(600, 1411, 30)]
    assert volts == sorted(volts)
    assert volts[-1] == 1
    assert relative_voltage(gpu, 600) == relative_voltage(gpu, 800)
    top, lower = 1 - relative_voltage(gpu, 1310), relative_voltage(gpu, 1210) - relative_voltage(gpu, 1110)
    assert top > lower


@given(CLOCKS_MHZ, st.integers(1, 10).map(lambda n: 3 * n), st.integers(0, 2))
def test_overlap_lies_between_concurrency_and_sequence(frequency_mhz, sm_count, launch):
    gpu = a100()
    operators = [NORM, LINEAR, LINEAR]
    overlapped = step_time_s(gpu, step(operators, REDUCE, launch, sm_count), frequency_mhz)
    computing = step_time_s(gpu, step(operators), frequency_mhz)
    communicating = laws.collective_time_s(gpu, REDUCE, frequency_mhz, sm_count)
    assert overlapped >= max(computing, communicating)
    assert overlapped <= 1.5 * (computing + communicating)


def test_a_collective_after_everything_is_fully_exposed():
    gpu = a100(coefficients=dataclasses.replace(a100().coefficients, host_launch_s=0.0))
    alone = step_time_s(gpu, step([NORM, LINEAR]), 1410) + laws.collective_time_s(gpu, REDUCE, 1410, 24)
    assert step_time_s(gpu, step([NORM, LINEAR], REDUCE, 2, 24), 1410) == pytest.approx(alone)


def test_there_is_a_sweet_spot_of_sms():
    """Paper, section 3.2.1: too few expose the collective, too many starve the computation."""
    gpu = a100()
    operators = [LINEAR, LINEAR, LINEAR]
    times = {sm: step_time_s(gpu, step(operators, REDUCE, 0, sm), 1410) for sm in range(1, 61)}
    best = min(times, key=times.__getitem__)
    assert 1 < best < 30
    assert times[1] > times[best] < times[60]


def test_launching_beside_a_memory_bound_operator_hurts():
    """Paper, section 3.2.2."""
    gpu = a100()
    operators = [memory("norm", 8 * TOKENS * 3072), LINEAR, LINEAR, LINEAR]
    assert step_time_s(gpu, step(operators, REDUCE, 0, 12), 1410) > step_time_s(
        gpu, step(operators, REDUCE, 1, 12), 1410
    )


def whole(execution, gpu=None, frequency_mhz=1410):
    shape = StageShape(layers=15, first=True, last=False)
    made = instruction_program(
        graphs(),
        shape,
        Direction.FORWARD,
        execution,
        recomputation=Recomputation.STAGE,
        default_sm_count=24,
        software=software(),
    )
    return run_program(gpu or a100(), made, frequency_mhz)


def test_nanobatching_hides_communication():
    assert whole(Execution.NANOBATCHING).time_s < whole(Execution.SEQUENTIAL).time_s


def test_lower_clocks_save_energy_down_to_the_knee():
    energies = [whole(Execution.SEQUENTIAL, frequency_mhz=f).energy_j for f in range(600, 1411, 30)]
    lowest = energies.index(min(energies))
    assert 0 < lowest < len(energies) - 1
    assert 840 <= 600 + 30 * lowest <= 1140


def hot_gpu():
    """A GPU whose power limit a GEMM exceeds at maximum clock."""
    free = run_program(a100(power_limit_w=10_000), program(step([LINEAR])), 1410)
    return a100(power_limit_w=0.93 * free.power_w)


def test_the_power_limit_holds_and_lowers_the_mean_clock():
    gpu = hot_gpu()
    limited = run_program(gpu, program(step([LINEAR])), 1410)
    assert limited.power_limited
    assert gpu.throttling_power_w * (1 - 1e-6) < limited.power_w <= gpu.power_limit_w * (1 + 1e-9)
    assert limited.mean_clock_mhz < 1410


def test_memory_bound_work_stays_within_the_power_limit():
    capped = a100(power_limit_w=175)
    behaviours = [run_program(capped, program(step([NORM])), clock_mhz) for clock_mhz in (900, 1110, 1410)]
    assert any(b.power_limited for b in behaviours)
    assert all(math.isfinite(b.time_s) and b.power_w <= capped.power_limit_w * (1 + 1e-9) for b in behaviours)
    assert behaviours[-1].time_s == pytest.approx(behaviours[0].time_s)


def test_a_fluctuating_clock_loses_time_and_energy():
    """So a clock below the maximum may be the fastest, and is more frugal, too (paper, section 6.2.1)."""
    gpu = hot_gpu()
    limited = run_program(gpu, program(step([LINEAR])), 1410)
    clocks = np.arange(900.0, 1411.0)
    time_s, energy_j = steady_program(gpu, program(step([LINEAR])), clocks)
    fastest = np.argmin(np.where(energy_j <= gpu.throttling_power_w * time_s, time_s, np.inf))
    assert time_s[fastest] < limited.time_s < 1.02 * time_s[fastest]
    assert energy_j[fastest] < limited.energy_j


def test_a_burst_is_held_to_the_limit_at_low_mean_power():
    """Overlap raises power while it lasts, so beyond some clock it gains nothing (paper, section 6.2.1)."""
    gpu = hot_gpu()
    diluted = run_program(gpu, program(step([LINEAR]), *[step([NORM])] * 8), 1410)
    assert diluted.power_w < 0.9 * gpu.throttling_power_w
    assert diluted.power_limited


def test_mean_power_never_exceeds_the_limit_itself():
    free = run_program(a100(power_limit_w=10_000), program(step([LINEAR])), 1410)
    for share in (0.9, 0.7, 0.5):
        limited = run_program(a100(power_limit_w=share * free.power_w), program(step([LINEAR])), 1410)
        assert limited.power_w <= share * free.power_w * (1 + 1e-9)


def test_a_fluctuating_clock_costs_more_than_its_mean():
    """Paper, appendix A."""
    gpu = hot_gpu()
    limited = run_program(gpu, program(step([LINEAR])), 1410)
    time_s, energy_j = steady_program(gpu, program(step([LINEAR])), limited.mean_clock_mhz)
    assert energy_j < limited.energy_j
    assert time_s == pytest.approx(limited.time_s, rel=0.01)


@given(st.floats(120, 450), CLOCKS_MHZ, st.sampled_from([(LINEAR,), (NORM,), (NORM, LINEAR)]))
def test_a_little_more_clock_or_power_changes_little(limit_w, frequency_mhz, operators):
    """Whatever the limit: a fluctuating clock has no cliffs."""
    one = program(step(operators, REDUCE, 0, 12))
    here = run_program(a100(power_limit_w=limit_w), one, frequency_mhz)
    for beside in (
        run_program(a100(power_limit_w=limit_w), one, frequency_mhz + 0.1),
        run_program(a100(power_limit_w=limit_w * 1.0001), one, frequency_mhz),
    ):
        assert beside.time_s == pytest.approx(here.time_s, rel=0.005)
        assert beside.energy_j == pytest.approx(here.energy_j, rel=0.005)


@given(CLOCKS_MHZ, st.integers(1, 60), st.integers(0, 4))
def test_phases_do_all_of_the_work_once(frequency_mhz, sm_count, launch):
    gpu, operators = a100(), (NORM, LINEAR, NORM, LINEAR)
    phases = step_phases(gpu, operators, REDUCE, np.array([float(frequency_mhz)]), sm_count, launch)
    work = [*(operator_switching(gpu, o) for o in operators), collective_switching(gpu, REDUCE)]
    for part in ("core_j", "fixed_j"):
        done_j = sum(getattr(phase.switching, part) for phase in phases)
        assert done_j == pytest.approx(sum(getattr(w, part) for w in work))


def test_a_phase_at_a_lower_clock_takes_what_the_laws_say():
    gpu, every_sm, clocks = a100(), np.array([108.0]), (np.array([1410.0]), np.array([1050.0]))
    for operator in (NORM, LINEAR):
        (phase,) = step_phases(gpu, [operator], None, clocks[0], 0, 0)
        expected_s = laws.operator_time_s(gpu, operator, clocks[1], every_sm)
        assert phase.at_s(*clocks) == pytest.approx(expected_s, rel=0.005)
    (exposed,) = step_phases(gpu, [], REDUCE, clocks[0], 20, 0)
    assert exposed.at_s(*clocks) == pytest.approx(laws.collective_time_s(gpu, REDUCE, clocks[1], np.array([20.0])))


def test_a_program_without_steps_takes_no_time():
    nothing = run_program(a100(), program(), 1200)
    assert (nothing.time_s, nothing.energy_j, nothing.mean_clock_mhz) == (0, 0, 1200)


def test_the_model_answers_where_no_clock_meets_the_limit():
    limited = run_program(a100(power_limit_w=30), program(step([LINEAR])), 1410)
    assert limited.power_limited
    assert limited.time_s > 0


def fastest_s(evaluate):
    """Least processor time of ten evaluations."""
    took_s = []
    for _ in range(10):
        began_s = time.process_time()
        evaluate()
        took_s.append(time.process_time() - began_s)
    return min(took_s)


def test_many_schedules_are_evaluated_at_once():
    """Vectorised: 720 schedules within 0.2 s on one core stay possible."""
    gpu = hot_gpu()
    operators = (NORM, LINEAR, NORM, LINEAR)
    partition = Partition(name="test", direction=Direction.FORWARD, operators=operators, collective=REDUCE)
    grid = np.meshgrid(np.linspace(900, 1410, 25), np.arange(3.0, 31.0, 3.0), range(4), indexing="ij")
    clocks, sm_counts, launches = (axis.ravel() for axis in grid)
    all_s = fastest_s(lambda: run_schedules(gpu, partition, clocks, sm_counts, launches))
    one_s = fastest_s(lambda: run_schedules(gpu, partition, clocks[-1:], sm_counts[-1:], launches[-1:]))
    assert all_s < 100 * one_s


def test_short_kernels_wait_for_the_host_at_any_clock():
    """Why a small workload gains neither from a higher clock nor from nanobatches."""
    slow_host = dataclasses.replace(a100().coefficients, host_launch_s=0.1)
    gpu = a100(coefficients=slow_host)
    small = step([gemm("small", 128, 256, 128)] * 3)
    assert step_time_s(gpu, small, 900) == pytest.approx(0.3)
    assert step_time_s(gpu, small, 1410) == pytest.approx(0.3)


def test_long_kernels_hide_the_host():
    prompt, slow = (
        a100(coefficients=dataclasses.replace(a100().coefficients, host_launch_s=host_s)) for host_s in (0.0, 1e-5)
    )
    assert step_time_s(slow, step([LINEAR] * 4), 1410) == pytest.approx(
        step_time_s(prompt, step([LINEAR] * 4), 1410), rel=1e-3
    )


@pytest.mark.parametrize(("operator", "more"), [(NORM, 5), (LINEAR, 0)])
def test_only_what_hbm_bounds_runs_in_many_kernels(operator, more):
    """Each has its gap on the GPU and its launch on the host."""
    c = dataclasses.replace(a100().coefficients, kernel_overhead_s=1e-4, host_launch_s=0.0)
    fused, eager = (a100(coefficients=dataclasses.replace(c, streaming_kernels=kernels)) for kernels in (1.0, 6.0))
    gap_s = step_time_s(eager, step([operator]), 1410) - step_time_s(fused, step([operator]), 1410)
    assert gap_s == pytest.approx(more * 1e-4, abs=1e-9)
    launching = a100(coefficients=dataclasses.replace(c, streaming_kernels=6.0, host_launch_s=1e-5))
    assert host_time_s(launching, [operator], None) == pytest.approx((1 + more) * 1e-5)


@pytest.mark.parametrize(("group", "ranks"), [("tp", 8), ("cp", 0)])
def test_the_host_takes_longer_for_collectives_of_many_gpus_of_tensor_parallelism(group, ranks):
    c = dataclasses.replace(a100().coefficients, host_rank_s=1e-4)
    collective = dataclasses.replace(REDUCE, group=group, group_size=8)
    slow, fast = (host_time_s(a100(coefficients=own), [], collective) for own in (c, a100().coefficients))
    assert slow - fast == pytest.approx(ranks * 1e-4)


def test_an_instruction_costs_more_than_its_isolated_steps():
    gpu = a100()
    steps, c = [step([NORM, LINEAR], REDUCE, 0, 12)] * 4, gpu.coefficients
    isolated_s, _ = steady_program(gpu, program(*steps), 1410)
    computing_s, _ = steady_program(gpu, program(*[step([NORM, LINEAR])] * 4), 1410)
    instruction_s, _ = steady_program(gpu, program(*steps, whole=True), 1410)
    missed_s = c.isolation_overhead * computing_s + c.instruction_overhead_s
    assert instruction_s == pytest.approx(isolated_s + missed_s)


def test_what_isolation_misses_is_the_same_under_every_schedule():
    """Schedules move collectives; between operators they change nothing."""
    schedules = [[step([NORM, LINEAR], REDUCE, launch, sms)] * 4 for launch in (0, 1) for sms in (3, 12, 24)]
    missed_s = [
        steady_program(a100(), program(*steps, whole=True), 1410)[0] - steady_program(a100(), program(*steps), 1410)[0]
        for steps in schedules
    ]
    assert missed_s == pytest.approx([missed_s[0]] * 6, rel=1e-9)


def test_a_copy_draws_what_eight_a100s_drew():
    """228 W at 1,372 GB/s, the mean of roofline measurements (224 to 239 W), at the maximum clock."""
    copied, c = memory("copy", 2**36), a100().coefficients  # so large that its gap does not count
    time_s, energy_j = steady_program(a100(), program(step([copied])), 1410)
    per_byte_j = c.hbm_j_per_byte + c.hbm_core_j_per_byte
    waiting_w = (energy_j - (copied.bytes_read + copied.bytes_written) * per_byte_j) / time_s
    assert waiting_w + 1372e9 * per_byte_j == pytest.approx(228.0, abs=1.0)


@pytest.mark.parametrize("collective", [None, REDUCE])
def test_an_operator_that_waits_for_hbm_gates_a_part_of_the_clock_tree(collective):
    """Also beside a collective; alone a collective gates nothing, and a product does not."""
    c, clock = a100().coefficients, np.asarray(900.0)
    gated, free = (
        a100(coefficients=dataclasses.replace(c, stalled_clock_share=share, host_launch_s=0.0)) for share in (0.6, 1.0)
    )
    clock_w = c.clock_power_w * relative_voltage(gated, clock) ** 2 * 900 / 1410
    for operator, saved_w in ((NORM, 0.4 * clock_w), (LINEAR, 0.0)):
        both = program(step([operator], collective, 0, 12))
        less_j, all_j = (float(steady_program(gpu, both, 900)[1]) for gpu in (gated, free))
        *running, _ = step_phases(gated, [operator], REDUCE, clock, 12, 0)
        running_s = sum(phase.time_s for phase in running) if collective else steady_program(gated, both, 900)[0]
        assert all_j - less_j == pytest.approx(float(saved_w * running_s), rel=1e-6, abs=1e-9)


def test_more_contention_never_helps():
    gpu = a100()
    rough = dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, contention=1.0))
    calm = dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, contention=0.0))
    both = step([NORM, LINEAR], REDUCE, 0, 12)
    assert step_time_s(rough, both, 1410) > step_time_s(calm, both, 1410)


@pytest.mark.parametrize("operator", [LINEAR, NORM, gemm("balanced", 4 * TOKENS, 512, 512)], ids=lambda o: o.name)
def test_hbm_has_no_cliff_at_full_demand(operator):
    gpu, both = a100(), step([operator], REDUCE, 0, 12)
    per_bus_byte = np.geomspace(0.5, 20, 800)
    times_s = [
        step_time_s(
            dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, hbm_bytes_per_bus_byte=moved)),
            both,
            1410,
        )
        for moved in per_bus_byte.tolist()
    ]
    growth = np.diff(np.log(times_s))
    assert 0 <= growth.min() < growth.max() < 0.01


def test_the_graph_of_a_nanobatch_is_half_of_a_microbatch():
    whole_graph, half = graphs()[Batch.MICROBATCH], graphs()[Batch.NANOBATCH]
    assert half.forward[0].operators[1].flops * 2 == whole_graph.forward[0].operators[1].flops


@given(st.integers(0, 2**32 - 1))
def test_all_schedules_at_once_cost_what_each_costs_alone(seed):
    gpu, partition = (
        hot_gpu(),
        Partition(name="test", direction=Direction.FORWARD, operators=(NORM, LINEAR, NORM, LINEAR), collective=REDUCE),
    )
    random = np.random.default_rng(seed)
    frequencies = random.integers(900, 1410, 20).astype(float)
    sm_counts, launches = random.integers(1, 60, 20).astype(float), random.integers(0, 4, 20)
    together = run_schedules(gpu, partition, frequencies, sm_counts, launches)
    for n in range(20):
        one = step(partition.operators, REDUCE, int(launches[n]), int(sm_counts[n]))
        alone = run_program(gpu, program(one), frequencies[n])
        assert together.time_s[n] == pytest.approx(float(alone.time_s), rel=1e-12)
        assert together.energy_j[n] == pytest.approx(float(alone.energy_j), rel=1e-12)
        assert together.power_limited[n] == alone.power_limited


@given(st.floats(600.0, 1410.0), st.floats(1.0, 8.0))
def test_what_nothing_fuses_slows_down_with_the_clock_and_fused_kernels_do_not(frequency_mhz, traffic):
    gpu = plain_a100()
    c = dataclasses.replace(gpu.coefficients, kernel_overhead_s=0.0, traffic=traffic)
    plain = dataclasses.replace(gpu, coefficients=c)
    limited = dataclasses.replace(gpu, coefficients=dataclasses.replace(c, stream_gb_per_s=1300.0))
    norm = memory("norm", 2**28)

    def time_s(one, clock_mhz):
        return float(laws.operator_time_s(one, norm, np.array(clock_mhz), np.array(108.0)))

    assert time_s(limited, 1410.0) == pytest.approx(time_s(plain, 1410.0))
    slower = time_s(limited, frequency_mhz) / time_s(plain, frequency_mhz)
    assert 1 <= slower <= 1 + (1 - 1 / traffic) * (1410.0 / frequency_mhz - 1) + 1e-9
    assert slower > 1 or traffic < 1.001 or frequency_mhz > 1409


def test_a_few_bytes_in_flight_are_bound_by_the_clock_alone():
    gpu = plain_a100()
    slow = dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, stream_gb_per_s=1.0))
    assert float(laws.unfused_slowdown(slow, np.array(470.0))) == pytest.approx(3.0)
    assert laws.unfused_slowdown(gpu, np.array(470.0)) == 1.0
