"""Messages that connect a rank to the others, beside those of an iteration."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.trainings import tiny_workload
from helpers.worlds import GPT, LLAMA, QWEN, spawn

from kareus.graph.number_formats import FP32_BYTES
from kareus.graph.records import Batch, CollectiveKind
from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import SUM, Mesh
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.communicators.process_group import ProcessGroupCommunicator
from kareus.model.config import Model
from kareus.model.parallelism import Sharding
from kareus.model.shards import shard_of
from kareus.partition.extract import extract
from kareus.profile.programs import StageShape
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.chunk_stage import StagePlace
from kareus.runtime.stage_model import StageModel
from kareus.training.bucket_reduction import BucketReduction
from kareus.training.connecting import block_messages, connect_group, connect_stages, weight_messages
from kareus.training.optimizer_sharding import OptimizerSharding


@pytest.mark.parametrize("model", [LLAMA, QWEN])
@pytest.mark.parametrize("division", [{"tp": 2}, {"cp": 2}, {"tp": 2, "cp": 2}])
def test_groups_are_connected_by_the_collectives_of_blocks(division: dict[str, int], model: Model) -> None:
    workload = tiny_workload(**division, model=model, sequence_length=32, microbatch_size=4)
    graphs = extract(workload.model, workload.parallelism, workload.microbatch_size, workload.sequence_length)
    found = {
        (c.group, c.kind, c.message_bytes, c.fused)
        for batch in (Batch.MICROBATCH, Batch.NANOBATCH)
        for segment in (*graphs[batch].forward, *graphs[batch].backward)
        if (c := segment.collective) is not None
    }
    expected = {(axis, *message) for axis in division for message in block_messages(workload)[axis]}
    assert found == expected


class Noted(LoopbackCommunicator):
    """A communicator that notes the sizes of what it sums."""

    def __init__(self, axis: str) -> None:
        super().__init__(axis, 2)
        self.found: set[tuple[CollectiveKind, int, int]] = set()

    def all_reduce(self, tensors: Any, sm_count: int | None = None, operation: Any = SUM) -> Any:
        self.found |= {(CollectiveKind.ALL_REDUCE, FP32_BYTES * tensor.numel(), 1) for tensor in tensors}
        return super().all_reduce(tensors, sm_count, operation)


@pytest.mark.parametrize(
    ("axis", "layout", "model"),
    [
        ("cp", {"dp": 2, "cp": 2, "sharding": Sharding.OPTIMIZER}, QWEN),
        ("cp", {"cp": 2}, QWEN),
        ("tp", {"tp": 2, "sequence_parallel": True}, QWEN),
        ("tp", {"tp": 2, "sequence_parallel": True}, GPT),
        ("tp", {"tp": 2}, QWEN),
        ("tp", {"tp": 2}, LLAMA),
    ],
)
def test_groups_are_connected_by_sums_of_gradients(axis: str, layout: dict[str, Any], model: Model) -> None:
    """Of the blocks of a stage in the middle."""
    workload = tiny_workload(pp=3, model=dataclasses.replace(model, num_layers=3), **layout)
    parallelism, group = workload.parallelism, Noted(axis)
    mesh = Mesh(**{axis: group}, sequence_parallel=parallelism.sequence_parallel)
    shape, shard = StageShape(layers=1, first=False, last=False), shard_of(workload.model, parallelism, 16)
    stage = StageModel(workload.model, shard, mesh, shape, torch.float32, recomputation=workload.recomputation)
    replica: Any = SimpleNamespace(size=lambda: parallelism.dp, rank=lambda: 0) if parallelism.shards_states else None
    data = None if parallelism.shards_states else Noted("dp")
    groups = ProcessGroups(
        mesh=mesh, data=data, pipeline=None, pipeline_backward=None, tensor=None, tied_embeddings=None,
        optimizer_shards=None,
    )  # fmt: skip
    BucketReduction(stage, OptimizerSharding(stage, replica), groups).finish()
    assert group.found == set(weight_messages(workload, stage=1)[axis])


def check_connecting(rank: int) -> None:
    group, device = dist.group.WORLD, torch.device("cpu")
    assert group is not None
    messages = block_messages(tiny_workload(tp=2, cp=2))
    for axis in ("tp", "cp"):
        connect_group(ProcessGroupCommunicator(axis, group), messages[axis], {None, 3}, device)
    sizes: list[tuple[str, tuple[int, ...]]] = []
    begin = dist.P2POp.__init__

    def note(self: dist.P2POp, op: object, tensor: torch.Tensor, *arguments: object, **options: object) -> None:
        begin(self, op, tensor, *arguments, **options)
        sizes.append(("send" if op is dist.isend else "receive", tuple(tensor.shape)))

    dist.P2POp.__init__ = note  # type: ignore[method-assign]
    shapes = boundary_shapes(tiny_workload(pp=2), torch.float32)
    place = StagePlace(stage=rank, stages=2, group=group, backward_group=group, device=device, tensor=None)
    once = ["send", "receive"] if rank == 0 else ["receive", "send"]
    for chunks, expected in ((1, once), (2, once + once[::-1])):
        sizes.clear()
        connect_stages(place, shapes, chunks)
        assert sizes == [(what, (2, 16, 32)) for what in expected]


def test_neighbouring_stages_exchange_boundaries_both_ways(tmp_path: Path) -> None:
    spawn(2, check_connecting, tmp_path)
