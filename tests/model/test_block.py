"""The block and its ends against plain torch, on one GPU's worth of weights."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from helpers.builders import small_model
from torch import Tensor
from torch.nn import functional

from kareus.model.block import Block
from kareus.model.communication import Mesh
from kareus.model.config import AttentionKernel, Model, PositionKind
from kareus.model.ends import Embedding, Head
from kareus.model.layers import rotary_table
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.shards import shard_of

TOKENS = 12
SMALL = small_model()
ALONE = Parallelism(dp=1, pp=1, tp=1, cp=1, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def reference_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, SMALL.norm_epsilon)


def reference_rope(x: Tensor) -> Tensor:
    """Rotation as multiplication of complex numbers."""
    angles = torch.arange(x.shape[1])[:, None] * SMALL.rotary_base ** -(
        torch.arange(x.shape[-1] // 2) / (x.shape[-1] // 2)
    )
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), -1)


def reference_block(model: Model, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The block in plain torch, with scores written out and heads repeated."""
    batch, tokens, _ = x.shape
    heads, shared, dim = model.num_attention_heads, model.num_key_value_heads, model.head_dim
    qkv = functional.linear(
        reference_norm(x, w["attention.norm.weight"]), w["attention.qkv.weight"], w.get("attention.qkv.bias")
    )
    q, k, v = (t.view(batch, tokens, -1, dim) for t in qkv.split([heads * dim, shared * dim, shared * dim], -1))
    if model.qk_norm:
        q = reference_norm(q, w["attention.qk_norm.query_weight"])
        k = reference_norm(k, w["attention.qk_norm.key_weight"])
    k, v = (t.repeat_interleave(heads // shared, 2) for t in (reference_rope(k), v))
    scores = torch.einsum("bqhd,bkhd->bhqk", reference_rope(q), k) / dim**0.5
    hidden_future = torch.ones(tokens, tokens).triu(1).bool()
    mixed = torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(hidden_future, float("-inf")).softmax(-1), v)
    x = x + mixed.reshape(batch, tokens, -1) @ w["attention.projection.weight"].t()
    gate, up = (reference_norm(x, w["mlp.norm.weight"]) @ w["mlp.gate_up.weight"].t()).chunk(2, -1)
    return x + (functional.silu(gate) * up) @ w["mlp.down.weight"].t()


def randomise(module: torch.nn.Module) -> None:
    """Give norms and biases values that show a mistake."""
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 1.0)


def check_weight_gradients(module: torch.nn.Module, reference: dict[str, Tensor]) -> None:
    buffers = dict(module.named_buffers())
    for name, tensor in reference.items():
        torch.testing.assert_close(buffers[f"{name}_gradient"], tensor.grad, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"qk_norm": True},
        {"qkv_bias": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "qk_norm": True},
    ],
    ids=str,
)
def test_a_block_equals_plain_torch_forward_and_backward(variant: dict[str, object]) -> None:
    model = dataclasses.replace(SMALL, **variant)
    block = Block(model, shard_of(model, ALONE, TOKENS), Mesh(), torch.float32)
    randomise(block)
    weights = {name: p.detach().clone().requires_grad_() for name, p in block.named_parameters()}
    x = torch.randn(2, TOKENS, model.hidden_size, requires_grad=True)
    x_reference = x.detach().clone().requires_grad_()
    upstream = torch.randn(2, TOKENS, model.hidden_size)

    out = block(x, rotary_table(model, TOKENS, None))
    expected = reference_block(model, weights, x_reference)
    out.backward(upstream)
    expected.backward(upstream)

    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad, x_reference.grad, rtol=1e-4, atol=1e-4)
    check_weight_gradients(block, weights)


@pytest.mark.parametrize("positions", [PositionKind.ROPE, PositionKind.ALIBI])
def test_unfused_attention_computes_what_the_fused_one_does(positions: PositionKind) -> None:
    model = dataclasses.replace(SMALL, positions=positions)
    shard = shard_of(model, ALONE, TOKENS)
    fused, unfused = (
        Block(model, shard, Mesh(), torch.float32, kernel)
        for kernel in (AttentionKernel.FUSED, AttentionKernel.UNFUSED)
    )
    randomise(fused)
    unfused.load_state_dict(fused.state_dict())
    table, upstream = rotary_table(model, TOKENS, None), torch.randn(2, TOKENS, model.hidden_size)
    x = torch.randn(2, TOKENS, model.hidden_size)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [block(own, table) for block, own in zip((fused, unfused), inputs, strict=True)]
    for output in outputs:
        output.backward(upstream)
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*(own.grad for own in inputs), rtol=1e-4, atol=1e-4)
    buffers = dict(unfused.named_buffers())
    for name, buffer in fused.named_buffers():
        torch.testing.assert_close(buffers[name], buffer, rtol=1e-4, atol=1e-4, msg=name)


def test_weight_gradients_add_up_over_microbatches() -> None:
    block = Block(SMALL, shard_of(SMALL, ALONE, TOKENS), Mesh(), torch.float32)
    table = rotary_table(SMALL, TOKENS, None)
    x = torch.randn(2, TOKENS, SMALL.hidden_size)
    block(x.clone().requires_grad_(), table).sum().backward()
    whole = block.mlp.down.weight_gradient.clone()
    block.mlp.down.weight_gradient.zero_()
    for nanobatch in x.split(1):
        block(nanobatch.clone().requires_grad_(), table).sum().backward()
    torch.testing.assert_close(block.mlp.down.weight_gradient, whole, rtol=1e-4, atol=1e-5)


def test_embedding_and_its_gradient_equal_plain_torch() -> None:
    embedding = Embedding(SMALL, shard_of(SMALL, ALONE, TOKENS), Mesh(), torch.float32)
    ids = torch.randint(SMALL.vocab_size, (2, TOKENS))
    weight = embedding.weight.detach().clone().requires_grad_()
    upstream = torch.randn(2, TOKENS, SMALL.hidden_size)
    out = embedding(ids)
    expected = weight[ids]
    out.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(out, expected)
    check_weight_gradients(embedding, {"weight": weight})


def test_head_and_loss_equal_plain_torch() -> None:
    head = Head(SMALL, shard_of(SMALL, ALONE, TOKENS), Mesh(), torch.float32)
    randomise(head)
    weights = {name: p.detach().clone().requires_grad_() for name, p in head.named_parameters()}
    x = torch.randn(2, TOKENS, SMALL.hidden_size, requires_grad=True)
    x_reference = x.detach().clone().requires_grad_()
    labels = torch.randint(SMALL.vocab_size, (2, TOKENS))

    loss = head(x, labels)
    logits = reference_norm(x_reference, weights["norm.weight"]) @ weights["lm_head.weight"].t()
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    expected.backward()

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(x.grad, x_reference.grad)
    check_weight_gradients(head, weights)


def test_a_block_in_bf16_stays_close_to_fp32() -> None:
    shard = shard_of(SMALL, ALONE, TOKENS)
    wide, narrow = (Block(SMALL, shard, Mesh(), dtype) for dtype in (torch.float32, torch.bfloat16))
    narrow.load_state_dict(wide.state_dict())
    x = torch.randn(2, TOKENS, SMALL.hidden_size)
    table = rotary_table(SMALL, TOKENS, None)
    out = narrow(x.bfloat16().requires_grad_(), table)
    out.sum().backward()
    assert out.dtype is torch.bfloat16
    assert narrow.mlp.down.weight_gradient.dtype is torch.float32
    torch.testing.assert_close(out.float(), wide(x, table), rtol=0.03, atol=0.03)
