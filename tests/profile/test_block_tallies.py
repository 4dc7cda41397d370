"""The cost of an instruction of many equal blocks is that of its program, whatever runs beside blocks."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.builders import CONFIG

from kareus.gpu_model.model import (
    REPEATING,
    KnownSteps,
    PartSums,
    Sums,
    Tally,
    operators_alone,
    run_sums,
    run_tally,
    tally,
)
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, BlockGraph, Direction
from kareus.partition.extract import operator_graphs
from kareus.profile.programs import Execution, StageShape, instruction_program, weights_of
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve

LAYOUTS = (
    "software=megatron-core parallelism.tp=4",
    "software=megatron-core parallelism.tp=4 parallelism.sequence_parallel=true",
    "software=megatron-core parallelism.tp=2 parallelism.cp=2",
    "software=torchtitan parallelism.tp=2 parallelism.sequence_parallel=true parallelism.sharding=full",
    "software=llm-foundry parallelism.sharding=full parallelism.tp=1",
    "software=kareus parallelism.sharding=gradients parallelism.tp=1",
)


CLOCKS = np.array([900.0, 1410.0, 1980.0])
STEPS: dict[str, KnownSteps] = {}
"""Costs of steps by layout."""


@cache
def workload(layout: str) -> Workload:
    layout = f"{layout} model=llama3.1-8b gpu=h100-sxm5-80gb parallelism.dp=8 parallelism.pp=1 microbatch_size=2"
    (one,) = resolve([*layout.split(), "recomputation=full"], CONFIG)
    assert one.workload is not None, one.refusal
    return one.workload


@cache
def graphs(layout: str) -> dict[Batch, BlockGraph]:
    return operator_graphs(workload(layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("recomputation", Recomputation)
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_many_blocks_cost_what_their_program_costs(layout, recomputation, direction):
    own = workload(layout)

    def counted(layers: int, *, first: bool, last: bool) -> Tally:
        shape = StageShape(layers=layers, first=first, last=last)
        program = instruction_program(
            graphs(layout),
            shape,
            direction,
            Execution.SEQUENTIAL,
            recomputation=recomputation,
            default_sm_count=own.default_collective_sm_count,
            software=own.software,
            weights=weights_of(own, 0, shape, own.default_collective_sm_count),
        )
        return tally(program)

    for ends in ({"first": True, "last": False}, {"first": False, "last": True}, {"first": False, "last": False}):
        more, fewer = (counted(blocks, **ends) for blocks in (REPEATING, REPEATING - 1))
        costs = STEPS.setdefault(layout, {})
        blocks = PartSums(own.gpu, more.blocks, CLOCKS, costs, fewer.blocks)
        sums = Sums(blocks, PartSums(own.gpu, more.outer, CLOCKS, costs), whole_instruction=True)
        for layers in (4, 5, 11):
            whole = run_tally(own.gpu, counted(layers, **ends), CLOCKS, STEPS[layout])
            made = run_sums(own.gpu, sums, CLOCKS, layers - REPEATING)
            assert (made.time_s == whole.time_s).all(), (layers, ends)
            assert (made.energy_j == whole.energy_j).all(), (layers, ends)
        each = [run_sums(own.gpu, sums, CLOCKS, more) for more in (0, 1, 7)]
        together = run_sums(own.gpu, sums, CLOCKS, np.array([0, 1, 7]))
        assert (together.time_s == [one.time_s for one in each]).all(), ends
        assert (together.energy_j == [one.energy_j for one in each]).all(), ends


def test_without_collectives_every_operator_stays():
    own = workload(LAYOUTS[1])
    program = instruction_program(
        graphs(LAYOUTS[1]),
        StageShape(layers=2, first=True, last=True),
        Direction.BACKWARD,
        Execution.SEQUENTIAL,
        recomputation=Recomputation.NONE,
        default_sm_count=own.default_collective_sm_count,
        software=own.software,
    )
    counted = tally(program)
    alone = Tally(operators_alone(counted.blocks), operators_alone(counted.outer), whole_instruction=True)
    assert all(step.collective is None for step in alone.steps)
    flops = [sum(n * o.flops for step, n in one.steps.items() for o in step.operators) for one in (counted, alone)]
    assert flops[0] == flops[1] > 0
    gpu = replace(own.gpu, job_gpus=1)
    faster, slower = (run_tally(gpu, one, gpu.maximum_clock_mhz, {}).time_s for one in (alone, counted))
    assert faster < slower
