"""Collectives beside matrix products and attention, as other software overlaps them."""

from dataclasses import replace

import pytest
from helpers.builders import a100, gemm, software

from kareus.gpu_model.model import run_program
from kareus.graph.records import Collective, CollectiveKind, Operator, OperatorKind, Program, Step
from kareus.software.record import Dispatcher, TensorOverlap
from kareus.software.steps import overlapped

CORE = software("megatron-core")
GATHER = Collective(kind=CollectiveKind.ALL_GATHER, group="tp", group_size=4, message_bytes=4096, fused=1)
SCATTER = replace(GATHER, kind=CollectiveKind.REDUCE_SCATTER)


def operator(name, kind):
    return Operator(name=name, kind=kind, shape=(8, 8, 8), flops=1, bytes_read=1, bytes_written=1, kernels=1)


NORM, PRODUCT, LAST = (
    operator("norm", OperatorKind.MEMORY),
    operator("qkv", OperatorKind.GEMM),
    operator("projection", OperatorKind.GEMM),
)
STEPS = [
    Step(operators=(NORM,), collective=GATHER, launch=1, sm_count=24),
    Step(operators=(PRODUCT, LAST), collective=SCATTER, launch=2, sm_count=24),
]


def test_a_gather_runs_beside_the_product_that_reads_it():
    found = overlapped(STEPS, CORE)
    assert found[0] == Step(operators=(NORM,))
    assert found[1] == Step(operators=(PRODUCT,), collective=GATHER, sm_count=24)


def test_a_scatter_runs_beside_its_product_but_for_the_last_part():
    found = overlapped(STEPS, CORE)
    assert found[2] == Step(operators=(LAST,), collective=SCATTER, sm_count=24)
    assert found[3].operators == ()
    assert found[3].collective == replace(SCATTER, message_bytes=1024)


def test_alloperators_run_once_and_in_order():
    found = overlapped(STEPS, CORE)
    assert [o for step in found for o in step.operators] == [o for step in STEPS for o in step.operators]


def test_software_without_overlap_keeps_the_steps():
    alone = replace(CORE, tensor_overlap=TensorOverlap.NONE, gather_beside_dgrad=False)
    assert overlapped(STEPS, alone) == STEPS


def test_megatron_gathers_inputs_beside_input_gradients():
    both = replace(GATHER, fused=2, message_bytes=8192)
    dgrad, wgrad = (operator(f"up.{which}", OperatorKind.GEMM) for which in ("dgrad", "wgrad"))
    steps = [
        Step(operators=(NORM,), collective=both, launch=1, sm_count=24),
        Step(operators=(LAST,)),
        Step(operators=(PRODUCT, dgrad, wgrad), collective=SCATTER, launch=2, sm_count=24),
    ]
    megatron = replace(CORE, tensor_overlap=TensorOverlap.NONE)
    assert overlapped(steps, megatron) == [
        Step(operators=(NORM,), collective=GATHER, launch=1, sm_count=24),
        Step(operators=(LAST,)),
        Step(operators=(PRODUCT,)),
        Step(operators=(dgrad,), collective=GATHER, sm_count=24),
        Step(operators=(wgrad,), collective=SCATTER, sm_count=24),
    ]
    assert overlapped(steps, replace(megatron, gather_beside_dgrad=False)) == steps


TOKENS = 16384
LARGE = replace(GATHER, message_bytes=2 * TOKENS * 4096)
BLOCK = [
    Step(operators=(gemm("projection", TOKENS, 4096, 1024),), collective=LARGE, launch=1, sm_count=24),
    Step(operators=(gemm("up", TOKENS, 4096, 4096), gemm("down", TOKENS, 4096, 4096)), sm_count=24),
    Step(
        operators=(gemm("qkv", TOKENS, 4096, 4096),),
        collective=replace(LARGE, kind=CollectiveKind.REDUCE_SCATTER),
        launch=1,
        sm_count=24,
    ),
]
ATTENDING = replace(
    gemm("attention", TOKENS, 1, 1), kind=OperatorKind.ATTENTION, shape=(2, 16, 16, 8192, 8192, 128),
    flops=2 * 2 * 2 * 16 * 8192 * 8192 * 128 // 2,
)  # fmt: skip
KEYS = replace(LARGE, group="cp", group_size=2, fused=2)


def time_s(steps):
    """Seconds where neither the host nor power hold the GPU up."""
    gpu = a100(power_limit_w=10_000)
    gpu = replace(gpu, coefficients=replace(gpu.coefficients, host_launch_s=0.0))
    return float(run_program(gpu, Program(name="test", steps=tuple(steps), blocks=None), 1410.0).time_s)


def alone_s(steps):
    """Seconds of operators and of collectives by themselves."""
    apart = [Step(operators=(o,)) for step in steps for o in step.operators]
    apart += [Step(collective=step.collective, sm_count=step.sm_count) for step in steps if step.collective]
    return time_s(apart)


def test_where_nothing_hides_all_take_what_they_take_alone():
    """Also the all-reduce that Megatron runs beside a weight gradient."""
    reduce = replace(LARGE, kind=CollectiveKind.ALL_REDUCE)
    beside = Step(
        operators=(gemm("up.dgrad", TOKENS, 4096, 4096), gemm("up.wgrad", 4096, 4096, TOKENS)),
        collective=reduce,
        launch=1,
        sm_count=24,
    )
    steps = [*BLOCK, beside]
    nothing = replace(CORE, tensor_overlap=TensorOverlap.NOTHING)
    assert time_s(overlapped(steps, nothing)) == pytest.approx(alone_s(steps))
    assert time_s(overlapped(steps, replace(CORE, tensor_overlap=TensorOverlap.NONE))) < alone_s(steps)


def test_userbuffers_hide_collectives_of_tensor_parallelism():
    none, hidden = (time_s(overlapped(BLOCK, replace(CORE, tensor_overlap=one))) for one in list(TensorOverlap)[1:])
    assert none == pytest.approx(alone_s(BLOCK))
    computing_s = time_s([Step(operators=step.operators) for step in BLOCK])
    assert computing_s < hidden < computing_s + 0.7 * (none - computing_s)


def test_ring_attention_hides_keys_and_values():
    steps = [
        Step(operators=(gemm("qkv", TOKENS, 4096, 4096),), collective=KEYS, launch=1, sm_count=24),
        Step(operators=(ATTENDING,)),
    ]
    waiting, hidden = (time_s(overlapped(steps, replace(CORE, context_overlap=one))) for one in (False, True))
    assert waiting == pytest.approx(alone_s(steps))
    computing_s = time_s([Step(operators=step.operators) for step in steps])
    assert computing_s < hidden < computing_s + 0.7 * (waiting - computing_s)


EXCHANGE = replace(GATHER, kind=CollectiveKind.ALL_TO_ALL, group="ep")
DOWN, DOWN_LATER = (operator(f"down.{which}", OperatorKind.GEMM) for which in ("dgrad", "wgrad"))
QKV, QKV_LATER = (operator(f"qkv.{which}", OperatorKind.GEMM) for which in ("dgrad", "wgrad"))
BACKWARD = [
    Step(operators=(DOWN, DOWN_LATER), collective=EXCHANGE, launch=2, sm_count=24),
    Step(operators=(QKV, QKV_LATER)),
    Step(operators=(NORM,), collective=EXCHANGE, launch=1, sm_count=24),
    Step(operators=(PRODUCT, LAST), collective=SCATTER, launch=2, sm_count=24),
    Step(operators=(QKV_LATER,)),
]
ALONE = replace(CORE, tensor_overlap=TensorOverlap.NONE, gather_beside_dgrad=False)


def test_delayed_weight_gradients_run_beside_the_next_exchange():
    found = overlapped(BACKWARD, replace(ALONE, delayed_weight_gradients=True))
    assert found == [
        replace(BACKWARD[0], launch=1),
        Step(operators=(QKV,)),
        replace(BACKWARD[2], operators=(NORM, QKV_LATER)),
        BACKWARD[3],
        Step(operators=(QKV_LATER,)),
    ]
    both = overlapped(BACKWARD, replace(ALONE, delayed_weight_gradients=True, hidden_exchange=1.0))
    assert [step.launch for step in both if step.collective is not None] == [0, 0, 2]


@pytest.mark.parametrize(
    ("dispatcher", "given", "count"),
    [("alltoall", None, 24), ("alltoall", 8, 8), ("flex", None, 20), ("flex", 32, 32)],
)
def test_an_exchange_takes_the_sms_of_its_dispatcher(dispatcher, given, count):
    own = replace(ALONE, dispatcher=Dispatcher(dispatcher), dispatch_sms=given)
    found = overlapped(BACKWARD, own)
    assert [step.sm_count for step in found if step.collective is not None] == [count, count, 24]
    assert [step.operators for step in found] == [step.operators for step in BACKWARD]
