"""Programs on one device: every operator of a real graph runs, in the program's order."""

import dataclasses
from dataclasses import fields
from functools import cache

import pytest
import torch
from helpers.builders import all_reduce, gemm, memory, small_model, software
from helpers.worlds import GPT, MPT

from kareus.errors import KareusError
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    UPDATING,
    Batch,
    Collective,
    CollectiveKind,
    Direction,
    Operator,
    OperatorKind,
    Program,
    Step,
)
from kareus.model import attention, fused
from kareus.model.communicators.choice import Library
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.extract import extract
from kareus.profile.programs import Execution, StageShape, component_programs, instruction_program
from kareus.testbed.cuda import executor
from kareus.testbed.cuda.collectives import Collectives, _line
from kareus.testbed.cuda.executor import Executor
from kareus.testbed.cuda.memory_bound import call_of
from kareus.testbed.cuda.operators import prepare
from kareus.testbed.cuda.scratch import Scratch

CPU = torch.device("cpu")


MODELS = {"qwen": small_model(qk_norm=True), "gpt": GPT, "mpt": MPT}


@cache
def small_graphs(tp, cp, model="qwen"):
    degrees = Parallelism(
        dp=1, pp=1, tp=tp, cp=cp, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False
    )
    return extract(MODELS[model], degrees, 2, 16)


def programs(tp, cp, model="qwen"):
    graphs = small_graphs(tp, cp, model)
    shape = StageShape(layers=2, first=True, last=True)
    yield from component_programs(graphs, 4, recomputation=Recomputation.STAGE).values()
    for direction in (d for d in Direction if d not in UPDATING):
        for execution in (Execution.SEQUENTIAL, Execution.NANOBATCHING):
            yield instruction_program(
                graphs,
                shape,
                direction,
                execution,
                recomputation=Recomputation.STAGE,
                default_sm_count=4,
                software=software("kareus"),
            )


@pytest.mark.parametrize(
    ("tp", "cp", "model"),
    [
        (2, 1, "qwen"),
        (2, 2, "qwen"),
        (1, 2, "gpt"),
        pytest.param(2, 1, "gpt", marks=pytest.mark.acceptance),
        pytest.param(1, 2, "mpt", marks=pytest.mark.acceptance),
    ],
)
def test_every_program_of_a_model_runs(tp, cp, model):
    for program in programs(tp, cp, model):
        Executor(program, Collectives(Library.LOOPBACK, {}, 0, CPU), CPU).run(2)


def test_functions_are_those_of_the_model():
    graph = small_graphs(2, 1, "gpt")[Batch.MICROBATCH]
    parts = (graph.forward, graph.backward, graph.embedding_forward, graph.embedding_backward)
    operators = [o for segments in parts for s in segments for o in s.operators if o.kind is OperatorKind.MEMORY]
    assert {call_of(o).name for o in operators} == {
        "residual_layer_norm",
        "residual_layer_norm_backward",
        "activate",
        "swiglu",  # moves the bytes of the other's backward
        "split_heads_backward",
        "bias_gradient",
        "embed_with_positions",
        "embed_with_positions_backward",
    }


def test_the_first_axis_of_ranks_varies_fastest():
    axes = {"tp": 3, "cp": 2, "dp": 2}
    for axis, size in axes.items():
        lines = {tuple(_line(axes, axis, rank)) for rank in range(12)}
        assert all(len(line) == size for line in lines)
        assert sorted(rank for line in lines for rank in line) == list(range(12))
    assert list(_line(axes, "tp", 4)) == [3, 4, 5]
    assert list(_line(axes, "cp", 4)) == [1, 4]
    assert list(_line(axes, "dp", 4)) == [4, 10]


def test_a_step_waits_for_its_collective(monkeypatch):
    log = []

    class Logged:
        def prepare(self, collective, sm_count):
            return lambda: (log.append(f"start on {sm_count}"), self)[1]

        def wait(self):
            log.append("wait")

    monkeypatch.setattr(executor, "prepare", lambda operator, scratch: lambda: log.append(operator.name))
    operators = (memory("norm", 64), gemm("qkv", 16, 8, 32), gemm("projection", 16, 8, 32))
    steps = [Step(operators=operators, collective=all_reduce(8), launch=launch, sm_count=3) for launch in (1, 3)]
    along = Step(within=(steps[1],), along=(Step(collective=all_reduce(16), sm_count=5),))
    Executor(Program(name="p", steps=(*steps, Step(operators=operators[:1]), along)), Logged(), CPU).run(2)
    once = [
        "norm",
        "start on 3",
        "qkv",
        "projection",
        "wait",
        "norm",
        "qkv",
        "projection",
        "start on 3",
        "wait",
        "norm",
        "start on 5",
        "norm",
        "qkv",
        "projection",
        "start on 3",
        "wait",
        "wait",
    ]
    assert log == once * 3  # once before anything is timed


@pytest.mark.parametrize("name", ["qkv", "qkv.dgrad", "qkv.wgrad", "qkv.wgrad.2"])
def test_a_matrix_product_moves_what_its_record_counts(name):
    """A weight gradient is added up in fp32, where it arises, and never rounded to bf16."""
    m, n, k = 16, 8, 32
    scratch = Scratch(CPU)
    launch = prepare(gemm(name, m, n, k), scratch)
    launch()
    (result,) = scratch.results((m, n))
    if "wgrad" in name:
        gradient, rows = scratch.operands((k, m), (k, n))
        expected = gradient.float().t() @ rows.float()
        launch()
        torch.testing.assert_close(scratch.sums((m, n)), 2 * expected)
        assert not result.any()
        return
    if name == "qkv":
        rows, weight = scratch.operands((m, k), (n, k))
        expected = torch.nn.functional.linear(rows.float(), weight.float())
    else:
        gradient, weight = scratch.operands((m, k), (k, n))
        expected = gradient.float() @ weight.float()
    torch.testing.assert_close(result.float(), expected, rtol=2e-2, atol=2e-2)


def graph_operators(tp, cp):
    for graph in small_graphs(tp, cp).values():
        for field in fields(graph):
            for segment in getattr(graph, field.name):
                yield from segment.operators


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (2, 2), (1, 2)])
def test_memory_bound_records_are_functions_of_the_model(tp, cp):
    """Every record is explained by inputs and outputs of one function, once each."""
    found = {call_of(o).name for o in graph_operators(tp, cp) if o.kind is OperatorKind.MEMORY}
    assert found >= {"residual_norm", "residual_norm_backward", "norm_rotate", "norm_rotate_backward"}
    assert found >= {"swiglu", "swiglu_backward", "embed", "embed_backward", "norm", "norm_backward"}
    assert found >= ({"maxima", "exponentials", "mean_loss"} if tp > 1 else {"cross_entropy"})


def test_what_is_launched_is_what_the_model_runs(monkeypatch):
    launched = []
    for name in ("residual_norm", "norm_rotate_backward", "swiglu"):
        monkeypatch.setattr(fused, name, lambda *_, name=name: launched.append(name))
    for name, role in (("residual_norm", "norm"), ("norm_rotate_backward", "rope"), ("swiglu", "activation")):
        operators = (o for o in graph_operators(2, 1) if o.name == role and o.kind is OperatorKind.MEMORY)
        prepare(next(o for o in operators if call_of(o).name == name), Scratch(CPU))()
    assert launched == ["residual_norm", "norm_rotate_backward", "swiglu"]


def test_a_record_of_no_function_is_refused():
    with pytest.raises(KareusError, match="no function of the model reads 1 and writes 64 bytes"):
        prepare(dataclasses.replace(memory("norm", 64), bytes_read=1, bytes_written=64), Scratch(CPU))


def test_context_parallel_attention_copies_as_the_model_does(monkeypatch):
    ordered = []
    monkeypatch.setattr(attention, "_in_order", lambda shards: ordered.append(shards.shape) or shards.flatten(1, 2)[0])
    forward = [o for s in small_graphs(2, 2)[Batch.MICROBATCH].forward for o in s.operators]
    attending = next(o for o in forward if o.kind is OperatorKind.ATTENTION)
    monkeypatch.setattr(attention, "_attend", lambda query, *_: attention.Attended(query, query, ()))
    prepare(attending, Scratch(CPU))()
    batch, _, shared_heads, queries, _, dimension = attending.shape
    assert ordered == [(2, batch, queries, shared_heads, dimension)] * 2  # keys and values


@pytest.mark.parametrize(("model", "sloped"), [("gpt", False), ("mpt", True)])
def test_attention_with_alibi_is_known_by_the_mask_that_it_reads(monkeypatch, model, sloped):
    graph = small_graphs(1, 2, model)[Batch.MICROBATCH]
    operators = [o for segments in (graph.forward, graph.backward) for s in segments for o in s.operators]
    attending = [o for o in operators if o.kind in (OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD)]
    masks, make = [], attention._mask
    monkeypatch.setattr(attention, "_mask", lambda *given: masks.append(given[2]) or make(*given))
    for operator in attending:
        prepare(operator, Scratch(CPU))()
    assert len(attending) == 2
    assert {slopes is not None for slopes in masks} == {sloped}


def test_attention_that_does_not_explain_its_flops_is_refused():
    operator = Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        shape=(1, 2, 1, 16, 16, 8),
        flops=1,
        bytes_read=4,
        bytes_written=4,
        kernels=1,
    )
    with pytest.raises(KareusError, match="are not those of causal attention in 1 kernels"):
        prepare(operator, Scratch(CPU))


def test_messages_are_equal_random_numbers_on_all_ranks():
    first, second = (Collectives(Library.LOOPBACK, {}, rank, CPU)._message(64) for rank in range(2))
    assert torch.equal(first, second)
    assert 0.5 < first.float().std() < 1.5


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (CollectiveKind.ALL_REDUCE, (128,)),
        (CollectiveKind.ALL_GATHER, (4, 32)),
        (CollectiveKind.REDUCE_SCATTER, (32,)),
    ],
)
def test_collectives_that_are_one_launch_are_as_many_messages(kind, shape):
    """As those of keys and values: two buffers of 128 bf16 values each, over four GPUs."""
    fused = Collective(kind=kind, group="cp", group_size=4, message_bytes=512, fused=2)
    results = Collectives(Library.LOOPBACK, {}, 0, CPU).prepare(fused, 4)().wait()
    assert [tuple(result.shape) for result in results] == [shape] * 2


def test_operands_are_random_numbers_that_do_not_overlap():
    first, second = Scratch(CPU).operands((8, 8), (8, 8))
    assert not torch.equal(first, second)
    assert 0.5 < first.float().std() < 1.5
    assert second.data_ptr() % 256 == first.data_ptr() % 256
