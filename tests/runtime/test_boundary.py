"""Messages between stages are those that a plan counts, byte by byte, on every rank of a tensor-parallel group."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from helpers.pipelines import pipeline_slice
from helpers.trainings import FOUR_LAYERS, tiny_workload
from helpers.worlds import gloo_groups, spawn
from torch import Tensor

from kareus.device.controller import DryClocks
from kareus.graph.recomputation import Recomputation
from kareus.launch.mesh import coordinate_of
from kareus.model.communicators.process_group import ProcessGroupCommunicator, Works
from kareus.model.initial import draw_weights
from kareus.model.shards import shard_of
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.pipeline.transfers import boundary_message, gathered_parts
from kareus.profile.programs import chunk_shapes
from kareus.runtime.actions import actions_of
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.chunk_stage import StagePlace
from kareus.runtime.follower import PlanFollower, planned_steps
from kareus.runtime.pipeline import Pipeline
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import StageModel
from kareus.training.data.batches import Batches, DataShare
from kareus.training.data.samples import SyntheticSamples
from kareus.update.config import IterationConfig
from kareus.workload.config import Workload
from kareus.workload.slices import cut

INTERLEAVED = PipelineConfig(schedule=PipelineSchedule.INTERLEAVED, chunks=2, deadlines=2)
WITHOUT_UPDATE = IterationConfig(include_update=False)


def run_iteration(rank: int, workload: Workload) -> tuple[list[int], list[int]]:
    """Run one iteration; return the bytes of every message sent, and of every whole gathered on arrival."""
    parallelism = workload.parallelism
    place, groups = coordinate_of(rank, parallelism, dist.get_world_size()), gloo_groups(rank, parallelism)
    shard = shard_of(workload.model, parallelism, workload.sequence_length)
    shapes = chunk_shapes(parallelism.split, workload.chunks)
    models = [
        StageModel(
            workload.model,
            shard,
            groups.mesh,
            shapes[place.stage, chunk],
            torch.float32,
            recomputation=Recomputation.STAGE,
        )
        for chunk in range(workload.chunks)
    ]
    stage = StageChunks(models, first_layers(parallelism.split, workload.chunks, place.stage))
    draw_weights(stage, workload.model, 0, 0, groups.mesh.tp)
    boundary = boundary_shapes(workload, torch.float32)
    pipeline = Pipeline(
        models,
        StagePlace(
            stage=place.stage,
            stages=parallelism.pp,
            group=groups.pipeline,
            backward_group=groups.pipeline_backward,
            device=torch.device("cpu"),
            tensor=groups.mesh.tp,
        ),
        boundary,
        actions_of(workload, None),
        {},
        PlanFollower(planned_steps(workload, None, place.stage), DryClocks(), lambda: None),
    )
    share = DataShare(microbatch_size=2, num_microbatches=workload.num_microbatches, dp_rank=0, dp=1, cp_rank=0, cp=1)
    samples = SyntheticSamples(workload.model.vocab_size, workload.sequence_length, seed=1)
    sent: list[int] = []
    gathered: list[int] = []
    begin, gather = dist.P2POp.__init__, ProcessGroupCommunicator.all_gather

    def note(self: dist.P2POp, op: object, tensor: Tensor, *arguments: object, **options: object) -> None:
        begin(self, op, tensor, *arguments, **options)
        if op is dist.isend:
            sent.append(tensor.nbytes)

    def note_whole(self: ProcessGroupCommunicator, tensors: Sequence[Tensor], *arguments: Any, **options: Any) -> Works:
        gathered.extend(t.nbytes * self.size for t in tensors if tuple(t.shape) == boundary.message)
        return gather(self, tensors, *arguments, **options)

    with (
        mock.patch.object(dist.P2POp, "__init__", note),
        mock.patch.object(ProcessGroupCommunicator, "all_gather", note_whole),
    ):
        pipeline.run(Batches(samples, share).next_iteration(), 1 / workload.num_microbatches)
    return sent, gathered


def check_cases(rank: int) -> None:
    for shared in (False, True):
        for options, messages in (({}, 1), ({"pipeline": INTERLEAVED}, 3)):
            workload = tiny_workload(
                tp=2,
                pp=2,
                model=FOUR_LAYERS,
                sequence_parallel=shared,
                num_microbatches=4,
                iteration=WITHOUT_UPDATE,
                **options,
            )
            message = boundary_message(cut(workload, "pipeline"), value_bytes=torch.float32.itemsize)
            hidden = 2 * 16 * workload.model.hidden_size * torch.float32.itemsize
            assert message.sent_bytes == hidden // 2, "each rank of the group sends its half"
            sent, gathered = run_iteration(rank, workload)
            assert sent == [message.sent_bytes] * 4 * messages
            expected = [] if shared else [message.sent_bytes + message.gathered_bytes] * 4 * messages
            assert gathered == expected, "what arrives is gathered where it is not what the stage needs"


def test_ranks_send_the_bytes_that_plans_count(tmp_path: Path) -> None:
    spawn(4, check_cases, tmp_path)


@pytest.mark.parametrize(("tp", "shared", "parts"), [(1, False, 1), (4, False, 4), (4, True, 1), (5, False, 1)])
def test_hidden_states_are_sent_in_parts_if_they_divide(tp: int, shared: bool, parts: int) -> None:
    own = pipeline_slice(tp=tp)
    parallelism = dataclasses.replace(own.parallelism, sequence_parallel=shared)
    assert gathered_parts(4096, parallelism) == parts


def test_sequence_parallelism_gathers_nothing_on_arrival() -> None:
    own = pipeline_slice(tp=8)
    shared = dataclasses.replace(own, parallelism=dataclasses.replace(own.parallelism, sequence_parallel=True))
    whole = dataclasses.replace(own, parallelism=dataclasses.replace(own.parallelism, sequence_parallel=False))
    assert boundary_message(shared).sent_bytes == boundary_message(whole).sent_bytes
    assert (boundary_message(shared).gathered_bytes, boundary_message(whole).gathered_bytes) == (
        0,
        7 * boundary_message(whole).sent_bytes,
    )
