"""Parameters of the parts of a model: those of the memory estimate, divided up."""

import pytest
from helpers.builders import CONFIG

from kareus.update.costs import stage_parameters
from kareus.workload import memory
from kareus.workload.resolve import resolve_accepted


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["parallelism.pp=1", "microbatch_size=1"],
        ["model=qwen3-1.7b", "parallelism=cp2tp4"],
        ["model=llama3.3-70b", "parallelism=pp10tp8", "microbatch_size=1"],
    ],
    ids="-".join,
)
def test_parts_add_up_to_what_memory_holds(overrides):
    (workload,) = resolve_accepted(overrides, CONFIG).values()
    for stage, layers in enumerate(workload.parallelism.split):
        held = memory.stage_parameters(workload.model, workload.parallelism, stage, layers)
        assert stage_parameters(workload, stage) == held
