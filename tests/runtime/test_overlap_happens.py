"""Collectives run beside computation where they are launched beside it: walls of sleeps on both sides."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from helpers.builders import block_graph
from helpers.worlds import LLAMA, TOKENS, degrees, graph_of
from torch import Tensor

from kareus.graph.interleave import block_segments
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, CollectiveKind, Direction, OperatorKind
from kareus.model.communication import Exchange, Mesh
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.passes import CollectiveCall, Pass, Ready
from kareus.model.shards import shard_of
from kareus.model.steps import Start
from kareus.partition.detect import detect_partitions
from kareus.profile.programs import Execution, StageShape
from kareus.runtime import stage_model
from kareus.runtime.overlap import run_alone, run_staggered
from kareus.runtime.schedules import MicrobatchSchedule, Schedule, turns_of
from kareus.runtime.stage_model import StageModel
from kareus.schedule.records import Choice

LAYERS = 2
GRAPH = block_graph(tokens=64)
COMPUTE_S, COMMUNICATION_S = 0.03, 0.06
"""Of a product or attention, and of a collective: about as much in both segments of a block."""


class Slow(LoopbackCommunicator):
    """Takes its time, in a thread."""

    def __init__(self) -> None:
        super().__init__("tp", 2)
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.spent_s = 0.0
        self.longest_s = 0.0

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = None) -> "InThread":
        return InThread(self.thread.submit(self._sleep), tuple(tensors))

    def _sleep(self) -> None:
        began = time.perf_counter()
        time.sleep(COMMUNICATION_S)
        took_s = time.perf_counter() - began
        self.spent_s += took_s
        self.longest_s = max(self.longest_s, took_s)


class InThread:
    def __init__(self, done: Future[None], results: tuple[Tensor, ...]) -> None:
        self.done = done
        self.results = results

    def wait(self) -> tuple[Tensor, ...]:
        self.done.result()
        return self.results


def sleeping(graph: BlockGraph, communicator: Slow, spent_s: list[float]) -> Pass:
    """What a forward pass through blocks says to its driver; products and attention take their time."""
    message = torch.zeros(1)
    for segment in block_segments(graph, LAYERS, Direction.FORWARD, recomputation=Recomputation.NONE):
        for operator in segment.operators:
            memory_bound = operator.kind is OperatorKind.MEMORY
            yield Start(operator.name, memory_bound)
            if not memory_bound:
                began = time.perf_counter()
                time.sleep(COMPUTE_S)
                spent_s.append(time.perf_counter() - began)
        exchange = CollectiveCall(Exchange(CollectiveKind.ALL_REDUCE, communicator), (message,))
        yield exchange
        exchange.wait()
    return message


class Times:
    """What the passes through real blocks took, without what they waited for."""

    def __init__(self) -> None:
        self.compute_s = 0.0
        self.longest_s = 0.0
        self.put_off_s = 0.0
        """Of weight gradients that run after their segment's collective may start."""


def slowed(running: Pass, times: Times) -> Pass:
    """A real pass whose products and attention take their time."""
    event, put_off = next(running), False
    while True:
        yield event
        began = time.perf_counter()
        if isinstance(event, Start) and not event.memory_bound:
            time.sleep(COMPUTE_S)
        try:
            following = next(running)
        except StopIteration as done:
            return done.value
        spent_s = 0.0 if isinstance(event, CollectiveCall) else time.perf_counter() - began  # an exchange is waited for
        times.compute_s += spent_s
        times.longest_s = max(times.longest_s, spent_s)
        times.put_off_s += spent_s if put_off else 0.0
        event, put_off = following, isinstance(event, Ready)


class Took(NamedTuple):
    """Wall time of an instruction, and what it consists of."""

    wall_s: float
    times: Times
    communication_s: float
    longest_s: float
    """Of its collectives, and of those before it."""


def took(patch: pytest.MonkeyPatch, communicator: Slow, run: Callable[[], Any]) -> tuple[Any, Took]:
    """Run an instruction of a stage, its passes slowed."""
    times, before_s = Times(), communicator.spent_s
    with patch.context() as during:
        for name in ("forward_pass", "backward_pass", "blockwise_pass", "recomputed_pass"):
            real = getattr(stage_model, name)
            during.setattr(stage_model, name, lambda *given, real=real: slowed(real(*given), times))
        began = time.perf_counter()
        result = run()
        wall_s = time.perf_counter() - began
    return result, Took(wall_s, times, communicator.spent_s - before_s, communicator.longest_s)


def run_stage(patch: pytest.MonkeyPatch, *, overlaps: bool, recomputation: Recomputation) -> tuple[Took, Took]:
    """Forward and backward of one microbatch through real blocks."""
    graph, communicator = graph_of(LLAMA, degrees(tp=2)), Slow()
    stage = StageModel(
        LLAMA,
        shard_of(LLAMA, degrees(tp=2), TOKENS),
        Mesh(tp=communicator),
        StageShape(layers=LAYERS, first=False, last=False),
        torch.float32,
        recomputation=recomputation,
        graph=graph,
    )
    choices = tuple(
        Choice(partition=p.name, sm_count=2, launch=p.operators[0].name)
        for p in detect_partitions(graph, recomputation=recomputation)
    )
    one = Schedule(Execution.OVERLAP, choices) if overlaps else Schedule()
    hidden = torch.zeros(4, TOKENS, LLAMA.hidden_size)
    (_, held), forward = took(
        patch, communicator, lambda: stage.run_forward(hidden, MicrobatchSchedule(one, one), record=True)
    )
    _, backward = took(patch, communicator, lambda: stage.run_backward(held, hidden))
    return forward, backward


class Timed(NamedTuple):
    """Wall time of two nanobatches, and the time that computation and communication took of it."""

    wall_s: float
    compute_s: float
    communication_s: float
    edges_s: float
    """Of the first segment and the last collective, which run beside nothing, had they been as slow as the slowest."""

    @property
    def over_s(self) -> float:
        """Time beyond that of what took longer."""
        return self.wall_s - max(self.compute_s, self.communication_s)


def timed(run: Callable[[list[Pass]], object]) -> Timed:
    communicator, spent_s = Slow(), list[float]()
    passes = [sleeping(GRAPH, communicator, spent_s) for _ in range(2)]
    began = time.perf_counter()
    run(passes)
    wall_s, edges_s = time.perf_counter() - began, communicator.longest_s + 2 * max(spent_s)
    return Timed(wall_s, sum(spent_s), communicator.spent_s, edges_s)


def overlapped(launch_last: bool) -> Callable[[list[Pass]], object]:
    choices = tuple(
        Choice(partition=p.name, sm_count=2, launch=p.operators[-1 if launch_last else 0].name)
        for p in detect_partitions(GRAPH, recomputation=Recomputation.NONE)
    )
    schedule = Schedule(Execution.OVERLAP, choices)
    turns = turns_of(
        schedule, GRAPH, LAYERS, Direction.FORWARD, recomputation=Recomputation.NONE, default_sm_count=None
    )
    return lambda passes: run_staggered(passes, turns, None)


def test_wall_time_is_the_sum_if_serial_the_max_if_overlapped() -> None:
    serial = timed(lambda passes: [run_alone(p, None) for p in passes])
    assert serial.wall_s >= 0.98 * (serial.compute_s + serial.communication_s)

    early = timed(overlapped(launch_last=False))
    assert early.over_s < early.edges_s + 0.25 * min(early.compute_s, early.communication_s)

    late = timed(overlapped(launch_last=True))
    assert late.over_s > early.over_s + COMMUNICATION_S, "launched beside the last operator, collectives stick out"


@pytest.mark.parametrize("recomputation", list(Recomputation))
def test_blocks_wait_for_no_collective_before_they_need_it(
    monkeypatch: pytest.MonkeyPatch, recomputation: Recomputation
) -> None:
    for wall_s, times, communication_s, _ in run_stage(monkeypatch, overlaps=False, recomputation=recomputation):
        assert wall_s >= 0.98 * (times.compute_s + communication_s - times.put_off_s)

    for wall_s, times, communication_s, longest_s in run_stage(monkeypatch, overlaps=True, recomputation=recomputation):
        shorter_s, longer_s = sorted((times.compute_s, communication_s))
        edges_s = longest_s + 3 * times.longest_s  # the first segment and the last collective run beside nothing
        assert wall_s < longer_s + min(edges_s + 0.25 * shorter_s, shorter_s)
