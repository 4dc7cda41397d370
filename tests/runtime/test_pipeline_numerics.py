"""Loss and gradients of a pipeline, divided in any way and run by any plan, are those of the whole model on one GPU."""

import dataclasses
import gc
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from helpers.stages import stage_on_cpu
from helpers.trainings import tiny_workload
from helpers.worlds import LLAMA, QWEN, departure, drawn, gradients_of, graph_of, schedules, spawn
from hypothesis import example, given
from hypothesis import strategies as st

from kareus.device.controller import DryClocks
from kareus.errors import EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, Direction
from kareus.launch.mesh import coordinate_of
from kareus.launch.process_groups import make_process_groups, sum_over_ranks
from kareus.model.communication import Communicator, Mesh
from kareus.model.communicators.choice import Library
from kareus.model.initial import draw_weights
from kareus.model.shards import shard_of
from kareus.model.weights import own_part, pieces
from kareus.partition.detect import detect_partitions
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.profile.programs import Execution, chunk_shapes, stage_shapes
from kareus.runtime.actions import actions_of
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.chunk_stage import ChunkStage
from kareus.runtime.follower import PlanFollower, PlannedStep, planned_steps
from kareus.runtime.pipeline import Pipeline
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import StageModel
from kareus.schedule.records import Choice
from kareus.training.bucket_reduction import BucketReduction
from kareus.training.data.batches import Batches, DataShare, Microbatch
from kareus.training.data.samples import SyntheticSamples
from kareus.training.optimizer_sharding import OptimizerSharding
from kareus.update.directions import update_directions
from kareus.workload.config import Workload

TOLERANCE = 1e-5
EXAMPLES = 4
"""Plans drawn for each case, run one after the other by one pipeline, whose buffers that receive are used again."""


class Case(NamedTuple):
    """A workload, and the graph of its block."""

    workload: Workload
    graph: BlockGraph


def case(dp: int = 1, pp: int = 1, tp: int = 1, cp: int = 1, **changes: object) -> Case:
    workload = tiny_workload(dp, pp, tp, cp, **changes)
    return Case(workload, graph_of(workload.model, workload.parallelism))


Planned = tuple[dict[tuple[int, int], MicrobatchSchedule], ...]
"""Schedules by chunk and microbatch, by stage; what nothing is said of runs sequentially."""


def plans(of: Case) -> st.SearchStrategy[Planned]:
    """Any legal plan of the pipeline: each microbatch runs as it likes through each chunk."""
    recomputation, split_backward = of.workload.recomputation, of.workload.split_backward
    one = schedules(of.graph, recomputation=recomputation, split_backward=split_backward)
    passes = itertools.product(range(of.workload.chunks), range(of.workload.num_microbatches))
    stage = st.fixed_dictionaries(dict.fromkeys(passes, one))
    return st.tuples(*[stage] * of.workload.parallelism.pp)


def overlapped(of: Case) -> MicrobatchSchedule:
    """Every collective launched beside the last operator of its partition; nanobatching where there is none."""
    recomputation, split_backward = of.workload.recomputation, of.workload.split_backward
    choices = tuple(
        Choice(partition=p.name, sm_count=3, launch=p.operators[-1].name)
        for p in detect_partitions(of.graph, recomputation=recomputation, split_backward=split_backward)
    )
    schedule = Schedule(Execution.OVERLAP, choices) if choices else Schedule(Execution.NANOBATCHING)
    return MicrobatchSchedule(schedule, schedule)


def microbatches(workload: Workload, dp_rank: int, cp_rank: int, cp: int) -> list[Microbatch]:
    share = DataShare(
        microbatch_size=workload.microbatch_size,
        num_microbatches=workload.num_microbatches,
        dp_rank=dp_rank,
        dp=workload.parallelism.dp,
        cp_rank=cp_rank,
        cp=cp,
    )
    samples = SyntheticSamples(workload.model.vocab_size, workload.sequence_length, seed=1)
    return Batches(samples, share).next_iteration()


def reference(of: Case) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean loss and gradients of the whole model, one microbatch after the other in one process."""
    workload = of.workload
    alone = dataclasses.replace(
        workload.parallelism, dp=1, pp=1, tp=1, cp=1, layers_per_stage=(workload.model.num_layers,)
    )
    shard = shard_of(workload.model, alone, workload.sequence_length)
    (shape,) = stage_shapes(alone.split)
    whole = StageModel(workload.model, shard, Mesh(), shape, torch.float32, recomputation=Recomputation.NONE)
    draw_weights(whole, workload.model, 0, 0)
    replicas, mean_loss = workload.parallelism.dp, torch.zeros(())
    for replica in range(replicas):
        for ids, labels in ((m.ids, m.labels) for m in microbatches(workload, replica, 0, 1)):
            loss = whole(torch.from_numpy(ids), torch.from_numpy(labels)) / (workload.num_microbatches * replicas)
            loss.backward()
            mean_loss += loss.detach()
    return mean_loss, gradients_of(whole)


def own_shard(gradient: torch.Tensor, workload: Workload, name: str, group: Communicator | None) -> torch.Tensor:
    held = pieces(workload.model, name, 0)
    parts = torch.split(gradient, [piece.shape[0] for piece in held])
    return torch.cat([part[own_part(piece, group)] for piece, part in zip(held, parts, strict=True)])


def check_case(rank: int, of: Case) -> None:
    workload = of.workload
    parallelism = workload.parallelism
    place = coordinate_of(rank, parallelism, dist.get_world_size())
    ties = workload.model.tie_embeddings
    groups = make_process_groups(place, parallelism, Library.GLOO, scratch_bytes=0, tie_embeddings=ties)
    shard = shard_of(workload.model, parallelism, workload.sequence_length)
    split, shapes = parallelism.split, chunk_shapes(parallelism.split, workload.chunks)
    models = [
        StageModel(
            workload.model,
            shard,
            groups.mesh,
            shapes[place.stage, chunk],
            torch.float32,
            recomputation=workload.recomputation,
            graph=of.graph,
            default_sm_count=20,
        )
        for chunk in range(workload.chunks)
    ]
    stage = StageChunks(models, first_layers(split, workload.chunks, place.stage))
    draw_weights(stage, workload.model, 0, 0, groups.mesh.tp)
    scheduled: dict[tuple[int, int], MicrobatchSchedule] = {}
    follower = Watching(planned_steps(workload, None, place.stage), DryClocks(), lambda: None)
    sharding = OptimizerSharding(stage, groups.optimizer_shards)
    reduction = BucketReduction(stage, sharding, groups)
    pipeline = Pipeline(
        models,
        stage_on_cpu(place.stage, parallelism.pp, groups),
        boundary_shapes(workload, torch.float32),
        actions_of(workload, None),
        scheduled,
        follower,
        reduction.ready,
    )
    follower.stages = pipeline._runtime._stages
    mean_loss, gradients = reference(of)
    expected = {"loss": mean_loss}
    for name in (n for n, _ in stage.named_buffers() if n.endswith("_gradient")):
        weight = name.removesuffix("_gradient")
        at = name.replace(weight, _in_whole(weight, workload))
        expected[name] = own_shard(gradients[at], workload, weight, groups.mesh.tp)
    own = microbatches(workload, place.replica, place.cp, parallelism.cp)

    @drawn(EXAMPLES)
    @given(planned=plans(of))
    @example(planned=({(0, 0): MicrobatchSchedule(), (workload.chunks - 1, 1): overlapped(of)},) * parallelism.pp)
    def check(planned: Planned) -> None:
        scheduled.clear()
        scheduled.update(planned[place.stage])
        before = activations(workload)
        loss = pipeline.run(own, 1 / (workload.num_microbatches * parallelism.dp * parallelism.cp))
        assert sorted(reduction.in_flight) == sorted(sharding.buckets), "all were begun as backwards completed them"
        reduction.finish()
        if groups.tied_embeddings is not None:
            reduction.exchange()
        for direction in update_directions(workload, place.stage):
            pipeline.begin_update(direction)
        pipeline.end_iteration()
        (summed,) = sum_over_ranks(0.0 if loss is None or place.tp else float(loss))
        assert departure({"loss": torch.tensor(summed), **gradients_of(stage)}, expected) <= TOLERANCE
        left = [t for t in activations(workload) if not any(t is other for other in before)]
        assert not left, "memory that messages were received in is given back"
        assert follower.most_bytes <= torch.float32.itemsize, "and so is that which they were sent from"

    check()


class Watching(PlanFollower):
    """Notes how much memory the outputs of microbatches in flight take whenever an instruction begins."""

    stages: Sequence[ChunkStage] = ()
    most_bytes = 0

    def begin(self, key: InstructionKey) -> None:
        super().begin(key)
        for outputs, _ in (passed for stage in self.stages for passed in stage.fwd_cache.values()):
            self.most_bytes = max([self.most_bytes, *(t.untyped_storage().nbytes() for t in outputs)])


def activations(workload: Workload) -> list[torch.Tensor]:
    """Tensors that have the size of what passes between stages; shards of weights may have it, too."""
    shapes = boundary_shapes(workload, torch.float32)
    tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.device.type == "cpu"]
    return [t for t in tensors if t.shape in (shapes.hidden, shapes.message)]


def _in_whole(name: str, workload: Workload) -> str:
    """Where the gradient of a weight of a stage is, among those of the whole model."""
    return "embedding.weight" if name == "head.lm_head.weight" and workload.model.tie_embeddings else name


def check_cases(rank: int, cases: list[Case]) -> None:
    for each in cases:
        check_case(rank, each)


TIED = dataclasses.replace(QWEN, vocab_size=264, tie_embeddings=True)
GPIPE = PipelineConfig(schedule=PipelineSchedule.GPIPE, chunks=1, deadlines=2)
INTERLEAVED = {
    "pipeline": PipelineConfig(schedule=PipelineSchedule.INTERLEAVED, chunks=2, deadlines=2),
    "num_microbatches": 4,
}
ZERO_BUBBLE = PipelineConfig(schedule=PipelineSchedule.ZERO_BUBBLE_H1, chunks=1, deadlines=2)
FOUR_LAYERS = dataclasses.replace(LLAMA, num_layers=4)
TIED_LAYERS = dataclasses.replace(TIED, num_layers=4)


def test_two_ranks_compute_loss_and_gradients_of_one(tmp_path: Path) -> None:
    cases = [
        case(pp=2, microbatch_size=3),
        case(pp=2, model=TIED, recomputation=Recomputation.NONE),
        case(pp=2, microbatch_size=3, recomputation=Recomputation.NONE),
        case(pp=2, pipeline=GPIPE, num_microbatches=2),
        case(pp=2, num_microbatches=1, recomputation=Recomputation.FULL),
        case(pp=2, microbatch_size=3, recomputation=Recomputation.SELECTIVE),
        case(pp=2, model=FOUR_LAYERS, recomputation=Recomputation.FULL, **INTERLEAVED),
        case(pp=2, pipeline=ZERO_BUBBLE, model=TIED, recomputation=Recomputation.SELECTIVE),
        case(pp=2, pipeline=ZERO_BUBBLE, microbatch_size=3, model=FOUR_LAYERS, recomputation=Recomputation.FULL),
        case(pp=2, model=FOUR_LAYERS, **INTERLEAVED),
        case(pp=2, model=TIED_LAYERS, recomputation=Recomputation.NONE, **INTERLEAVED),
        case(pp=2, pipeline=ZERO_BUBBLE, microbatch_size=3),
        case(pp=2, pipeline=ZERO_BUBBLE, model=TIED, recomputation=Recomputation.NONE),
        case(dp=2, microbatch_size=3),
        case(dp=2, recomputation=Recomputation.NONE),
        case(tp=2),
        case(tp=2, microbatch_size=3, recomputation=Recomputation.FULL),
        case(tp=2, model=QWEN, recomputation=Recomputation.SELECTIVE),
        case(cp=2, model=TIED),
        case(cp=2, recomputation=Recomputation.SELECTIVE),
    ]
    spawn(2, check_cases, tmp_path, cases)


def test_two_ranks_that_share_tokens_compute_what_one_does(tmp_path: Path) -> None:
    cases = [
        case(tp=2, sequence_parallel=True, microbatch_size=3),
        case(tp=2, sequence_parallel=True, model=TIED, recomputation=Recomputation.NONE),
        case(tp=2, sequence_parallel=True, microbatch_size=3, recomputation=Recomputation.SELECTIVE),
        case(tp=2, sequence_parallel=True, recomputation=Recomputation.FULL),
    ]
    spawn(2, check_cases, tmp_path, cases)


@pytest.mark.slow
def test_four_ranks_that_share_tokens_compute_what_one_does(tmp_path: Path) -> None:
    cases = [
        case(tp=2, pp=2, sequence_parallel=True, microbatch_size=3),
        case(tp=2, pp=2, sequence_parallel=True, model=TIED, recomputation=Recomputation.NONE),
        case(tp=2, cp=2, sequence_parallel=True),
        case(tp=2, cp=2, sequence_parallel=True, model=TIED, recomputation=Recomputation.NONE),
        case(tp=2, cp=2, sequence_parallel=True, recomputation=Recomputation.SELECTIVE),
        case(tp=2, cp=2, sequence_parallel=True, microbatch_size=3, recomputation=Recomputation.FULL),
        case(tp=2, dp=2, sequence_parallel=True, microbatch_size=3),
        case(tp=2, pp=2, sequence_parallel=True, pipeline=ZERO_BUBBLE, model=TIED, microbatch_size=3),
        case(tp=2, pp=2, sequence_parallel=True, pipeline=ZERO_BUBBLE, recomputation=Recomputation.NONE),
        case(tp=2, pp=2, sequence_parallel=True, model=FOUR_LAYERS, **INTERLEAVED),
    ]
    spawn(4, check_cases, tmp_path, cases)


@pytest.mark.slow
def test_four_ranks_compute_loss_and_gradients_of_one(tmp_path: Path) -> None:
    cases = [
        case(tp=2, pp=2),
        case(tp=2, pp=2, model=TIED, microbatch_size=3, recomputation=Recomputation.NONE),
        case(dp=2, pp=2, model=TIED),
        case(tp=2, pp=2, pipeline=ZERO_BUBBLE),
        case(tp=2, pp=2, model=TIED, pipeline=ZERO_BUBBLE, microbatch_size=3, recomputation=Recomputation.NONE),
        case(cp=2, pp=2, pipeline=ZERO_BUBBLE),
        case(cp=2, pp=2, pipeline=ZERO_BUBBLE, recomputation=Recomputation.NONE),
        case(tp=2, pp=2, model=FOUR_LAYERS, **INTERLEAVED),
        case(tp=2, pp=2, model=TIED_LAYERS, microbatch_size=3, recomputation=Recomputation.NONE, **INTERLEAVED),
    ]
    spawn(4, check_cases, tmp_path, cases)


def test_an_instruction_out_of_the_planned_order_stops_the_run() -> None:
    workload = tiny_workload(num_microbatches=2)
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    follower = PlanFollower(planned_steps(workload, None, 0), DryClocks(), lambda: None)
    follower.begin(InstructionKey(0, 0, 0, forward))
    with pytest.raises(EngineError, match="forward of microbatch 1 on stage 0: the plan has backward of microbatch 0"):
        follower.begin(InstructionKey(0, 0, 1, forward))
    follower.begin(InstructionKey(0, 0, 0, backward))
    with pytest.raises(EngineError, match="forward of microbatch 1 on stage 0: planned and did not run"):
        follower.end_iteration()


def test_a_clock_is_set_after_previously_launched_work_has_run() -> None:
    workload = tiny_workload(num_microbatches=2)
    happened: list[str] = []
    steps = tuple(
        PlannedStep(step.key, 1410 if step.key.direction is Direction.FORWARD else 1200)
        for step in planned_steps(workload, None, 0)
    )
    follower = PlanFollower(steps, DryClocks(happened.append), lambda: happened.append("wait"))
    for _ in range(2):
        for step in steps:
            follower.begin(step.key)
        follower.end_iteration()
    said = ["wait", "would lock the SM clock to 1410 MHz", "wait", "would lock the SM clock to 1200 MHz"]
    assert happened == said * 4
