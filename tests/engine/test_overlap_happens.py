"""Collectives run beside computation where they are launched beside it: walls of sleeps on both sides."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from builders import block_graph
from torch import Tensor

from kareus.engine.overlap import run_alone, run_staggered
from kareus.engine.schedules import Schedule, turns_of
from kareus.model.collectives import CollectiveKind
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.passes import Exchange, Pass
from kareus.model.steps import Start
from kareus.partition.detect import detect_partitions
from kareus.partition.graph import BlockGraph, Direction, OperatorKind
from kareus.partition.interleave import block_segments
from kareus.profile.programs import Execution
from kareus.schedule.choice import Choice

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

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = None) -> "InThread":
        return InThread(self.thread.submit(self._sleep), tuple(tensors))

    def _sleep(self) -> None:
        began = time.perf_counter()
        time.sleep(COMMUNICATION_S)
        self.spent_s += time.perf_counter() - began


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
    for segment in block_segments(graph, LAYERS, Direction.FORWARD, recompute=False):
        for operator in segment.operators:
            memory_bound = operator.kind is OperatorKind.MEMORY
            yield Start(operator.name, memory_bound)
            if not memory_bound:
                began = time.perf_counter()
                time.sleep(COMPUTE_S)
                spent_s.append(time.perf_counter() - began)
        exchange = Exchange(CollectiveKind.ALL_REDUCE, communicator, (message,))
        yield exchange
        exchange.wait()
    return message


def timed(run: Callable[[list[Pass]], object]) -> tuple[float, float, float]:
    """Wall time of two nanobatches, and the time that computation and communication took of it."""
    communicator, spent_s = Slow(), list[float]()
    passes = [sleeping(GRAPH, communicator, spent_s) for _ in range(2)]
    began = time.perf_counter()
    run(passes)
    return time.perf_counter() - began, sum(spent_s), communicator.spent_s


def overlapped(launch_last: bool) -> Callable[[list[Pass]], object]:
    choices = tuple(
        Choice(partition=p.name, sm_count=2, launch=p.operators[-1 if launch_last else 0].name)
        for p in detect_partitions(GRAPH, recompute=False)
    )
    schedule = Schedule(Execution.OVERLAP, choices)
    turns = turns_of(schedule, GRAPH, LAYERS, Direction.FORWARD, recompute=False, default_sm_count=None)
    return lambda passes: run_staggered(passes, turns, None)


def test_wall_time_is_the_sum_one_after_the_other_and_the_larger_one_overlapped() -> None:
    wall_s, compute_s, communication_s = timed(lambda passes: [run_alone(p, None) for p in passes])
    assert wall_s >= 0.98 * (compute_s + communication_s)

    wall_s, compute_s, communication_s = timed(overlapped(launch_last=False))
    edges_s = COMMUNICATION_S + 2 * COMPUTE_S  # the first segment and the last collective run beside nothing
    assert wall_s < max(compute_s, communication_s) + edges_s + 0.25 * min(compute_s, communication_s)

    late_s, _, _ = timed(overlapped(launch_last=True))
    assert late_s > wall_s + COMMUNICATION_S, "launched beside the last operator, collectives stick out"
