"""Two ranks against one: tensor and context parallelism must not change what a block computes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from helpers.builders import small_model
from helpers.worlds import start_ranks
from safetensors.torch import load_file
from torch import Tensor

from kareus.errors import RefusedWorkloadError
from kareus.model.attention import chunks, positions
from kareus.model.block import Block
from kareus.model.communication import Mesh
from kareus.model.communicators.process_group import ProcessGroupCommunicator
from kareus.model.ends import Embedding, Head
from kareus.model.layers import rotary_table
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.shards import Shard, shard_of
from kareus.model.weight_files import SINGLE
from kareus.model.weights import load_weights, save_weights

RANKS = 2
BATCH, TOKENS = 2, 16
MODEL = small_model(qk_norm=True, qkv_bias=True)


def degrees(tp: int, cp: int) -> Parallelism:
    return Parallelism(dp=1, pp=1, tp=tp, cp=cp, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False)


def whole(make: Callable[[Shard, Mesh], torch.nn.Module]) -> torch.nn.Module:
    """The same unsharded module on every rank."""
    torch.manual_seed(0)
    module = make(shard_of(MODEL, degrees(1, 1), TOKENS), Mesh())
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 1.0)
    return module


def own_rows(name: str, tensor: Tensor, rank: int) -> Tensor:
    """The rows or columns that `rank` of two holds of a whole weight."""
    half = lambda t, dim=0: t.chunk(RANKS, dim)[rank]  # noqa: E731
    if ".qkv." in name:
        sizes = [MODEL.num_attention_heads * 16, MODEL.num_key_value_heads * 16, MODEL.num_key_value_heads * 16]
        return torch.cat([half(part) for part in tensor.split(sizes)])
    if "gate_up" in name:
        return torch.cat([half(part) for part in tensor.chunk(2)])
    if "projection" in name or "down" in name:
        return half(tensor, 1)
    return tensor if "norm" in name else half(tensor)


def sharded_over_tp(module: torch.nn.Module, full: torch.nn.Module, rank: int) -> None:
    module.load_state_dict({name: own_rows(name, t, rank) for name, t in full.state_dict().items()})


def check_gradients(module: torch.nn.Module, full: torch.nn.Module, part: Callable[[str, Tensor], Tensor]) -> None:
    """The gradients of `module` are `part` of those of `full`."""
    expected = dict(full.named_buffers())
    for name, gradient in module.named_buffers():
        torch.testing.assert_close(gradient, part(name, expected[name]), rtol=1e-4, atol=1e-4, msg=name)


def tensor_parallel_block(rank: int, group: ProcessGroupCommunicator) -> None:
    full = whole(lambda shard, mesh: Block(MODEL, shard, mesh, torch.float32))
    block = Block(MODEL, shard_of(MODEL, degrees(RANKS, 1), TOKENS), Mesh(tp=group), torch.float32)
    sharded_over_tp(block, full, rank)
    table = rotary_table(MODEL, TOKENS, None)
    x = torch.randn(BATCH, TOKENS, MODEL.hidden_size)
    upstream = torch.randn_like(x)
    mine, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = block(mine, table), full(wanted, table)
    out.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-4, atol=1e-4)
    for buffer in block.attention.qk_norm.buffers():
        dist.all_reduce(buffer)  # of this rank's heads only
    check_gradients(block, full, lambda name, t: own_rows(name, t, rank))


def tensor_parallel_ends(rank: int, group: ProcessGroupCommunicator) -> None:
    shard = shard_of(MODEL, degrees(RANKS, 1), TOKENS)
    ids = torch.randint(MODEL.vocab_size, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))
    full_embedding = whole(lambda s, mesh: Embedding(MODEL, s, mesh, torch.float32))
    full_head = whole(lambda s, mesh: Head(MODEL, s, mesh, torch.float32))
    embedding, head = (
        Embedding(MODEL, shard, Mesh(tp=group), torch.float32),
        Head(MODEL, shard, Mesh(tp=group), torch.float32),
    )
    sharded_over_tp(embedding, full_embedding, rank)
    sharded_over_tp(head, full_head, rank)
    loss, expected = head(embedding(ids), ids), full_head(full_embedding(ids), ids)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for sharded, unsharded in ((embedding, full_embedding), (head, full_head)):
        check_gradients(sharded, unsharded, lambda name, t: own_rows(name, t, rank))


def context_parallel_block(rank: int, group: ProcessGroupCommunicator) -> None:
    full = whole(lambda shard, mesh: Block(MODEL, shard, mesh, torch.float32))
    shard = shard_of(MODEL, degrees(1, RANKS), TOKENS)
    block = Block(MODEL, shard, Mesh(cp=group), torch.float32)
    block.load_state_dict(full.state_dict())
    x = torch.randn(BATCH, TOKENS, MODEL.hidden_size)
    upstream = torch.randn_like(x)
    held = positions(shard.tokens, group)
    mine, wanted = x[:, held].clone().requires_grad_(), x.clone().requires_grad_()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = block(mine, rotary_table(MODEL, shard.tokens, group))
    expected = full(wanted, rotary_table(MODEL, TOKENS, None))
    out.backward(upstream[:, held])
    expected.backward(upstream)
    torch.testing.assert_close(out, expected[:, held], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.grad, wanted.grad[:, held], rtol=1e-4, atol=1e-4)
    for buffer in block.buffers():
        dist.all_reduce(buffer)  # of this rank's tokens only
    check_gradients(block, full, lambda _, t: t)
    assert all(t.shape[1] == shard.tokens for t in saved if t.dim() == 4), "whole keys or values are kept"


class Ends(torch.nn.Module):
    """A block between embedding and head, under the names that checkpoints are read by."""

    def __init__(self, shard: Shard, mesh: Mesh) -> None:
        super().__init__()
        self.embedding = Embedding(MODEL, shard, mesh, torch.float32)
        self.blocks = torch.nn.ModuleList([Block(MODEL, shard, mesh, torch.float32)])
        self.head = Head(MODEL, shard, mesh, torch.float32)


def tensor_parallel_checkpoint(rank: int, group: ProcessGroupCommunicator, folder: Path) -> None:
    """Shards that are read, gathered and written are the checkpoint again."""
    full = whole(Ends)
    if rank == 0:
        save_weights(full, MODEL, folder / SINGLE, first_layer=0)
    dist.barrier()
    stage = Ends(shard_of(MODEL, degrees(RANKS, 1), TOKENS), Mesh(tp=group))
    load_weights(stage, MODEL, folder, first_layer=0, mesh=Mesh(tp=group))
    for name, parameter in stage.named_parameters():
        assert torch.equal(parameter, own_rows(name, full.get_parameter(name), rank)), name
    save_weights(stage, MODEL, folder / "again.safetensors", first_layer=0, mesh=Mesh(tp=group))
    if rank == 0:
        saved, expected = load_file(folder / "again.safetensors"), load_file(folder / SINGLE)
        assert saved.keys() == expected.keys()
        assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())


def run_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    try:
        for check in (tensor_parallel_block, tensor_parallel_ends, context_parallel_block):
            check(rank, ProcessGroupCommunicator("any", dist.group.WORLD))
        tensor_parallel_checkpoint(rank, ProcessGroupCommunicator("tp", dist.group.WORLD), Path(store).parent)
    finally:
        dist.destroy_process_group()


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    start_ranks(run_rank, (str(tmp_path / "store"),), RANKS)


class OneOfFour(NamedTuple):
    """What `positions` asks of a communicator."""

    rank: int
    size: int = 4


def test_chunks_cover_a_sequence_once_with_equal_attention() -> None:
    held = [positions(TOKENS // 4, OneOfFour(rank)) for rank in range(4)]
    assert sorted(torch.cat(held).tolist()) == list(range(TOKENS))
    assert len({int((own + 1).sum()) for own in held}) == 1
    assert chunks(TOKENS, None) == ((slice(0, TOKENS), TOKENS),)


@pytest.mark.parametrize(
    ("change", "tp", "cp", "culprit"),
    [
        ({"num_key_value_heads": 2}, 4, 1, "num_key_value_heads=2"),
        ({"intermediate_size": 49}, 2, 1, "intermediate_size=49"),
        ({"vocab_size": 41}, 2, 1, "vocab_size=41"),
        ({}, 1, 3, "sequence_length=16"),
    ],
)
def test_shapes_that_do_not_divide_are_refused(change: dict[str, int], tp: int, cp: int, culprit: str) -> None:
    with pytest.raises(RefusedWorkloadError, match=culprit):
        shard_of(dataclasses.replace(MODEL, **change), degrees(tp, cp), TOKENS)
