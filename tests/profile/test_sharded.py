"""Sharded weights are gathered a block ahead and reduced a block behind, each as often as a block runs."""

import dataclasses
from collections import Counter
from functools import cache

import numpy as np
import pytest
from helpers.builders import CONFIG, software

from kareus.gpu_model.overlap import step_phases
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    Batch,
    BlockGraph,
    CollectiveKind,
    Direction,
    PlacedCollective,
    Program,
    Scope,
    Step,
    SwitchedGather,
)
from kareus.model.parallelism import Sharding
from kareus.model.parameters import expert_parameters, scope_parameters
from kareus.partition.extract import extract
from kareus.plans.exchanges import with_fsdp
from kareus.prediction.workload_prediction import instruction_programs, predict
from kareus.profile.programs import Execution, StageShape, instruction_program, weights_of
from kareus.profile.sharded import NVLS_SMS
from kareus.workload.config import Workload
from kareus.workload.memory import stage_memory
from kareus.workload.resolve import checked_but_for_memory, resolve

LAYERS = 4
WHOLE = StageShape(layers=LAYERS, first=True, last=True)
LAYOUT = ("gpu=h100-sxm5-80gb", "software=kareus", "parallelism.pp=1", "microbatch_size=2")


@cache
def workload(sharding: str, tp: int = 1, dp: int = 16) -> Workload:
    changes = [f"parallelism.tp={tp}", f"parallelism.dp={dp}"]
    (one,) = resolve([*LAYOUT, "recomputation=full", f"parallelism.sharding={sharding}", *changes], CONFIG)
    assert one.workload is not None, one.refusal
    return one.workload


@cache
def graphs(tp: int) -> dict[Batch, BlockGraph]:
    own = workload("full", tp)
    return extract(own.model, own.parallelism, own.microbatch_size, own.sequence_length)


def program(
    sharding: str, direction: Direction, recomputation: Recomputation = Recomputation.NONE, tp: int = 1
) -> Program:
    own = workload(sharding, tp)
    return instruction_program(
        graphs(tp),
        WHOLE,
        direction,
        Execution.SEQUENTIAL,
        recomputation=recomputation,
        default_sm_count=20,
        software=software("kareus"),
        weights=weights_of(own, 0, WHOLE, 20),
    )


def exchanged(made: Program) -> Counter[tuple[CollectiveKind, int]]:
    found = [step.collective for step in made.steps if isinstance(step.collective, PlacedCollective)]
    assert all(c.group == "dp" and c.nodes * c.per_node == c.group_size for c in found)
    return Counter((c.kind, c.message_bytes) for c in found)


@pytest.mark.parametrize("recomputation", [r for r in Recomputation if r is not Recomputation.STAGE])
def test_each_block_is_gathered_and_reduced_once_a_pass(recomputation: Recomputation) -> None:
    own = workload("full")
    parts = scope_parameters(own.model, own.parallelism)
    block, outer = parts[Scope.BLOCK], parts[Scope.EMBEDDING] + parts[Scope.HEAD]
    gathers = {(CollectiveKind.ALL_GATHER, 2 * block): LAYERS}
    reduces = {(CollectiveKind.REDUCE_SCATTER, 4 * block): LAYERS, (CollectiveKind.REDUCE_SCATTER, 4 * outer): 1}
    backward = exchanged(program("full", Direction.BACKWARD, recomputation))
    assert backward == gathers | reduces
    assert exchanged(program("full", Direction.FORWARD)) == gathers | {(CollectiveKind.ALL_GATHER, 2 * outer): 1}
    assert exchanged(program("gradients", Direction.BACKWARD, recomputation)) == reduces
    assert not exchanged(program("gradients", Direction.FORWARD))


@pytest.mark.parametrize(("ep", "group"), [(1, 16), (8, 2), (16, 1)])
def test_experts_are_gathered_over_those_that_hold_the_same(ep: int, group: int) -> None:
    """Without `ep` with the rest of their block; where each GPU has other ones, not at all."""
    own = experts("qwen3-30b-a3b", ep)
    block, routed = (
        scope_parameters(own.model, own.parallelism)[Scope.BLOCK],
        expert_parameters(own.model, own.parallelism),
    )
    weights = weights_of(own, 0, WHOLE, 20)
    assert weights is not None
    sizes = [(block, 16)] if ep == 1 else [(block - routed, 16), *([(routed, group)] if group > 1 else [])]
    assert [(one.message_bytes / 2, one.group_size) for one in weights.block.gather] == sizes
    summed = own.software.gradient_bytes
    assert [(one.message_bytes / summed, one.group_size) for one in weights.block.reduce] == sizes
    ((ends,), (ends_reduced,)) = weights.outer.gather, weights.outer.reduce
    assert ends.group_size == ends_reduced.group_size == 16
    exchanged_bytes = Counter[tuple[CollectiveKind, int]]()
    for made in instruction_programs(own, Execution.SEQUENTIAL).of_kind.values():
        for part in (part for step in made.steps for part in step.parts):
            if (collective := part.collective) is not None and collective.group.endswith("dp"):
                exchanged_bytes[collective.kind, collective.group_size] += collective.message_bytes
    layers, parts = own.model.num_layers, scope_parameters(own.model, own.parallelism)
    ends_parameters = parts[Scope.EMBEDDING] + parts[Scope.HEAD]
    expected = Counter[tuple[CollectiveKind, int]]()
    for values, size in sizes:
        ends_too = ends_parameters if size == 16 else 0
        expected[CollectiveKind.ALL_GATHER, size] += 2 * (2 * layers * values + ends_too)
        expected[CollectiveKind.REDUCE_SCATTER, size] += summed * (layers * values + ends_too)
    assert {key: exchanged_bytes[key] for key in expected} == expected


def test_blocks_without_experts_gather_what_they_have() -> None:
    own = experts("deepseek-v3", 16)
    parts = scope_parameters(own.model, own.parallelism)
    made = instruction_programs(own, Execution.SEQUENTIAL).of_kind
    forward = next(made[kind] for kind in made if kind.direction is Direction.FORWARD)
    gathered = sum(s.collective.message_bytes for s in forward.steps if _is(s.collective, CollectiveKind.ALL_GATHER))
    others = parts[Scope.BLOCK] - expert_parameters(own.model, own.parallelism)  # each GPU has other experts
    whole = 58 * others + 3 * parts[Scope.DENSE_BLOCK] + parts[Scope.EMBEDDING] + parts[Scope.HEAD]
    assert gathered == 2 * whole


@cache
def experts(model: str, ep: int, *overrides: str) -> Workload:
    layout = ["parallelism.tp=1", "parallelism.dp=16", "recomputation=full", "parallelism.sharding=full", *overrides]
    given = [*LAYOUT[:1], "parallelism.pp=1", "microbatch_size=1", "software=torchtitan-eager", *layout]
    (one,) = resolve([*given, f"model={model}", f"parallelism.ep={ep}"], CONFIG)
    assert one.composed is not None
    return checked_but_for_memory(one.composed)


def _is(collective: object, kind: CollectiveKind) -> bool:
    return isinstance(collective, PlacedCollective) and collective.kind is kind


def test_recomputing_the_stage_gathers_each_block_twice() -> None:
    found = exchanged(program("full", Direction.BACKWARD, Recomputation.STAGE))
    assert sum(n for (kind, _), n in found.items() if kind is CollectiveKind.ALL_GATHER) == 2 * LAYERS


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_collectives_of_weights_change_no_work_of_blocks(tp: int, direction: Direction) -> None:
    def work(made: Program) -> tuple[list[str], Counter[object]]:
        own = [step.collective for step in made.steps if type(step.collective) is not PlacedCollective]
        return [o.name for step in made.steps for o in step.operators], Counter(own) - Counter({None: 10**6})

    assert work(program("full", direction, tp=tp)) == work(program("none", direction, tp=tp))


@pytest.mark.parametrize("tp", [1, 8])
def test_collectives_of_inner_blocks_run_beside_operators(tp: int) -> None:
    steps = program("full", Direction.BACKWARD, tp=tp).steps
    exposed = [s.collective for s in steps if isinstance(s.collective, PlacedCollective) and not s.operators]
    assert len(exposed) == 3, "the first gather, and the reductions of the last block and of the ends"


def test_what_many_stretches_hide_of_a_collective_adds_up_to_it() -> None:
    """Sequence parallelism cuts a block in many; what is gathered and reduced is the same, and as much is hidden."""
    found = {}
    for shares_tokens in ("false", "true"):
        changes = [f"parallelism.sequence_parallel={shares_tokens}", "parallelism.tp=4", "parallelism.dp=4"]
        (one,) = resolve([*LAYOUT, "recomputation=full", "parallelism.sharding=full", *changes], CONFIG)
        assert one.workload is not None
        own, shape = one.workload, StageShape(layers=LAYERS, first=False, last=False)
        made = instruction_program(
            extract(own.model, own.parallelism, own.microbatch_size, own.sequence_length),
            shape,
            Direction.BACKWARD,
            Execution.SEQUENTIAL,
            recomputation=Recomputation.NONE,
            default_sm_count=20,
            software=software("kareus"),
            weights=weights_of(own, 0, shape, 20),
        )
        moved = Counter[CollectiveKind]()
        for (kind, size), times in exchanged(made).items():
            moved[kind] += size * times
        found[shares_tokens] = moved, predict(own).time_s
    assert found["true"][0] == found["false"][0]
    assert found["true"][1] < found["false"][1] * 1.06  # 20 % more where each hides beside one stretch alone


def test_sharding_trades_time_for_memory() -> None:
    found = {s: predict(workload(s)) for s in ("optimizer", "gradients", "full")}
    times_s = [found[s].time_s for s in found]
    assert times_s == sorted(times_s)
    held = [found[s].memory.total_gib for s in found]
    assert held == sorted(held, reverse=True)
    assert {s: found[s].mfu * found[s].time_s for s in found} == pytest.approx(
        dict.fromkeys(found, found["full"].mfu * found["full"].time_s)
    )
    assert all(0 < p.collectives.exposed_s < p.collectives.alone_s for s, p in found.items() if s != "optimizer")


def test_one_replica_shares_out_nothing() -> None:
    own = workload("full", dp=2)
    alone = dataclasses.replace(own.parallelism, dp=1, sharding=Sharding.FULL)
    assert weights_of(dataclasses.replace(own, parallelism=alone), 0, WHOLE, 20) is None
    assert alone.halves(2)


def test_replicas_of_each_stage_lie_where_its_ranks_do() -> None:
    """Of three replicas with two GPUs each, those of stage 0 are on node 0, those of stage 1 on two nodes."""
    own = workload("full", tp=2, dp=3)
    deep = dataclasses.replace(own.parallelism, pp=2, layers_per_stage=(2, 2))
    weights = [weights_of(dataclasses.replace(own, parallelism=deep), stage, WHOLE, 20) for stage in (0, 1)]
    placed = [(one.nodes, one.per_node) for own in weights if own is not None for one in own.block.reduce]
    assert placed == [(1, 3), (2, 1)]


def forward_steps(own: Workload) -> list[Step]:
    made = instruction_programs(own, Execution.SEQUENTIAL).of_kind
    return list(next(made[kind] for kind in made if kind.direction is Direction.FORWARD).steps)


def test_each_kind_of_collective_runs_on_its_sms() -> None:
    own = with_fsdp(workload("full"), gather_sms=6, reduce_sms=9)
    taken = {
        (step.collective.kind, step.sm_count)
        for made in instruction_programs(own, Execution.SEQUENTIAL).of_kind.values()
        for step in made.steps
        if isinstance(step.collective, PlacedCollective)
    }
    assert taken == {(CollectiveKind.ALL_GATHER, 6), (CollectiveKind.REDUCE_SCATTER, 9)}


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_a_gather_runs_beside_the_blocks_that_it_may_and_moves_as_much(prefetch: int) -> None:
    """With equal blocks: whole beside each but the first few, which have more, and the last few, which have less."""
    own = with_fsdp(workload("full"), prefetch=prefetch)
    block = 2 * scope_parameters(own.model, own.parallelism)[Scope.BLOCK]
    beside = [s.collective.message_bytes for s in forward_steps(own) if s.collective and s.operators]
    layers = own.model.num_layers
    assert sum(beside) == (layers - 1) * block
    assert beside[prefetch - 1 : layers - prefetch] == [pytest.approx(block, abs=prefetch)] * (
        layers - 2 * prefetch + 1
    )
    assert len(beside) == layers - 1
    assert beside[0] == pytest.approx(block * sum(1 / n for n in range(1, prefetch + 1)), abs=prefetch)


def test_a_gather_through_switches_is_received_whole_on_few_sms() -> None:
    """Otherwise as fast as a ring on NCCL's own SMs, by which a GPU receives all shards but its own."""
    plain = workload("full", dp=8)
    own = with_fsdp(plain, nvls=True)
    (gather,), (ring,) = (
        {s.collective for s in forward_steps(one) if s.operators and isinstance(s.collective, PlacedCollective)}
        for one in (own, plain)
    )
    assert isinstance(gather, SwitchedGather)
    assert gather.bus_bytes == pytest.approx(8 / 7 * ring.bus_bytes)
    assert {step.sm_count for step in forward_steps(own) if step.collective} == {NVLS_SMS}
    clocks, few = np.array([1980.0]), np.array([4.0])
    alone = [
        sum(phase.time_s for phase in step_phases(plain.gpu, (), one, clocks, sms, 0)).item()
        for one, sms in ((gather, few), (ring, np.array([24.0])), (ring, few))
    ]
    assert alone[1] < alone[0] < 8 / 7 * alone[1] < alone[2]


def test_blocks_gathered_ahead_stay_in_memory() -> None:
    own = workload("full")
    block_gib = 2 * scope_parameters(own.model, own.parallelism)[Scope.BLOCK] / 2**30
    weights = [stage_memory(with_fsdp(own, prefetch=depth), 0).weights_gib for depth in (1, 2, 4)]
    assert weights[1] - weights[0] == pytest.approx(block_gib)
    assert weights[2] - weights[0] == pytest.approx(3 * block_gib)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("parallelism.sharding=optimizer", "parallelism.fsdp.gather_sms=6"), "no weights are shared out"),
        (("parallelism.sharding=full", "parallelism.fsdp.copies_sms=6"), "no replicas hold copies"),
        (("parallelism.sharding=full", "parallelism.fsdp.nvls=true"), "groups inside a node; 16 replicas"),
    ],
)
def test_settings_of_exchanges_that_there_are_not_are_refused(overrides: tuple[str, ...], said: str) -> None:
    (one,) = resolve([*LAYOUT, "recomputation=full", "parallelism.tp=1", "parallelism.dp=16", *overrides], CONFIG)
    assert one.workload is None
    assert said in str(one.refusal)
