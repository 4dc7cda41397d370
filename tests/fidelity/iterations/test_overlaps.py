"""Collectives beside matrix products and attention, as other software overlaps them."""

from dataclasses import replace

from helpers.builders import CONFIG

from kareus.fidelity.iterations.overlaps import overlapped, placed
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
    assert overlapped(STEPS, replace(NEMO, tensor_overlap=TensorOverlap.NONE)) == STEPS


def test_context_parallel_ranks_may_lie_on_several_nodes():
    keys = replace(GATHER, group="cp", group_size=2)
    (step,) = placed([Step(collective=keys, sm_count=24)], 2)
    assert isinstance(step.collective, PlacedCollective)
    assert (step.collective.nodes, step.collective.per_node) == (2, 1)
    assert placed(STEPS, 2) == STEPS
