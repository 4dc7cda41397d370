"""Probes are programs that the testbed of real GPUs can launch, and no two are alike."""

import pytest
from helpers.builders import a100

from kareus.calibrate.heat import LOAD
from kareus.calibrate.probes import ProbeKind, attention, probes
from kareus.calibrate.rehearsal import unmeasured
from kareus.graph.records import Operator, OperatorKind
from kareus.profile.measure import identity_of
from kareus.testbed.cuda.memory_bound import call_of
from kareus.testbed.cuda.operators import _check_flops

EVERY = [*probes(8), *unmeasured(8)]


def operators(kind: OperatorKind) -> set[Operator]:
    steps = [*(step for probe in EVERY for step in probe.program.steps), *LOAD.steps]
    return {operator for step in steps for operator in step.operators if operator.kind is kind}


def test_memory_bound_operators_are_functions_of_the_model():
    names = {call_of(operator).name for operator in operators(OperatorKind.MEMORY)}
    assert names == {"residual_norm", "swiglu"}


@pytest.mark.parametrize("kind", [OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD])
def test_attention_counts_the_flops_that_kernels_compute(kind):
    for operator in operators(kind):
        _check_flops(operator, None)


def test_attention_of_a_probe_is_as_extraction_counts_it():
    forward, backward = (attention((2, 8, 2, 1024, 128), backward=own) for own in (False, True))
    queries, keys, scales = 2 * 2 * 1024 * 8 * 128, 2 * 2 * 1024 * 2 * 128, 4 * 2 * 8 * 1024
    assert forward.bytes_read == queries + 2 * keys
    assert forward.bytes_written == queries + scales
    assert backward.bytes_written == forward.bytes_read


def test_no_two_probes_are_alike():
    assert len({identity_of(probe.program) for probe in EVERY}) == len(EVERY)
    assert len({probe.program.name for probe in probes(8)}) == len(probes(8))


def test_collectives_leave_sms_to_kernels_on_every_gpu():
    taken = [step.sm_count for probe in EVERY for step in probe.program.steps]
    assert max(taken) < a100().sm_count / 2
    assert {probe.kind for probe in EVERY} == set(ProbeKind) - {ProbeKind.PARTITION}
