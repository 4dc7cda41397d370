"""Messages of collectives of tokens: the profiler launches those that the engine launches."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.worlds import LLAMA, TOKENS, degrees
from torch import Tensor

from kareus.graph.records import Batch, Collective, CollectiveKind, SequenceCollective
from kareus.model.block import Block, through
from kareus.model.communication import Mesh
from kareus.model.communicators.choice import Library
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.layers import rotary_table
from kareus.model.shards import shard_of
from kareus.partition.extract import extract
from kareus.testbed.cuda import collectives as collectives_of_programs
from kareus.testbed.cuda.collectives import Collectives

CPU = torch.device("cpu")
BLOCKS = 2


class Counting(LoopbackCommunicator):
    """Notes the elements of every message of every launch."""

    def __init__(self) -> None:
        super().__init__("tp", 2)
        self.launches: list[tuple[str, list[int]]] = []

    def all_gather(self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Any = None) -> Any:
        self.launches.append(("allgather", [tensor.numel() for tensor in tensors]))
        return super().all_gather(tensors, sm_count, into)

    def reduce_scatter(self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Any = None) -> Any:
        self.launches.append(("reducescatter", [tensor.numel() for tensor in tensors]))
        return super().reduce_scatter(tensors, sm_count, into)


def engine_launches(batch: int) -> list[tuple[str, list[int]]]:
    """What blocks launch forward and backward."""
    counting = Counting()
    mesh = Mesh(tp=counting, sequence_parallel=True)
    shard = shard_of(LLAMA, degrees(2, sequence_parallel=True), TOKENS)
    blocks = [Block(LLAMA, shard, mesh, torch.float32) for _ in range(BLOCKS)]
    hidden = torch.randn(batch, shard.tokens // 2, shard.hidden_size, requires_grad=True)
    through(blocks, hidden, rotary_table(LLAMA, shard.tokens, mesh.cp)).sum().backward()
    return counting.launches


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_profiled_messages_are_those_of_the_engine(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting()
    monkeypatch.setattr(collectives_of_programs, "make_communicator", lambda *_, **__: counting)
    collectives = Collectives(Library.LOOPBACK, {}, 0, CPU)
    graph = extract(LLAMA, degrees(2, sequence_parallel=True), batch, TOKENS)[Batch.MICROBATCH]
    for segments in (graph.forward, graph.backward):
        for _ in range(BLOCKS):
            for segment in segments:
                if segment.collective is not None:
                    collectives.prepare(segment.collective, 4)().wait()
    assert counting.launches == engine_launches(batch)


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER])
def test_each_sequence_is_a_message_of_a_fused_launch(kind: CollectiveKind) -> None:
    """Two buffers of 256 bf16 values, of four sequences, over two GPUs: 32 values of a sequence on a GPU."""
    shared = SequenceCollective(kind=kind, group="tp", group_size=2, message_bytes=1024, fused=2, sequences=4)
    results = Collectives(Library.LOOPBACK, {}, 0, CPU).prepare(shared, 4)().wait()
    assert [tuple(r.shape) for r in results] == [(4, 64 if kind is CollectiveKind.ALL_GATHER else 32)] * 2
    assert shared.at_once == Collective(kind=kind, group="tp", group_size=2, message_bytes=1024, fused=2)
