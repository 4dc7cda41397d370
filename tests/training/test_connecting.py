"""Messages that connect a rank to the others, beside those of an iteration."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.trainings import tiny_workload
from helpers.worlds import LLAMA, QWEN, spawn

from kareus.graph.records import Batch
from kareus.model.communicators.process_group import ProcessGroupCommunicator
from kareus.model.config import Model
from kareus.partition.extract import extract
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.chunk_stage import StagePlace
from kareus.training.connecting import block_messages, connect_group, connect_stages


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
