"""What the engine runs beside what is what the operator graph, its multiplicities and the GPU model say."""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from helpers.builders import software
from helpers.worlds import LLAMA, QWEN, TOKENS, degrees, graph_of
from torch import Tensor

from kareus.errors import EngineError
from kareus.graph.interleave import NUMBER, block_segments, interleave, partition_of, staggered
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BIAS_GRADIENT_SUFFIX, Batch, BlockGraph, Collective, Direction, Operator, OperatorKind
from kareus.model.block import Block
from kareus.model.communication import Mesh, Tensors
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.config import Model
from kareus.model.experts import Experts
from kareus.model.functions import Later
from kareus.model.layers import rotary_table
from kareus.model.passes import Pass, Tape, backward_pass, blockwise_pass, forward_pass, recomputed_pass
from kareus.model.shards import shard_of
from kareus.model.steps import Start, steps_of
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.profile.programs import Execution, staggered_steps
from kareus.runtime.overlap import run_alone, run_staggered
from kareus.runtime.schedules import Schedule, turns_of
from kareus.schedule.records import Choice

LAYERS = 3
LAST = 99
"""SMs of collectives that no choice is made for."""
DIRECTIONS = [Direction.FORWARD, Direction.BACKWARD, Direction.INPUT_GRADIENT]


class Launched(NamedTuple):
    """A collective in a journal."""

    kind: str
    fused: int
    sm_count: int | None


class Ran(NamedTuple):
    """An operator in a journal."""

    nanobatch: int
    name: str
    memory_bound: bool


class Journal(LoopbackCommunicator):
    """Notes the collectives that are launched."""

    def __init__(self, axis: str, lines: list[Launched | Ran]) -> None:
        super().__init__(axis, 2)
        self.lines = lines

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = None) -> Any:
        self.lines.append(Launched("allreduce", len(tensors), sm_count))
        return super().all_reduce(tensors, sm_count)

    def all_gather(self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Any = None) -> Any:
        if into is None:
            self.lines.append(Launched("allgather", len(tensors), sm_count))
        return super().all_gather(tensors, sm_count, into)

    def reduce_scatter(self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Any = None) -> Any:
        if into is None:
            self.lines.append(Launched("reducescatter", len(tensors), sm_count))
        return super().reduce_scatter(tensors, sm_count, into)

    def all_to_all(
        self, rows: Tensor, sends: Sequence[int], receives: Sequence[int], sm_count: int | None = None
    ) -> Any:
        self.lines.append(Launched("alltoall", 1, sm_count))
        return super().all_to_all(rows, sends, receives, sm_count)

    def gather_tokens(self, shards: Sequence[Tensor], sm_count: int | None = None) -> Any:
        self.lines.append(Launched("allgather", len(shards), sm_count))
        return super().gather_tokens(shards, sm_count)

    def scatter_tokens(self, wholes: Sequence[Tensor], sm_count: int | None = None) -> Any:
        self.lines.append(Launched("reducescatter", len(wholes), sm_count))
        return super().scatter_tokens(wholes, sm_count)


def noted(running: Pass, nanobatch: int, lines: list[Launched | Ran]) -> Pass:
    """The same pass; notes each operator once the driver has had its say about it."""
    while True:
        try:
            event = next(running)
        except StopIteration as end:
            return end.value
        yield event
        if isinstance(event, Start):
            lines.append(Ran(nanobatch, event.name, event.memory_bound))


def small_stage(
    model: Model,
    tp: int,
    cp: int,
    recomputation: Recomputation = Recomputation.NONE,
    *,
    shared: bool = False,
    experts: Experts | None = None,
) -> tuple[Any, Tensor, Any, list[Launched | Ran]]:
    """Steps of some blocks, what enters them, their rotary table, and the journal of their communicators."""
    lines: list[Launched | Ran] = []
    communicators = {axis: Journal(axis, lines) for axis, size in (("tp", tp), ("cp", cp)) if size > 1}
    if experts is not None:
        communicators |= {"ep": Journal("ep", lines), "counts": LoopbackCommunicator("ep", 2)}
    mesh = Mesh(**communicators, sequence_parallel=shared)
    shard = shard_of(model, degrees(tp, cp), TOKENS)
    steps = steps_of([Block(model, shard, mesh, torch.float32, experts=experts) for _ in range(LAYERS)], recomputation)
    hidden = torch.randn(3, shard.tokens // (tp if shared else 1), shard.hidden_size)
    return steps, hidden, rotary_table(model, shard.tokens, mesh.cp), lines


def journal(
    model: Model,
    tp: int,
    cp: int,
    graph: BlockGraph,
    schedule: Schedule,
    direction: Direction,
    *,
    recomputation: Recomputation,
    shared: bool = False,
) -> list[Launched | Ran]:
    steps, whole, table, lines = small_stage(model, tp, cp, recomputation, shared=shared, experts=model.experts)
    hidden = whole.split([2, 1])
    later: Later | None = [] if direction is Direction.INPUT_GRADIENT else None
    tapes: list[Tape] = [[], []]
    entered: list[list[Tensors]] = [[], []]
    forward = [
        forward_pass(steps, h, table, tape, None, inputs)
        for h, tape, inputs in zip(hidden, tapes, entered, strict=True)
    ]

    def turns(direction: Direction, schedule: Schedule, *, recomputation: Recomputation) -> Any:
        return turns_of(schedule, graph, LAYERS, direction, recomputation=recomputation, default_sm_count=LAST)

    if direction is Direction.FORWARD:
        passes = forward
    elif recomputation is Recomputation.STAGE:
        passes = [recomputed_pass(steps, h, table, torch.randn_like(h), later) for h in hidden]
    else:
        default = turns(Direction.FORWARD, Schedule(Execution.NANOBATCHING), recomputation=Recomputation.NONE)
        run_staggered(forward, default, LAST)
        gradients = [torch.randn_like(h) for h in hidden]
        if recomputation is Recomputation.FULL:
            passes = [blockwise_pass(steps, own, table, g, later) for own, g in zip(entered, gradients, strict=True)]
        else:
            passes = [backward_pass(tape, g, later) for tape, g in zip(tapes, gradients, strict=True)]
    lines.clear()
    with torch.no_grad():
        passes = [noted(running, n, lines) for n, running in enumerate(passes)]
        run_staggered(passes, turns(direction, schedule, recomputation=recomputation), LAST)
    return lines


def turns_in(lines: Sequence[Launched | Ran]) -> list[list[str | Launched]]:
    """Products, attention and launches of each turn; a launch belongs to the operator that follows it."""
    turns: list[list[str | Launched]] = []
    current, waiting = None, list[Launched]()
    for line in lines:
        if isinstance(line, Launched):
            waiting.append(line)
            continue
        if line.nanobatch != current or is_tail(waiting):
            turns.append([])
            current = line.nanobatch
        turns[-1] += waiting
        waiting = []
        if not line.memory_bound:
            turns[-1].append(line.name)
    return turns


def is_tail(waiting: Sequence[Launched]) -> bool:
    return any(launched.sm_count == LAST for launched in waiting)


def products(operators: Sequence[Operator]) -> list[str]:
    return [o.name for o in operators if is_launched_alone(o)]


def is_launched_alone(operator: Operator) -> bool:
    """Whether the engine joins it with no neighbour, as the sum of a bias's gradient, though memory bounds it."""
    return operator.kind is not OperatorKind.MEMORY or operator.name.endswith(BIAS_GRADIENT_SUFFIX)


def expected_turns(pairs: Iterator[Any], choices: dict[str, Choice]) -> list[list[str | Launched]]:
    turns = []
    for segment, collective in ((p.segment, p.collective) for p in pairs):
        turn: list[str | Launched] = []
        choice = choices[partition_of(segment, collective).name] if segment and collective else None
        for operator in segment.operators if segment else ():
            if choice is not None and operator.name == choice.launch:
                turn.append(launched(collective, choice.sm_count))
            if is_launched_alone(operator):
                turn.append(operator.name)
        turns.append(turn if segment else [launched(collective, LAST)])
    return turns


def launched(collective: Collective, sm_count: int) -> Launched:
    return Launched(str(collective.kind), collective.fused, sm_count)


@pytest.mark.parametrize("recomputation", list(Recomputation))
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("model", "tp", "cp"), [(LLAMA, 2, 1), (QWEN, 2, 2)], ids=["tp", "cp+tp"])
def test_engine_multiplicities_and_gpu_model_agree(
    model: Model, tp: int, cp: int, direction: Direction, recomputation: Recomputation
) -> None:
    graph = graph_of(model, degrees(tp, cp))
    kinds = detect_partitions(graph, recomputation=recomputation, split_backward=direction is Direction.INPUT_GRADIENT)
    draw = random.Random(f"{tp} {cp} {direction} {recomputation}")
    choices = {
        p.name: Choice(partition=p.name, sm_count=n + 1, launch=draw.choice(p.operators).name)
        for n, p in enumerate(kinds)
    }
    schedule = Schedule(Execution.OVERLAP, tuple(choices.values()))
    segments = block_segments(graph, LAYERS, direction, recomputation=recomputation)

    found = turns_in(journal(model, tp, cp, graph, schedule, direction, recomputation=recomputation))
    assert found[: 2 * len(segments) + 1] == expected_turns(interleave(segments), choices)
    assert found[2 * len(segments) + 1 :] in ([], [[]]), "what follows the last collective has no product"

    modelled = [
        (products(step.operators), str(step.collective.kind) if step.collective else None)
        for step in staggered_steps(interleave(segments), LAST, {})
    ]
    assert [split_turn(turn) for turn in found[: len(modelled)]] == modelled

    by_sm_count = Counter(item.sm_count for turn in found for item in turn if isinstance(item, Launched))
    more = interleave(block_segments(graph, LAYERS + 1, direction, recomputation=recomputation))
    per_block = Counter(partition_of(p.segment, p.collective).name for p in more if p.segment and p.collective)
    for partition, multiplicity in kinds.items():
        per_block[partition.name] -= by_sm_count[choices[partition.name].sm_count]
        if partition.direction is direction:
            assert per_block[partition.name] == multiplicity, partition.name


@pytest.mark.parametrize("recomputation", list(Recomputation))
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("model", "cp"), [(LLAMA, 1), (QWEN, 2)], ids=["tp", "cp+tp"])
def test_one_nanobatch_leads_where_tokens_are_shared(
    model: Model, cp: int, direction: Direction, recomputation: Recomputation
) -> None:
    graph = graph_of(model, degrees(2, cp, sequence_parallel=True))
    kinds = detect_partitions(graph, recomputation=recomputation, split_backward=direction is Direction.INPUT_GRADIENT)
    draw = random.Random(f"{cp} {direction} {recomputation}")
    choices = {
        p.name: Choice(partition=p.name, sm_count=n + 1, launch=draw.choice(p.operators).name)
        for n, p in enumerate(kinds)
    }
    schedule = Schedule(Execution.OVERLAP, tuple(choices.values()))
    lines = journal(model, 2, cp, graph, schedule, direction, recomputation=recomputation, shared=True)
    segments = block_segments(graph, LAYERS, direction, recomputation=recomputation)
    expected: list[Launched | tuple[int, str]] = []
    for pair in interleave(segments):
        (turn,) = expected_turns(iter([pair]), choices)
        expected += [item if isinstance(item, Launched) else (pair.nanobatch, item) for item in turn]
    found = [
        line if isinstance(line, Launched) else (line.nanobatch, line.name)
        for line in lines
        if not is_memory_bound(line)
    ]
    assert found == expected
    if direction is Direction.FORWARD:
        exposed = [line for line in found if isinstance(line, Launched) and line.sm_count == LAST]
        assert [line.kind for line in exposed] == ["allgather", "reducescatter"], "the first one, and the last"


@pytest.mark.parametrize("shared", [False, True], ids=["ep", "ep+tp"])
@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL])
@pytest.mark.parametrize("direction", DIRECTIONS[:2])
def test_experts_run_in_the_order_of_staggered_nanobatches(
    direction: Direction, recomputation: Recomputation, shared: bool
) -> None:
    """Each launch beside the operator that is planned; attention is in a segment twice where blocks run again."""
    model = replace(LLAMA, experts=Experts(count=4, per_token=2, width=24))
    parallelism = replace(degrees(1 + shared, dp=2, sequence_parallel=shared), ep=2)
    graph = extract(model, parallelism, 2, TOKENS, None, software("kareus"))[Batch.NANOBATCH]
    kinds = detect_partitions(graph, recomputation=recomputation)
    beside = {p.name: products(p.operators) or [p.operators[0].name] for p in kinds}
    for number in range(max(map(len, beside.values()))):
        choices = {
            name: Choice(partition=name, sm_count=n + 1, launch=launches[number % len(launches)])
            for n, (name, launches) in enumerate(beside.items())
        }
        schedule = Schedule(Execution.OVERLAP, tuple(choices.values()))
        planned: list[Launched | tuple[int, str]] = []
        for pair in staggered(graph, LAYERS, direction, recomputation=recomputation):
            (turn,) = expected_turns(iter([pair]), choices)
            planned += [item if isinstance(item, Launched) else (pair.nanobatch, plain(item)) for item in turn]
        lines = journal(model, 1 + shared, 1, graph, schedule, direction, recomputation=recomputation, shared=shared)
        found = [
            line if isinstance(line, Launched) else (line.nanobatch, line.name)
            for line in lines
            if not is_memory_bound(line)
        ]
        planned = without_first(planned, sum(len(products(segment.operators)) for segment in graph.backward), found)
        assert found[: len(planned)] == planned, number


def without_first(
    planned: list[Launched | tuple[int, str]], count: int, found: list[Launched | tuple[int, str]]
) -> list[Launched | tuple[int, str]]:
    """What is planned without the products of a block before the first one, which begin the first segments."""
    for extra in range(count):
        begun: Counter[int] = Counter()
        kept = []
        for item in planned:
            if isinstance(item, Launched) or begun[item[0]] >= extra:
                kept.append(item)
            else:
                begun[item[0]] += 1
        own = [item for item in kept if not isinstance(item, Launched)]
        if [item for item in found if not isinstance(item, Launched)][: len(own)] == own:
            return kept
    raise AssertionError("the engine runs other products than are planned")


def plain(name: str) -> str:
    """The name of an operator without its number in a segment that has two of it."""
    return re.sub(NUMBER, "", name)


@pytest.mark.parametrize(("model", "tp", "cp"), [(LLAMA, 2, 1), (QWEN, 2, 2), (LLAMA, 1, 2)], ids=["tp", "cp+tp", "cp"])
def test_sequential_collectives_overlap_their_weight_gradients(model: Model, tp: int, cp: int) -> None:
    graph = graph_of(model, degrees(tp, cp))
    steps, hidden, table, lines = small_stage(model, tp, cp)
    tape: Tape = []
    run_alone(forward_pass(steps, hidden, table, tape), LAST)
    lines.clear()
    with torch.no_grad():
        run_alone(noted(backward_pass(tape, torch.randn_like(hidden)), 0, lines), LAST)
    found = [line.kind if isinstance(line, Launched) else line.name for line in lines if not is_memory_bound(line)]
    expected = []
    for segment in list(graph.backward) * LAYERS:
        launch = len(segment.operators) - segment.independent_tail
        expected += products(segment.operators[:launch])
        expected += [str(segment.collective.kind), *products(segment.operators[launch:])]
    begins = expected.index(found[0])  # under context parallelism alone a block begins amid a segment
    assert found[: len(expected) - begins] == expected[begins:]
    assert begins == (2 if tp == 1 else 0)


def is_memory_bound(line: Launched | Ran) -> bool:
    return isinstance(line, Ran) and line.memory_bound


def split_turn(turn: Sequence[str | Launched]) -> tuple[list[str], str | None]:
    kinds = [item.kind for item in turn if isinstance(item, Launched)]
    assert len(kinds) <= 1
    return [item for item in turn if isinstance(item, str)], kinds[0] if kinds else None


def test_a_schedule_of_another_workload_is_refused() -> None:
    graph = graph_of(LLAMA, degrees(2))
    kinds = list(detect_partitions(graph, recomputation=Recomputation.NONE))
    good = [Choice(partition=p.name, sm_count=2, launch=p.operators[0].name) for p in kinds]
    missing = Schedule(Execution.OVERLAP, tuple(good[1:]))
    with pytest.raises(EngineError, match=f"{good[0].partition}: the schedule has no choice"):
        turns_of(missing, graph, 2, Direction.FORWARD, recomputation=Recomputation.NONE, default_sm_count=None)
    wrong = [Choice(partition=c.partition, sm_count=2, launch="nothing") for c in good]
    with pytest.raises(EngineError, match=r"no operator 'nothing'; there are: .* launch of a plan"):
        turns_of(
            Schedule(Execution.OVERLAP, tuple(wrong)),
            graph,
            2,
            Direction.FORWARD,
            recomputation=Recomputation.NONE,
            default_sm_count=None,
        )
    other = graph_of(LLAMA, degrees(2, 2))
    with pytest.raises(EngineError, match="the operator graph ends a segment with allgather, the model with allreduce"):
        journal(
            LLAMA, 2, 1, other, Schedule(Execution.NANOBATCHING), Direction.FORWARD, recomputation=Recomputation.NONE
        )
