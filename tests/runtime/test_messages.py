"""What stages send to each other is in memory only as long and as often as the memory estimate counts."""

from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from helpers.builders import small_model
from helpers.cpu_pipelines import make_pipeline, run_iteration
from helpers.trainings import tiny_workload
from helpers.worlds import gloo_groups, spawn
from torch.multiprocessing.reductions import StorageWeakRef

from kareus.graph.instruction import InstructionKey
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.runtime.follower import PlanFollower
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

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[StorageWeakRef] = []
        self.received: list[StorageWeakRef] = []
        self.most_sent = self.most_received = 0

    def begin(self, key: InstructionKey) -> None:
        super().begin(key)
        self.most_sent = max(self.most_sent, sum(not storage.expired() for storage in self.sent))
        self.most_received = max(self.most_received, sum(not storage.expired() for storage in self.received))


def counted_iteration(rank: int, workload: Workload) -> Counting:
    """Run one iteration; return what it counted."""
    pipeline = make_pipeline(rank, workload, gloo_groups(rank, workload.parallelism), Counting)
    follower = pipeline.follower
    assert isinstance(follower, Counting)
    begin = dist.P2POp.__init__

    def note(self: dist.P2POp, op: object, tensor: torch.Tensor, *arguments: object, **options: object) -> None:
        begin(self, op, tensor, *arguments, **options)
        (follower.sent if op is dist.isend else follower.received).append(StorageWeakRef(tensor.untyped_storage()))

    with mock.patch.object(dist.P2POp, "__init__", note):
        run_iteration(pipeline, workload, rank)
    assert all(storage.expired() for storage in follower.sent), "nothing is left after the iteration"
    return follower


def check_cases(rank: int) -> None:
    for pipeline in (ONE_FORWARD, GPIPE, INTERLEAVED):
        workload = tiny_workload(pp=2, model=FOUR_LAYERS, pipeline=pipeline, num_microbatches=MICROBATCHES)
        counted = counted_iteration(rank, workload)
        assert len(counted.sent) == len(counted.received) == MICROBATCHES * (3 if pipeline is INTERLEAVED else 1)
        assert counted.most_sent <= 1
        assert counted.most_received <= most_in_flight(workload, rank) + most_received_ahead(workload, rank)


def test_tensors_of_messages_in_memory_are_those_that_planning_counts(tmp_path: Path) -> None:
    spawn(2, check_cases, tmp_path)
