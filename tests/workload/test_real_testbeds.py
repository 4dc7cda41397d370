"""Configuring a testbed of real GPUs."""

import pytest

from kareus.errors import ConfigError
from kareus.workload.resolve import resolve_accepted

CUDA = ["testbed=cuda", "gpu=h200"]


def resolved(*overrides):
    (workload,) = resolve_accepted(overrides).values()
    return workload


def test_default_clocks_leave_the_maximum_to_plan_with():
    assert resolved(*CUDA, "testbed.cuda.clocks=default").gpu.search_frequencies.clocks_mhz == (1980,)
    assert len(resolved(*CUDA).gpu.search_frequencies.clocks_mhz) > 1


@pytest.mark.parametrize(
    ("overrides", "gpus"),
    [
        (["testbed=simulated"], 0),
        (CUDA, 8),
        ([*CUDA, "parallelism=cp2tp4"], 8),
        ([*CUDA, "testbed.cuda.collectives=mscclpp"], 8),
        ([*CUDA, "testbed.cuda.collectives=loopback"], 1),
    ],
)
def test_a_job_that_measures_takes_the_gpus_of_a_stages_groups(overrides, gpus):
    assert resolved(*overrides).gpus_to_measure == gpus


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["testbed.kind=cuda"], "testbed: cuda: give collectives, clocks and pool where kind is cuda."),
        ([*CUDA, "testbed.kind=simulated"], "testbed: cuda: must be null where kind is simulated."),
        ([*CUDA, "testbed.cuda.clocks=fast"], "testbed.cuda.clocks: 'fast' is not known; allowed: default, locked."),
        (
            ["testbed.cuda.clocks=default"],
            "testbed.cuda.clocks=default: testbed=simulated has no cuda; choose an option of testbed that has it.",
        ),
    ],
)
def test_a_testbed_that_is_half_real_is_refused(overrides, said):
    with pytest.raises(ConfigError) as refused:
        resolved(*overrides)
    assert str(refused.value) == said
