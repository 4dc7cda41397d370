"""Collectives beside matrix products and attention, as other software overlaps them."""

from dataclasses import replace

from helpers.builders import CONFIG
from helpers.iterations import LLAMA

from kareus.fidelity.iterations.overlaps import overlapped, placed
from kareus.fidelity.iterations.predict import Predictor
from kareus.fidelity.iterations.workloads import IterationSubjects
from kareus.graph.program import Step
from kareus.graph.records import Collective, CollectiveKind, Operator, OperatorKind, PlacedCollective
from kareus.workload.software import TensorOverlap, read_software

NEMO = read_software("nemo", CONFIG)
GATHER = Collective(kind=CollectiveKind.ALL_GATHER, group="tp", group_size=4, message_bytes=4096, fused=1)
SCATTER = replace(GATHER, kind=CollectiveKind.REDUCE_SCATTER)


def _operator(name, kind):
    return Operator(name=name, kind=kind, shape=(8, 8, 8), flops=1, bytes_read=1, bytes_written=1, kernels=1)


NORM, PRODUCT, LAST = (
    _operator("norm", OperatorKind.MEMORY),
    _operator("qkv", OperatorKind.GEMM),
    _operator("projection", OperatorKind.GEMM),
)
STEPS = [
    Step(operators=(NORM,), collective=GATHER, launch=1, sm_count=24),
    Step(operators=(PRODUCT, LAST), collective=SCATTER, launch=2, sm_count=24),
]


def test_a_gather_runs_beside_the_product_that_reads_it():
    found = overlapped(STEPS, NEMO)
    assert found[0] == Step(operators=(NORM,))
    assert found[1] == Step(operators=(PRODUCT,), collective=GATHER, sm_count=24)


def test_a_scatter_runs_beside_its_product_but_for_the_last_part():
    found = overlapped(STEPS, NEMO)
    assert found[2] == Step(operators=(LAST,), collective=SCATTER, sm_count=24)
    assert found[3].operators == ()
    assert found[3].collective == replace(SCATTER, message_bytes=1024)


def test_all_operators_run_once_and_in_order():
    found = overlapped(STEPS, NEMO)
    assert [o for step in found for o in step.operators] == [o for step in STEPS for o in step.operators]


def test_software_without_overlap_keeps_the_steps():
    alone = replace(NEMO, tensor_overlap=TensorOverlap.NONE, gather_beside_dgrad=False)
    assert overlapped(STEPS, alone) == STEPS


def test_megatron_gathers_inputs_beside_input_gradients():
    both = replace(GATHER, fused=2, message_bytes=8192)
    dgrad, wgrad = (_operator(f"up.{which}", OperatorKind.GEMM) for which in ("dgrad", "wgrad"))
    steps = [
        Step(operators=(NORM,), collective=both, launch=1, sm_count=24),
        Step(operators=(LAST,)),
        Step(operators=(PRODUCT, dgrad, wgrad), collective=SCATTER, launch=2, sm_count=24),
    ]
    megatron = replace(NEMO, tensor_overlap=TensorOverlap.NONE)
    assert overlapped(steps, megatron) == [
        Step(operators=(NORM,), collective=GATHER, launch=1, sm_count=24),
        Step(operators=(LAST,)),
        Step(operators=(PRODUCT,)),
        Step(operators=(dgrad,), collective=GATHER, sm_count=24),
        Step(operators=(wgrad,), collective=SCATTER, sm_count=24),
    ]
    assert overlapped(steps, replace(megatron, gather_beside_dgrad=False)) == steps


def test_sequence_parallelism_is_not_slower_in_megatron():
    row = replace(
        LLAMA, family="megatron", gpu="a100-sxm4-80gb", layers=4, hidden=6144, ffn=24576, heads=64, kv_heads=64,
        vocab=51200, mlp="gelu", norm="layernorm", position="learned", attention="unfused", dp=1, pp=1, tp=8, cp=1,
        chunks=1, microbatch_size=4, num_microbatches=1, seq_len=2048, precision="fp16", tp_overlap="none",
    )  # fmt: skip
    subjects, predictor = IterationSubjects((), CONFIG), Predictor()
    for recompute in ("none", "selective", "full"):
        shared, whole = (
            predictor.predict(subjects.of(replace(row, recompute=recompute, sequence_parallel=shared)))
            for shared in (True, False)
        )
        assert shared.time_s <= whole.time_s, recompute


def test_context_parallel_ranks_may_lie_on_several_nodes():
    keys = replace(GATHER, group="cp", group_size=2)
    (step,) = placed([Step(collective=keys, sm_count=24)], 2)
    assert isinstance(step.collective, PlacedCollective)
    assert (step.collective.nodes, step.collective.per_node) == (2, 1)
    assert placed(STEPS, 2) == STEPS
