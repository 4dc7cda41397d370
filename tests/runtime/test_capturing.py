"""Instructions that are captured and replayed compute what launched ones do, in the same order of operations."""

from pathlib import Path

import pytest
import torch
from helpers.graphs import RecordingCapture
from helpers.numerics import FOUR_LAYERS as FOUR_BLOCKS
from helpers.numerics import INTERLEAVED, TOLERANCE, Case, PipelineRank, Reference, case, overlapped, with_references
from helpers.trainings import FOUR_LAYERS, tiny_workload
from helpers.worlds import (
    LAYERS,
    QWEN,
    TOKENS,
    degrees,
    departure,
    gloo_groups,
    gradients_of,
    graph_of,
    randomise,
    spawn,
)

from kareus.errors import EngineError, RefusedWorkloadError
from kareus.graph.instruction import InstructionKey
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, Direction
from kareus.model.communication import Mesh
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.shards import shard_of
from kareus.partition.detect import detect_partitions
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.boundary import Shapes
from kareus.runtime.capturing import StaticBuffers, capture_instructions, reducing_places
from kareus.runtime.engine_checks import check_captures
from kareus.runtime.follower import planned_steps
from kareus.runtime.graphs import MicrobatchGraphs
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import SEQUENTIAL, StageModel
from kareus.schedule.records import Choice

CPU = torch.device("cpu")
ALONE = degrees()
MIDDLE = StageShape(layers=LAYERS, first=False, last=False)
F, B = Direction.FORWARD, Direction.BACKWARD
BATCH = 3
"""Two unequal nanobatches."""


def order(*pairs: tuple[Direction, int]) -> list[InstructionKey]:
    return [InstructionKey(0, 0, microbatch, direction) for direction, microbatch in pairs]


ONE_F_ONE_B = order((F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2))


def stage_of(
    mesh: Mesh, recomputation: Recomputation, parallelism: Parallelism = ALONE, graph: BlockGraph | None = None
) -> StageModel:
    shard = shard_of(QWEN, parallelism, TOKENS)
    stage = StageModel(
        QWEN,
        shard,
        mesh,
        MIDDLE,
        torch.float32,
        recomputation=recomputation,
        graph=graph or graph_of(QWEN, parallelism),
        default_sm_count=20,
    )
    randomise(stage)
    return stage


def shapes_of(stage: StageModel, tokens_shared: int = 1) -> Shapes:
    tokens = stage.cosine.shape[0]
    return Shapes(
        num_microbatches=3,
        microbatch_size=BATCH,
        tokens=tokens,
        stream_tokens=tokens // tokens_shared,
        hidden_size=QWEN.hidden_size,
        parts=1,
        dtype=torch.float32,
    )


def iteration(
    stage: StageModel,
    shapes: Shapes,
    schedules: dict[tuple[int, int], MicrobatchSchedule],
    graphs: dict[tuple[int, int], MicrobatchGraphs],
    seed: int,
) -> dict[str, torch.Tensor]:
    """Outputs, gradients of inputs and of weights of three microbatches as one forward, one backward has them."""
    generator = torch.Generator().manual_seed(seed)
    entered, left, found = {}, {}, {}
    for key in ONE_F_ONE_B:
        place = (0, key.microbatch)
        if key.direction is F:
            hidden = entered[place] = torch.randn(shapes.hidden, generator=generator).requires_grad_()
            left[place] = stage(hidden, None, schedules.get(place, SEQUENTIAL), graphs.get(place))
            found[f"out {key.microbatch}"] = left[place].detach().clone()
        else:
            left.pop(place).backward(torch.randn(shapes.hidden, generator=generator))
            found[f"hidden {key.microbatch}"] = entered.pop(place).grad
    return found | gradients_of(stage)


def check_replays(rank: int, parallelism: Parallelism, graph: BlockGraph, repeats: list[Recomputation]) -> None:
    mesh = gloo_groups(rank, parallelism).mesh
    for recomputation in repeats:
        if recomputation is not Recomputation.FULL or parallelism.cp == 1:
            check_stage(stage_of(mesh, recomputation, parallelism, graph), parallelism.token_shards)


def check_stage(stage: StageModel, tokens_shared: int = 1) -> None:
    partitions = detect_partitions(stage._graph, recomputation=stage.recomputation)
    choices = tuple(Choice(partition=p.name, sm_count=3, launch=p.operators[-1].name) for p in partitions)
    overlap = Schedule(Execution.OVERLAP, choices) if choices else Schedule(Execution.NANOBATCHING)
    schedules = {
        (0, 0): MicrobatchSchedule(overlap, overlap),
        (0, 1): MicrobatchSchedule(Schedule(), Schedule(Execution.NANOBATCHING)),
    }
    shapes, capture = shapes_of(stage, tokens_shared), RecordingCapture()
    buffers = StaticBuffers(shapes, CPU)
    graphs = capture_instructions([stage], ONE_F_ONE_B, schedules, buffers, capture, ())
    assert not any(gradient.any() for gradient in gradients_of(stage).values()), "a capture computes nothing"
    assert buffers.entrances == 2, "as many as microbatches in flight"
    for seed in (0, 1):
        expected = iteration(stage, shapes, schedules, {}, seed)
        found = iteration(stage, shapes, schedules, graphs, seed)
        assert departure(found, expected) == 0
    assert capture.replays == [*range(6), *range(6)], "in the order of the capture"


@pytest.mark.parametrize(
    "recomputation",
    [
        pytest.param(Recomputation.NONE, marks=pytest.mark.acceptance),
        Recomputation.SELECTIVE,
        Recomputation.FULL,
        pytest.param(Recomputation.STAGE, marks=pytest.mark.acceptance),
    ],
)
def test_replays_compute_what_launches_do(recomputation: Recomputation) -> None:
    check_stage(stage_of(Mesh(), recomputation))


@pytest.mark.parametrize(
    ("tp", "cp", "shares", "repeats"),
    [
        (2, 1, True, [Recomputation.NONE]),
        *(
            pytest.param(tp, cp, shares, list(Recomputation), marks=pytest.mark.acceptance)
            for tp, cp, shares in ((2, 1, False), (2, 1, True), (1, 2, False))
        ),
    ],
)
def test_collectives_are_replayed_with_the_operators(
    tp: int, cp: int, shares: bool, repeats: list[Recomputation], tmp_path: Path
) -> None:
    parallelism = degrees(tp, cp, sequence_parallel=shares)
    spawn(2, check_replays, tmp_path, parallelism, graph_of(QWEN, parallelism), repeats)


def test_a_graph_has_the_operators_of_its_launches_in_order() -> None:
    stage = stage_of(Mesh(), Recomputation.NONE)
    shapes, schedules = shapes_of(stage), {(0, 0): MicrobatchSchedule(*[Schedule(Execution.NANOBATCHING)] * 2)}
    capture, launched = RecordingCapture(), RecordingCapture()
    capture_instructions([stage], order((F, 0), (B, 0)), schedules, StaticBuffers(shapes, CPU), capture, ())
    hidden = torch.randn(shapes.hidden)
    with torch.no_grad():
        launched(lambda: stage.run_forward(hidden, schedules[0, 0], record=True))
    without_output = launched.names(0)
    without_output.remove("aten::empty_like")  # of the output, which a graph is given
    assert capture.names(0) == without_output


def test_nothing_in_a_block_draws_random_numbers() -> None:
    stage = stage_of(Mesh(), Recomputation.SELECTIVE)
    before = torch.get_rng_state()
    hidden = torch.randn(BATCH, TOKENS, QWEN.hidden_size, generator=torch.Generator()).requires_grad_()
    out = stage(hidden)
    out.backward(torch.ones_like(out))
    assert torch.equal(torch.get_rng_state(), before)


def test_buffers_are_as_many_as_microbatches_in_flight() -> None:
    buffers = StaticBuffers(shapes_of(stage_of(Mesh(), Recomputation.STAGE)), CPU)
    first, second = buffers.take(), buffers.take()
    buffers.give_back(first)
    assert buffers.take() is first
    assert second is not first
    assert buffers.entrances == 2


def test_the_backward_in_which_reduction_begins_is_not_captured() -> None:
    assert reducing_places(ONE_F_ONE_B) == {(0, 2)}
    interleaved = PipelineConfig(schedule=PipelineSchedule.INTERLEAVED, chunks=2, deadlines=2)
    workload = tiny_workload(dp=2, pp=2, num_microbatches=4, pipeline=interleaved, model=FOUR_LAYERS)
    keys = [step.key for step in planned_steps(workload, None, 0)]
    assert reducing_places(keys) == {(0, 3), (1, 3)}


@pytest.mark.parametrize(
    ("changes", "communicator", "says"),
    [
        ({"tp": 2}, "mscclpp", "collectives of mscclpp"),
        (
            {"pp": 2, "pipeline": PipelineConfig(schedule=PipelineSchedule.ZERO_BUBBLE_H1, chunks=1, deadlines=2)},
            "nccl",
            "pipeline.schedule=zb-h1",
        ),
        ({"dp": 2, "sharding": Sharding.FULL}, "nccl", "parallelism.sharding=full"),
    ],
)
def test_what_cannot_be_captured_is_refused(changes: dict[str, object], communicator: str, says: str) -> None:
    with pytest.raises(EngineError, match=says) as refused:
        check_captures(tiny_workload(**changes), communicator)
    assert "\n" not in str(refused.value)
    check_captures(tiny_workload(**changes), "gloo")


def test_a_pool_that_does_not_fit_is_refused() -> None:
    workload = tiny_workload(memory_reserve_gib=79.9999)
    with pytest.raises(RefusedWorkloadError, match="--cuda-graphs: out of memory"):
        check_captures(workload, "nccl")


def check_pipeline(rank: int, of: Case, reference: Reference) -> None:
    running, capture = PipelineRank(rank, of, reference), RecordingCapture()
    expected = running.expected(reference.gradients)
    workload = of.workload
    planned = ({(c, m): overlapped(of) for c in range(workload.chunks) for m in range(2)},) * workload.parallelism.pp
    assert departure(running.ran(planned), expected) <= TOLERANCE
    count = running.pipeline.capture(capture, reduces=True)
    assert count == workload.chunks * (workload.num_microbatches - 1), "the last of each chunk is reduced meanwhile"
    for _ in range(2):
        capture.replays.clear()
        assert departure(running.ran(planned), expected) <= TOLERANCE
        assert capture.replays == list(range(2 * count))


def check_pipelines(rank: int, cases: list[tuple[Case, Reference]]) -> None:
    for of, reference in cases:
        check_pipeline(rank, of, reference)


@pytest.mark.acceptance
def test_captured_pipelines_compute_what_transformers_does(tmp_path: Path) -> None:
    cases = [
        case(pp=2, microbatch_size=3),
        case(pp=2, model=FOUR_BLOCKS, recomputation=Recomputation.FULL, **INTERLEAVED),
        case(tp=2, sequence_parallel=True, recomputation=Recomputation.NONE),
        case(cp=2, recomputation=Recomputation.SELECTIVE),
        case(dp=2),
    ]
    spawn(2, check_pipelines, tmp_path, with_references(cases, tmp_path))
