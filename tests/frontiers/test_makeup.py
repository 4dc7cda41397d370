"""What an overlapped instruction consists of, and what isolated parts miss of it."""

import numpy as np
import pytest
from helpers.builders import a100, graphs, software
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import StageInputError
from kareus.frontiers.makeup import ExecutionCost, Makeup, cost_of_parts, missed_costs, overlap_makeup
from kareus.gpu_model.model import run_program
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import TRACED, Batch, Direction
from kareus.partition.detect import detect_partitions
from kareus.profile.programs import (
    Execution,
    StageShape,
    component_programs,
    default_partition_program,
    instruction_program,
)

ONE = Makeup(partitions={"p": 1}, edges={}, outer={})
INNER = StageShape(layers=3, first=False, last=False)
CLOCKS_MHZ = np.array([900.0, 1410.0])


def makeup(direction, *, recomputation=Recomputation.STAGE, shape=INNER):
    both = graphs()
    return overlap_makeup(both[Batch.NANOBATCH], both[Batch.MICROBATCH], shape, direction, recomputation=recomputation)


def test_a_forward_has_each_partition_twice_a_block_inside():
    """A.1 B.1 A.2 B.2 over 3 blocks is 12 segments; the first runs alone, and the last collective too."""
    found = makeup(Direction.FORWARD)
    assert dict(found.partitions) == {"forward-attention-allreduce": 5, "forward-mlp-allreduce": 6}
    assert dict(found.edges) == {"forward-attention-alone": 1, "forward-allreduce-alone": 1}


def test_a_checkpointed_backward_has_recomputed_partitions_too():
    found = makeup(Direction.BACKWARD)
    assert dict(found.partitions) == {
        "forward-attention-allreduce": 5,
        "forward-mlp-allreduce": 6,
        "backward-mlp-allreduce": 6,
        "backward-attention-allreduce": 6,
    }
    assert dict(found.edges) == {"forward-attention-alone": 1, "backward-allreduce-alone": 1}


def test_an_uncheckpointed_backward_starts_with_its_own_segment():
    found = makeup(Direction.BACKWARD, recomputation=Recomputation.NONE)
    assert dict(found.partitions) == {"backward-mlp-allreduce": 5, "backward-attention-allreduce": 6}
    assert dict(found.edges) == {"backward-mlp-alone": 1, "backward-allreduce-alone": 1}


def test_the_last_stage_adds_the_head():
    found = makeup(Direction.FORWARD, shape=StageShape(layers=3, first=False, last=True))
    assert found.outer["forward-head"] == 1


def costs_of(programs):
    """What programs cost on the GPU model."""
    ran = {name: run_program(a100(), program, CLOCKS_MHZ) for name, program in programs.items()}
    return {
        name: {int(f): ExecutionCost(t, e) for f, t, e in zip(CLOCKS_MHZ, b.time_s, b.energy_j, strict=True)}
        for name, b in ran.items()
    }


@pytest.mark.parametrize("direction", TRACED)
@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.FULL, Recomputation.STAGE])
def test_default_nanobatching_tells_what_isolation_misses(direction, recomputation):
    """The GPU model has an overhead of blocks, which parts measured alone do not show."""
    both, shape = graphs(), StageShape(layers=3, first=True, last=True)
    rest = {"recomputation": recomputation}
    found = detect_partitions(both[Batch.NANOBATCH], **rest)
    partitions = {partition.name: default_partition_program(partition, 24) for partition in found}
    whole = instruction_program(
        both, shape, direction, Execution.NANOBATCHING, default_sm_count=24, software=software(), **rest
    )
    costs = costs_of(component_programs(both, 24, TRACED, **rest) | partitions | {"whole": whole})
    own = makeup(direction, recomputation=recomputation, shape=shape)
    missed = missed_costs(own, costs, costs["whole"])
    for clock in map(int, CLOCKS_MHZ):
        alone = cost_of_parts({**own.partitions, **own.edges, **own.outer}, costs, clock)
        assert alone.time_s + missed[clock].time_s == pytest.approx(costs["whole"][clock].time_s, rel=0.01)
        assert alone.energy_j + missed[clock].energy_j == pytest.approx(costs["whole"][clock].energy_j, rel=0.01)


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_what_isolation_misses_is_the_rest_of_the_whole(time, energy):
    parts = {"p": {900: ExecutionCost(0.01, 3.0)}, "e": {900: ExecutionCost(0.005, 1.0)}}
    parts |= {"o": {900: ExecutionCost(0.002, 0.5)}}
    own = Makeup(partitions={"p": 4}, edges={"e": 2}, outer={"o": 1})
    missed = missed_costs(own, parts, {900: ExecutionCost(0.052 * time, 14.5 * energy)})[900]
    assert missed.time_s == pytest.approx(0.052 * (time - 1), abs=1e-12)
    assert missed.energy_j == pytest.approx(14.5 * (energy - 1), abs=1e-12)


def test_a_few_clocks_tell_the_share_of_all():
    """The larger instruction at the lower clock counts for more, as its noise does."""
    parts = {"p": {900: ExecutionCost(0.03, 3.0), 1410: ExecutionCost(0.01, 3.0)}}
    whole = {mhz: ExecutionCost(time_s, 3.0) for mhz, time_s in ((900, 0.036), (1200, 0.025), (1410, 0.014))}
    missed = missed_costs(ONE, parts, whole)
    assert [missed[mhz].time_s for mhz in whole] == pytest.approx([0.0072, 0.005, 0.0028])


def test_what_is_missed_is_as_uncertain_as_what_it_is_made_of():
    """Relative errors of 0.4 and 0.3 % of time, of 1.2 and 0.5 % of energy."""
    parts = {"p": {900: ExecutionCost(0.01, 3.0, 4e-5, 0.036)}}
    whole = {900: ExecutionCost(0.0125, 3.6, 3.75e-5, 0.018)}
    missed = missed_costs(ONE, parts, whole)[900]
    assert missed.time_error_s == pytest.approx(0.01 * 0.005)
    assert missed.energy_error_j == pytest.approx(3.0 * 0.013)


def test_errors_of_one_part_add_up_over_clocks():
    """They share the error of the level of its curve; those of other parts are independent."""
    parts = {name: {f: ExecutionCost(0.01, 3.0, 3e-5, 0.03) for f in (900, 1410)} for name in "pq"}
    whole = {f: ExecutionCost(0.02, 6.0) for f in (900, 1410)}
    missed = missed_costs(Makeup(partitions={"p": 1, "q": 1}, edges={}, outer={}), parts, whole)[900]
    assert missed.time_error_s == pytest.approx(2**0.5 * 3e-5)
    assert missed.energy_error_j == pytest.approx(2**0.5 * 0.03)


def test_partitions_that_were_measured_at_different_clocks_tell_nothing():
    parts = {"p": {900: ExecutionCost(0.01, 3.0)}, "q": {1410: ExecutionCost(0.01, 3.0)}}
    whole = {mhz: ExecutionCost(0.05, 14.0) for mhz in (900, 1410)}
    with pytest.raises(StageInputError, match=r"components: p, q: not measured .* rerun the stage 'profile'"):
        missed_costs(Makeup(partitions={"p": 1, "q": 1}, edges={}, outer={}), parts, whole)
