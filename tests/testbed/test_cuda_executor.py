"""Programs on one device: every operator of a real graph runs, in the program's order."""

from functools import cache

import pytest
import torch
from helpers.builders import all_reduce, gemm, memory, small_model

from kareus.errors import KareusError
from kareus.graph.program import Program, Step
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import UPDATING, Batch, Direction, Operator, OperatorKind
from kareus.model.communicators.choice import Library
from kareus.model.config import Parallelism, Sharding
from kareus.partition.extract import extract
from kareus.profile.programs import Execution, StageShape, component_programs, instruction_program
from kareus.testbed.cuda import executor, operators
from kareus.testbed.cuda.collectives import Collectives, _line
from kareus.testbed.cuda.executor import Executor
from kareus.testbed.cuda.operators import prepare
from kareus.testbed.cuda.scratch import Scratch

CPU = torch.device("cpu")


@cache
def small_graphs(tp, cp):
    degrees = Parallelism(dp=1, pp=1, tp=tp, cp=cp, layers_per_stage=(2,), sharding=Sharding.NONE)
    return extract(small_model(qk_norm=True), degrees, 2, 16)


def programs(tp, cp):
    graphs = small_graphs(tp, cp)
    shape = StageShape(layers=2, first=True, last=True)
    yield from component_programs(graphs, 4, recomputation=Recomputation.STAGE).values()
    for direction in (d for d in Direction if d not in UPDATING):
        for execution in (Execution.SEQUENTIAL, Execution.NANOBATCHING):
            yield instruction_program(
                graphs, shape, direction, execution, recomputation=Recomputation.STAGE, default_sm_count=4
            )


@pytest.mark.parametrize(("tp", "cp"), [(2, 1), (2, 2)])
def test_every_program_of_a_model_runs(tp, cp):
    for program in programs(tp, cp):
        Executor(program, Collectives(Library.LOOPBACK, {}, 0, CPU), CPU).run(2)


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
    Executor(Program(name="p", steps=(*steps, Step(operators=operators[:1]))), Logged(), CPU).run(2)
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


def test_memory_bound_operators_write_their_bytes_only():
    scratch = Scratch(CPU)
    (result,) = scratch.results((256,))
    operator = Operator(
        name="norm", kind=OperatorKind.MEMORY, shape=(64,), flops=0, bytes_read=256, bytes_written=128, kernels=2
    )
    prepare(operator, scratch)()
    (source,) = scratch.operands((32,))
    assert torch.equal(result[:32], source)  # 64 bytes in each of two kernels
    assert not result[32:].any()


def test_context_parallel_attention_moves_its_copies(monkeypatch):
    moved = []
    monkeypatch.setattr(operators, "stream_on_cpu", lambda source, target: moved.append((source.nbytes, target.nbytes)))
    forward = [o for s in small_graphs(2, 2)[Batch.MICROBATCH].forward for o in s.operators]
    attending = next(o for o in forward if o.kind is OperatorKind.ATTENTION)
    prepare(attending, Scratch(CPU))()
    assert len(moved) == attending.copies == 3
    assert sum(map(sum, moved)) == pytest.approx(attending.copied_bytes, rel=0.05)


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


def test_operands_are_random_numbers_that_do_not_overlap():
    first, second = Scratch(CPU).operands((8, 8), (8, 8))
    assert not torch.equal(first, second)
    assert 0.5 < first.float().std() < 1.5
    assert second.data_ptr() % 256 == first.data_ptr() % 256
