"""What stages send to each other is in memory only as long and as often as the memory estimate counts."""

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from helpers.builders import small_model
from helpers.stages import stage_on_cpu
from helpers.trainings import tiny_workload
from helpers.worlds import gloo_groups, spawn
from torch.multiprocessing.reductions import StorageWeakRef

from kareus.device.controller import DryClocks
from kareus.graph.instruction import InstructionKey
from kareus.graph.recomputation import Recomputation
from kareus.launch.mesh import coordinate_of
from kareus.model.initial import draw_weights
from kareus.model.shards import shard_of
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.profile.programs import chunk_shapes
from kareus.runtime.actions import actions_of
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.follower import PlanFollower, planned_steps
from kareus.runtime.pipeline import Pipeline
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import StageModel
from kareus.training.data.batches import Batches, DataShare
from kareus.training.data.samples import SyntheticSamples
from kareus.workload.config import Workload
from kareus.workload.pipelining import most_in_flight, most_received_ahead

FOUR_LAYERS = small_model(name="tiny", vocab_size=264, num_layers=4)
MICROBATCHES = 6
ONE_FORWARD = PipelineConfig(schedule=PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, chunks=1, deadlines=2)
GPIPE = PipelineConfig(schedule=PipelineSchedule.GPIPE, chunks=1, deadlines=2)
"""All forwards come first, so that a stage has sent all of them before it receives anything."""
INTERLEAVED = PipelineConfig(schedule=PipelineSchedule.INTERLEAVED, chunks=2, deadlines=2)
"""Both stages send in both directions."""


class Counting(PlanFollower):
    """Notes how many tensors that were sent or received are in memory whenever an instruction begins."""

    sent: Sequence[StorageWeakRef] = ()
    received: Sequence[StorageWeakRef] = ()
    most_sent = most_received = 0

    def begin(self, key: InstructionKey) -> None:
        super().begin(key)
        self.most_sent = max(self.most_sent, sum(not storage.expired() for storage in self.sent))
        self.most_received = max(self.most_received, sum(not storage.expired() for storage in self.received))


def run_iteration(rank: int, workload: Workload) -> Counting:
    """Run one iteration; return what it counted."""
    parallelism = workload.parallelism
    place, groups = coordinate_of(rank, parallelism, dist.get_world_size()), gloo_groups(rank, parallelism)
    shard = shard_of(workload.model, parallelism, workload.sequence_length)
    shapes = chunk_shapes(parallelism.split, workload.chunks)
    models = [
        StageModel(
            workload.model, shard, groups.mesh, shapes[place.stage, n], torch.float32, recomputation=Recomputation.STAGE
        )
        for n in range(workload.chunks)
    ]
    draw_weights(
        StageChunks(models, first_layers(parallelism.split, workload.chunks, place.stage)), workload.model, 0, 0
    )
    follower = Counting(planned_steps(workload, None, place.stage), DryClocks(), lambda: None)
    pipeline = Pipeline(
        models,
        stage_on_cpu(place.stage, parallelism.pp, groups),
        boundary_shapes(workload, torch.float32),
        actions_of(workload, None),
        {},
        follower,
    )
    share = DataShare(microbatch_size=2, num_microbatches=workload.num_microbatches, dp_rank=0, dp=1, cp_rank=0, cp=1)
    samples = SyntheticSamples(workload.model.vocab_size, workload.sequence_length, seed=1)
    follower.sent = sent = []
    follower.received = received = []
    begin = dist.P2POp.__init__

    def note(self: dist.P2POp, op: object, tensor: torch.Tensor, *arguments: object, **options: object) -> None:
        begin(self, op, tensor, *arguments, **options)
        (sent if op is dist.isend else received).append(StorageWeakRef(tensor.untyped_storage()))

    with mock.patch.object(dist.P2POp, "__init__", note):
        pipeline.run(Batches(samples, share).next_iteration(), 1 / workload.num_microbatches)
    assert all(storage.expired() for storage in sent), "nothing is left after the iteration"
    return follower


def check_cases(rank: int) -> None:
    for pipeline in (ONE_FORWARD, GPIPE, INTERLEAVED):
        workload = tiny_workload(pp=2, model=FOUR_LAYERS, pipeline=pipeline, num_microbatches=MICROBATCHES)
        counted = run_iteration(rank, workload)
        assert len(counted.sent) == len(counted.received) == MICROBATCHES * (3 if pipeline is INTERLEAVED else 1)
        assert counted.most_sent <= 1
        assert counted.most_received <= most_in_flight(workload, rank) + most_received_ahead(workload, rank)


def test_tensors_of_messages_in_memory_are_those_that_planning_counts(tmp_path: Path) -> None:
    spawn(2, check_cases, tmp_path)
