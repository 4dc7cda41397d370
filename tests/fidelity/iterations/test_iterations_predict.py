"""Laws of predicted iterations: heat, the slowest GPU, the host, kernels of software."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.builders import CONFIG, a100, memory
from helpers.iterations import LLAMA

from kareus.fidelity.iterations import unfused
from kareus.fidelity.iterations.hosts import host_slowdown
from kareus.fidelity.iterations.number_formats import in_fp8
from kareus.fidelity.iterations.passes import CLOCK_GRID, PassCost, _limited_clock, charged, of_software, pass_cost
from kareus.fidelity.iterations.predict import Predictor, held_share, parts_of, slowest_of
from kareus.fidelity.iterations.workloads import IterationSubjects
from kareus.graph.program import Step
from kareus.graph.records import TRACED, BlockGraph, Direction, Fp8Product, Operator, OperatorKind, Scope, Segment
from kareus.profile.programs import StageShape
from kareus.workload.compose import compose
from kareus.workload.software import Accounting

GPU = compose(["gpu=h100-sxm5-80gb"], CONFIG)[0].workload.gpu
COST = PassCost(
    gpu_s=1.0, exposed_s=0.1, energy_j=500.0, launches=100, collectives=4, collectives_s=0.15, odd_products_s=0.0,
    streaming_s=0.2, streaming_j=60.0, attention_s=0.3,
)  # fmt: skip


def _graph(*operators):
    segment = Segment(
        name="s",
        direction=Direction.FORWARD,
        scope=Scope.BLOCK,
        operators=operators,
        collective=None,
        independent_tail=0,
    )
    return BlockGraph(
        forward=(segment,), backward=(segment,), embedding_forward=(), embedding_backward=(), head_forward=(segment,),
        head_backward=(),
    )  # fmt: skip


@pytest.mark.parametrize("gpu", [a100(), GPU], ids=["a100", "h100"])
def test_traffic_costs_what_operators_that_move_it_cost(gpu):
    """Software that fuses less moves more bytes, with as much of the clock tree gated meanwhile."""
    warm = charged(gpu)
    cost = pass_cost(warm, [Step(operators=(memory("copy", 2**34),))], {})  # so large that its gap does not count
    assert cost.streaming_s == pytest.approx(cost.gpu_s, rel=1e-3)
    assert cost.streaming_j == pytest.approx(cost.energy_j, rel=5e-3)


def test_a_warm_gpu_leaks_and_has_no_overheads_of_schedules():
    warm = charged(GPU)
    assert warm.static_power_w > GPU.static_power_w
    assert (warm.coefficients.isolation_overhead, warm.coefficients.host_launch_s) == (0, 0)
    assert warm.coefficients.streaming_kernels == 1


def test_the_slowest_of_more_gpus_is_slower():
    factors = [slowest_of(n) for n in (1, 8, 512, 16384)]
    assert factors[0] == 1
    assert np.all(np.diff(factors) > 0)
    assert factors[-1] < 1.05


def test_gpus_wait_for_slower_ones_where_the_limit_holds():
    limit_w = GPU.throttling_power_w
    shares = [held_share(GPU, replace(COST, energy_j=limit_w * part)) for part in (1.0, 0.98, 0.9, 0.5)]
    assert shares[0] == 1
    assert np.all(np.diff(shares) < 0)
    assert slowest_of(512, shares[-1]) == 1
    assert 1 < slowest_of(512, shares[1]) < slowest_of(512)


def test_less_fused_software_takes_longer_and_draws_more():
    nemo = IterationSubjects((), CONFIG).of(LLAMA).software
    plain = replace(nemo, traffic=1.0, attention_slowdown=1.0)
    assert of_software(COST, plain, GPU) == COST
    slow = of_software(COST, replace(plain, traffic=2.0), GPU)
    assert slow.gpu_s == pytest.approx(1.2)
    assert slow.energy_j == pytest.approx(560.0)


def test_older_attention_is_slower_on_hopper_alone():
    nemo = replace(IterationSubjects((), CONFIG).of(LLAMA).software, traffic=1.0, attention_slowdown=1.0)
    old = replace(nemo, hopper_attention=False)
    assert of_software(COST, old, GPU).gpu_s == pytest.approx(1.18)
    assert of_software(COST, old, replace(GPU, sm_count=108)).gpu_s == pytest.approx(1.0)


def test_odd_products_take_three_times_as_long():
    plain = replace(IterationSubjects((), CONFIG).of(LLAMA).software, traffic=1.0, attention_slowdown=1.0)
    assert of_software(replace(COST, odd_products_s=0.1), plain, GPU).gpu_s == pytest.approx(1.2)


def _odd_s(shape, name="up"):
    product = Operator(
        name=name,
        kind=OperatorKind.GEMM,
        shape=shape,
        flops=2 * math.prod(shape),
        bytes_read=0,
        bytes_written=0,
        kernels=1,
    )
    return pass_cost(GPU, [Step(operators=(product,))], {}).odd_products_s


@pytest.mark.parametrize(
    ("odd", "even", "name"),
    [
        ((4096, 50257, 1024), (4095, 50258, 1024), "head"),
        ((4096, 1024, 50257), (4095, 1024, 50258), "head.dgrad"),
        ((50257, 1024, 4096), (50258, 1024, 4095), "head.wgrad"),
    ],
)
def test_lengths_of_rows_are_odd_and_numbers_of_tokens_are_not(odd, even, name):
    assert _odd_s(odd, name) > 0
    assert _odd_s(even, name) == 0


def test_nothing_hides_collectives_of_traces():
    plain = replace(IterationSubjects((), CONFIG).of(LLAMA).software, traffic=1.0, attention_slowdown=1.0)
    slow = of_software(COST, replace(plain, collective_slowdown=2.0), GPU)
    assert (slow.gpu_s, slow.exposed_s) == (pytest.approx(1.1), pytest.approx(0.2))
    traced = of_software(COST, replace(plain, collective_slowdown=2.0, accounting=Accounting.TRACES), GPU)
    assert (traced.gpu_s, traced.exposed_s) == (pytest.approx(1.2), pytest.approx(0.3))


def test_parts_of_traces_wait_for_the_host_by_themselves():
    workload = IterationSubjects((), CONFIG).of(replace(LLAMA, pp=1, chunks=1)).workload
    software = replace(IterationSubjects((), CONFIG).of(LLAMA).software, host_launch_s=0.001, host_collective_s=0.0)
    blocks = replace(COST, gpu_s=0.1, launches=1000)  # a second of the host
    head = replace(COST, launches=1)  # a second of the GPU
    passes = {((0, 0), direction): [blocks, head] for direction in TRACED}
    together = host_slowdown(workload, software, passes, 0)[Direction.FORWARD]
    apart = host_slowdown(workload, replace(software, accounting=Accounting.TRACES), passes, 0)[Direction.FORWARD]
    assert 1.0 < 1.1 * together < 1.3
    assert 1.1 * apart == pytest.approx(2.0, rel=1e-3)


def test_stages_of_traces_have_blocks_and_the_rest():
    software = replace(IterationSubjects((), CONFIG).of(LLAMA).software, accounting=Accounting.TRACES)
    blocks = StageShape(layers=4, first=False, last=False)
    assert parts_of(replace(blocks, last=True), software) == [blocks, replace(blocks, layers=0, last=True)]
    assert parts_of(blocks, software) == [blocks]


def test_the_limit_holds_the_mean_of_a_pass():
    power_w = np.linspace(300.0, 900.0, len(CLOCK_GRID))
    assert _limited_clock(CLOCK_GRID, power_w, 1000.0) == 1.0
    clock = _limited_clock(CLOCK_GRID, power_w, 700.0)
    assert np.interp(clock, CLOCK_GRID, power_w) == pytest.approx(700.0)


def test_products_of_blocks_are_cast_to_fp8():
    product = Operator(
        name="up", kind=OperatorKind.GEMM, shape=(64, 128, 32), flops=2 * 64 * 128 * 32,
        bytes_read=2 * 32 * (64 + 128), bytes_written=2 * 64 * 128, kernels=1,
    )  # fmt: skip
    graph = in_fp8(_graph(product))
    (found,) = graph.forward[0].operators
    assert isinstance(found, Fp8Product)
    assert found.bytes_read == product.bytes_read // 2
    assert (found.copies, found.copied_bytes) == (1, 4 * 64 * 32)
    assert graph.head_forward[0].operators == (product,)


def test_softmax_that_is_not_one_kernel_is_six():
    softmax = Operator(
        name="softmax", kind=OperatorKind.MEMORY, shape=(2, 4, 8, 8), flops=0, bytes_read=1024, bytes_written=1024,
        kernels=1,
    )  # fmt: skip
    (single,) = unfused.in_single_kernels(_graph(softmax)).forward[0].operators
    assert (single.kernels, single.bytes_read) == (unfused.SINGLE_KERNELS, unfused.SINGLE_TRAFFIC * 1024)


def test_dropout_of_the_stream_writes_and_reads_a_mask():
    norm = Operator(
        name="norm", kind=OperatorKind.MEMORY, shape=(2, 8, 16), flops=0, bytes_read=1024, bytes_written=1024, kernels=1
    )
    graph = unfused.with_stream_dropout(_graph(norm))
    (forward,), (backward,) = graph.forward[0].operators, graph.backward[0].operators
    assert (forward.kernels, forward.bytes_read, forward.bytes_written) == (1, 1024, 1024 + 256)
    assert (backward.kernels, backward.bytes_read, backward.bytes_written) == (2, 1024 + 512 + 256, 1024 + 512)


def test_hosts_that_make_each_microbatch_hold_up_forwards():
    subject = IterationSubjects((), CONFIG).of(replace(LLAMA, layers=2, pp=1, cp=1, tp=1, chunks=1, dp=64))
    held = replace(subject, software=replace(subject.software, host_microbatch_s=0.01))
    fast, slow = (Predictor().predict(own) for own in (subject, held))
    assert slow.host_s - fast.host_s == pytest.approx(0.01 * subject.workload.num_microbatches)
