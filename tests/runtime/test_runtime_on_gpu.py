"""The engine on one GPU, whose other ranks a loopback stands for."""

import dataclasses
import time
from bisect import bisect_right
from collections.abc import Callable

import pytest
import torch
from helpers.worlds import LAYERS, QWEN, degrees, departure, gradients_of, graph_of
from torch.autograd import DeviceType

from kareus.graph.instruction import InstructionKey
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Direction
from kareus.model.communication import Mesh
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.shards import shard_of
from kareus.partition.detect import detect_partitions
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.boundary import Shapes
from kareus.runtime.capturing import StaticBuffers, capture_instructions
from kareus.runtime.graphs import CudaCapture, MicrobatchGraphs
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import SEQUENTIAL, StageModel
from kareus.schedule.records import Choice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

TOKENS = 256
LOOPBACK_KERNEL = "_move"
BF16_TOLERANCE = 0.03


def overlapped_stage(recomputation: Recomputation = Recomputation.STAGE) -> tuple[StageModel, MicrobatchSchedule]:
    """A stage among loopbacks, and a schedule that launches each collective elsewhere, on other SMs."""
    model = dataclasses.replace(QWEN, hidden_size=512, intermediate_size=1024, head_dim=64)
    parallelism = degrees(tp=2, cp=2)
    graph = graph_of(model, parallelism)
    choices = tuple(
        Choice(partition=p.name, sm_count=4 + n, launch=p.operators[n % len(p.operators)].name)
        for n, p in enumerate(detect_partitions(graph, recomputation=recomputation))
    )
    shard = shard_of(model, parallelism, 2 * TOKENS)
    mesh = Mesh(tp=LoopbackCommunicator("tp", 2), cp=LoopbackCommunicator("cp", 2))
    middle = StageShape(layers=LAYERS, first=False, last=False)
    stage = StageModel(
        model, shard, mesh, middle, torch.bfloat16, recomputation=recomputation, graph=graph, default_sm_count=20
    )
    overlap = Schedule(Execution.OVERLAP, choices)
    return stage.cuda(), MicrobatchSchedule(overlap, overlap)


def hidden_of(stage: StageModel) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(3, stage.cosine.shape[0], 512, dtype=torch.bfloat16, device="cuda", generator=generator)


def test_partitioned_overlap_equals_sequential_within_bf16() -> None:
    stage, overlap = overlapped_stage()
    hidden, results = hidden_of(stage), []
    for schedule in (SEQUENTIAL, overlap):
        entered = hidden.clone().requires_grad_()
        out = stage(entered, None, schedule)
        out.backward(torch.ones_like(out))
        results.append({"out": out.detach(), "hidden": entered.grad, **gradients_of(stage)})
    assert departure(results[1], results[0]) <= BF16_TOLERANCE


@pytest.mark.parametrize("recomputation", Recomputation)
def test_graphs_compute_what_launches_do(recomputation: Recomputation) -> None:
    """Of two microbatches in flight, of which the first runs overlapped and the second sequentially."""
    stage, overlap = overlapped_stage(recomputation)
    hidden = hidden_of(stage)
    shapes = Shapes(
        num_microbatches=2,
        microbatch_size=len(hidden),
        tokens=hidden.shape[1],
        stream_tokens=hidden.shape[1],
        hidden_size=hidden.shape[2],
        parts=1,
        dtype=hidden.dtype,
    )
    schedules = {(0, 0): overlap, (0, 1): SEQUENTIAL}

    def ran(graphs: dict[tuple[int, int], MicrobatchGraphs]) -> dict[str, torch.Tensor]:
        entered = [(hidden * (1 + n)).requires_grad_() for n in range(2)]
        left = [stage(entered[n], None, schedules[0, n], graphs.get((0, n))) for n in range(2)]
        for out in left:
            out.backward(torch.ones_like(out))
        outs = {f"out {n}": out.detach() for n, out in enumerate(left)}
        return {**outs, **{f"hidden {n}": each.grad for n, each in enumerate(entered)}, **gradients_of(stage)}

    ran({})  # kernels are compiled
    expected = ran({})
    order = [InstructionKey(0, 0, n, d) for d in (Direction.FORWARD, Direction.BACKWARD) for n in range(2)]
    device = torch.device("cuda", torch.cuda.current_device())
    graphs = capture_instructions([stage], order, schedules, StaticBuffers(shapes, device), CudaCapture(device), ())
    assert not any(gradient.any() for gradient in gradients_of(stage).values()), "a capture computes nothing"
    for _ in range(3):
        assert departure(ran(graphs), expected) <= BF16_TOLERANCE


def test_a_graph_begins_collectives_beside_the_same_operators() -> None:
    """A graph has edges and no order of launches: the profiler says what had begun when each collective did."""
    stage, overlap = overlapped_stage(Recomputation.NONE)
    hidden, capture = hidden_of(stage), CudaCapture(torch.device("cuda", torch.cuda.current_device()))

    def launch() -> None:
        with torch.no_grad():
            stage.run_forward(hidden, overlap, record=False)

    launch()
    ways = {"launches": launch, "graph": capture(launch)}
    begun = {name: begun_before_collectives(way) for name, way in ways.items()}
    assert len(begun["launches"]) > LAYERS
    assert len(begun["graph"]) == len(begun["launches"])
    assert max(abs(ours - theirs) for ours, theirs in zip(*begun.values(), strict=True)) <= 1, begun


def begun_before_collectives(way: Callable[[], object]) -> list[int]:
    """Return how many kernels of the computation had begun when each one of a collective did, in its order."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        way()
        torch.cuda.synchronize()
    starts: dict[bool, list[int]] = {True: [], False: []}
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.device_type() is DeviceType.CUDA:
            starts[event.name() == LOOPBACK_KERNEL].append(event.start_ns())
    return [bisect_right(sorted(starts[False]), at) for at in sorted(starts[True])]


def test_a_graph_takes_less_of_the_host_than_its_launches() -> None:
    stage, overlap = overlapped_stage(Recomputation.NONE)
    hidden, capture = hidden_of(stage), CudaCapture(torch.device("cuda", torch.cuda.current_device()))

    def launch() -> None:
        with torch.no_grad():
            stage.run_forward(hidden, overlap, record=False)

    def host_s(run: Callable[[], None]) -> float:
        def once() -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            run()
            return time.perf_counter() - began

        return min(once() for _ in range(20))

    launch()
    torch.cuda.synchronize()
    assert host_s(capture(launch)) < host_s(launch)
