"""What a recorded pass keeps for its backward, and what it does not."""

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.builders import small_model
from helpers.worlds import gradients_of, randomise
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from kareus.model.block import Block, through
from kareus.model.communication import Mesh
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.layers import rotary_table
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.passes import CollectiveCall, Pass, Tape, backward_pass, forward_pass
from kareus.model.shards import shard_of
from kareus.model.steps import steps_of

MODEL = small_model(qk_norm=True)
ALONE = Parallelism(dp=1, pp=1, tp=1, cp=1, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False)
TWO_BY_TWO = Parallelism(dp=1, pp=1, tp=2, cp=2, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False)


class Watched(LoopbackCommunicator):
    """Remembers the memory of what it reduced and gathered, without keeping it."""

    def __init__(self, axis: str) -> None:
        super().__init__(axis, 2)
        self.seen: list[StorageWeakRef] = []

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = None) -> Any:
        return self._watch(super().all_reduce(tensors, sm_count))

    def all_gather(self, tensors: Sequence[Tensor], sm_count: int | None = None) -> Any:
        return self._watch(super().all_gather(tensors, sm_count))

    def _watch(self, transfer: Any) -> Any:
        self.seen += [StorageWeakRef(t.untyped_storage()) for t in transfer.results]
        return transfer


@torch.no_grad()
def drive(running: Pass) -> Tensor:
    while True:
        try:
            event = next(running)
        except StopIteration as end:
            return end.value
        if isinstance(event, CollectiveCall):
            event.launch(None)
        del event


def test_neither_gathered_keys_nor_reduced_updates_are_kept() -> None:
    tp, cp = Watched("tp"), Watched("cp")
    shard = shard_of(MODEL, TWO_BY_TWO, 16)
    steps = steps_of([Block(MODEL, shard, Mesh(tp=tp, cp=cp), torch.float32) for _ in range(2)])
    tape: Tape = []
    hidden = torch.randn(1, shard.tokens, shard.hidden_size)
    out = drive(forward_pass(steps, hidden, rotary_table(MODEL, shard.tokens, cp), tape))
    gc.collect()
    assert len(tp.seen) == len(cp.seen) == 4
    assert all(seen.expired() for seen in tp.seen + cp.seen)

    cp.seen.clear()
    drive(backward_pass(tape, torch.ones_like(out)))
    gc.collect()
    assert len(cp.seen) == 4, "gathered once more"
    assert all(seen.expired() for seen in cp.seen)
    assert not tape, "a tape is used up"


@pytest.mark.parametrize("variant", [{}, {"qk_norm": True, "qkv_bias": True}], ids=str)
def test_a_pass_computes_what_autograd_does(variant: dict[str, bool]) -> None:
    """Blocks called by autograd and blocks run by passes use the same functions, in different ways."""
    model = small_model(**variant)
    shard = shard_of(model, ALONE, 16)
    blocks = [Block(model, shard, Mesh(), torch.float32) for _ in range(2)]
    for block in blocks:
        randomise(block)
    table = rotary_table(model, shard.tokens, None)
    hidden, upstream = torch.randn(2, 3, shard.tokens, shard.hidden_size)
    given = hidden.clone().requires_grad_()
    expected = through(blocks, given, table)
    expected.backward(upstream)
    by_autograd = [gradients_of(block) for block in blocks]

    tape: Tape = []
    output = torch.empty_like(hidden)
    found = drive(forward_pass(steps_of(blocks), hidden, table, tape, output))
    assert found.data_ptr() == output.data_ptr()
    assert torch.equal(found, expected)
    assert torch.equal(drive(backward_pass(tape, upstream)), given.grad)
    for block, gradients in zip(blocks, by_autograd, strict=True):
        for name, gradient in gradients_of(block).items():
            assert torch.equal(gradient, gradients[name]), name
