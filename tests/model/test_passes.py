"""What a recorded pass keeps for its backward, and what it does not."""

import gc
from collections.abc import Sequence
from typing import Any

import torch
from helpers.builders import small_model
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from kareus.model.block import INPUT, TABLE, Block
from kareus.model.communication import Mesh
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.config import Parallelism, Sharding
from kareus.model.layers import ColumnParallelLinear, Norm, RowParallelLinear, SwiGlu, rotary_table
from kareus.model.passes import CollectiveCall, Pass, Tape, backward_pass, forward_pass
from kareus.model.shards import shard_of
from kareus.model.steps import as_tuple, steps_of

MODEL = small_model(qk_norm=True)
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
    with torch.no_grad():
        drive(backward_pass(tape, torch.ones_like(out)))
    gc.collect()
    assert len(cp.seen) == 4, "gathered once more"
    assert all(seen.expired() for seen in cp.seen)
    assert not tape, "a tape is used up"


def test_operators_that_say_so_are_one_function_of_their_inputs() -> None:
    """The gradients that such a function returns are those of the operator, without autograd's engine."""
    shard = shard_of(MODEL, TWO_BY_TWO, 16)
    block = Block(MODEL, shard, Mesh(), torch.float32)
    hidden = torch.randn(1, shard.tokens, shard.hidden_size)
    values: dict[str, Any] = {}
    are_functions = set()
    for step in [step for layer in steps_of([block]) for step in layer]:
        values |= {INPUT: hidden, TABLE: rotary_table(MODEL, shard.tokens, None)}
        given = [v.detach().requires_grad_() if isinstance(v, Tensor) else v for v in (values[n] for n in step.reads)]
        outputs = as_tuple(step.operator.compute(*given))
        values |= zip(step.writes, (t.detach() for t in outputs), strict=True)
        if step.operator.is_function:
            are_functions.add(type(step.operator))
            (output,), (gradient, *_) = outputs, (torch.randn_like(t) for t in outputs)
            assert output.grad_fn is not None
            assert [getattr(before, "variable", None) for before, _ in output.grad_fn.next_functions][:1] == given
            expected = torch.autograd.grad(output, given, gradient, retain_graph=True)
            called: Any = output.grad_fn.apply(gradient)  # type: ignore[attr-defined]
            assert all(torch.equal(own, e) for own, e in zip(as_tuple(called), expected, strict=False))
    assert are_functions == {Norm, ColumnParallelLinear, RowParallelLinear, SwiGlu}
