"""What operators and collectives of real models move and compute, against figures worked out by hand and PyTorch."""

import dataclasses
from collections import Counter

import pytest
import torch
from helpers.extracted import LLAMA, QWEN, SEQUENCE, degrees, graphs, named, nanobatch, operator, total_flops
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from kareus.graph.records import Batch, OperatorKind, Segment
from kareus.model.block import Block
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.layers import rotary_table
from kareus.model.shards import shard_of


def all_segments(tp: int, cp: int) -> list[Segment]:
    graph = nanobatch(LLAMA, tp, cp)
    return [*graph.forward, *graph.backward]


def test_an_all_reduce_carries_the_hidden_states_of_a_nanobatch() -> None:
    for segment in all_segments(8, 1):
        assert segment.collective is not None
        assert segment.collective.message_bytes == 4 * 4096 * 3072 * 2  # 100.7 MB
        assert (segment.collective.group, segment.collective.group_size, segment.collective.fused) == ("tp", 8, 1)


def test_keys_and_values_share_their_collectives() -> None:
    graph = nanobatch(QWEN, 4, 2)
    both = 2 * 4 * 4096 * (8 // 4) * 128 * 2  # keys and values x sequences x tokens x heads x dimension x bytes
    for collective in (graph.forward[0].collective, graph.backward[1].collective, graph.backward[2].collective):
        assert collective is not None
        assert (collective.message_bytes, collective.fused) == (both, 2)
        assert (collective.group, collective.group_size) == ("cp", 2)


def test_norm_moves_what_a_fused_kernel_moves() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    hidden, scales, weight = 4 * 4096 * 3072 * 2, 4 * 4096 * 4, 3072
    forward = operator(graph.forward, "mlp", "norm")
    assert forward.bytes_read == 2 * hidden + 2 * weight  # residual stream and update
    assert forward.bytes_written == 2 * hidden + scales  # residual stream and normalised, scales for backward
    backward = operator(graph.backward, "mlp", "norm")
    # Gradients of the output and of the residual stream, the input, its scales, the weight and its gradient's sum.
    assert backward.bytes_read == 3 * hidden + scales + (2 + 4) * weight
    assert backward.bytes_written == hidden + 4 * weight


def test_activation_and_rope_move_what_a_fused_kernel_moves() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    tokens, inner = 4 * 4096, 8192 // 8
    forward, backward = (operator(s, "mlp", "activation") for s in (graph.forward, graph.backward))
    assert (forward.bytes_read, forward.bytes_written) == (2 * tokens * 2 * inner, 2 * tokens * inner)
    assert (backward.bytes_read, backward.bytes_written) == (2 * tokens * 3 * inner, 2 * tokens * 2 * inner)
    rope = operator(graph.forward, "attention", "rope")
    angles = 2 * 4096 * 64 * 4
    assert (rope.bytes_read, rope.bytes_written) == (2 * tokens * (3 + 1) * 128 + angles, 2 * tokens * (3 + 1) * 128)


def test_matrix_products_read_inputs_and_add_gradients_in_fp32() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    tokens, wide, hidden = 4 * 4096, 2 * 8192 // 8, 3072
    forward = operator(graph.forward, "mlp", "gate_up")
    assert forward.shape == (tokens, wide, hidden)
    assert (forward.bytes_read, forward.bytes_written) == (2 * hidden * (tokens + wide), 2 * tokens * wide)
    dgrad, wgrad = (operator(graph.backward, "mlp", f"gate_up.{part}") for part in ("dgrad", "wgrad"))
    assert (dgrad.shape, wgrad.shape) == ((tokens, hidden, wide), (wide, hidden, tokens))
    assert wgrad.bytes_read == 2 * tokens * (wide + hidden) + 4 * wide * hidden
    assert wgrad.bytes_written == 4 * wide * hidden
    assert forward.flops == dgrad.flops == wgrad.flops == 2 * tokens * wide * hidden


def test_a_bias_is_part_of_its_projection() -> None:
    biased = nanobatch(dataclasses.replace(LLAMA, qkv_bias=True), 8, 1)
    plain = nanobatch(LLAMA, 8, 1)
    assert named(biased.forward) == named(plain.forward)
    rows = (24 + 2 * 8) * 128 // 8
    reads = [operator(graph.forward, "attention", "qkv").bytes_read for graph in (biased, plain)]
    assert reads[0] - reads[1] == 2 * rows


def test_the_gradient_of_a_bias_reads_the_output_gradient() -> None:
    biased = nanobatch(dataclasses.replace(LLAMA, qkv_bias=True), 8, 1)
    plain = nanobatch(LLAMA, 8, 1)
    products = [operator(graph.backward, "attention", "qkv.wgrad") for graph in (biased, plain)]
    assert products[0] == products[1]
    own = operator(biased.backward, "attention", "qkv.bias.wgrad")
    rows = (24 + 2 * 8) * 128 // 8
    assert own.is_weight_gradient
    assert (own.kind, own.flops, own.shape) == (OperatorKind.MEMORY, 0, (rows,))
    assert (own.bytes_read, own.bytes_written) == (2 * 4 * SEQUENCE * rows + 4 * rows, 4 * rows)
    tails = [next(s.independent_tail for s in g.backward if s.name == "attention") for g in (biased, plain)]
    assert tails == [2, 1]


@pytest.mark.parametrize(("tp", "cp"), [(8, 1), (4, 2), (2, 4)])
def test_attention_leaves_out_the_masked_half(tp: int, cp: int) -> None:
    graph = nanobatch(LLAMA, tp, cp)
    forward, backward = (operator(segments, "attention", "attention") for segments in (graph.forward, graph.backward))
    assert (forward.kind, backward.kind) == (OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD)
    assert forward.shape == backward.shape == (4, 24 // tp, 8 // tp, SEQUENCE // cp, SEQUENCE, 128)
    pairs = (SEQUENCE // cp) * SEQUENCE // 2
    assert forward.flops == 2 * 2 * 4 * (24 // tp) * pairs * 128
    assert backward.flops * 2 == forward.flops * 5
    if cp == 1:
        tokens, heads = 4 * SEQUENCE, 24 // tp + 2 * (8 // tp)
        assert forward.bytes_read == 2 * tokens * heads * 128
        assert forward.bytes_written == tokens * (24 // tp) * (2 * 128 + 4)


def test_cp_attention_counts_copies_of_keys_values_and_outputs() -> None:
    graph = nanobatch(LLAMA, 4, 2)
    forward, backward = (operator(segments, "attention", "attention") for segments in (graph.forward, graph.backward))
    queries, shared = (2 * 4 * tokens * heads * 128 for tokens, heads in ((SEQUENCE // 2, 24 // 4), (SEQUENCE, 8 // 4)))
    # Keys and values are read and written once, and so are the outputs of the two chunks of queries.
    assert (forward.copies, forward.copied_bytes) == (3, 2 * 2 * shared + 2 * queries)
    # Keys and values as before; of their gradients, the first chunk's, a quarter, is added to the last's, and all is
    # handed out to the ranks: the front half at once, of the back half each chunk.
    gradients = 2 * (3 * shared // 4 + 2 * shared)
    assert (backward.copies, backward.copied_bytes) == (2 + 2 * 4 + 1, 2 * 2 * shared + gradients + 2 * queries)
    alone = nanobatch(LLAMA, 8, 1)
    assert all((o.copies, o.copied_bytes) == (0, 0) for s in (*alone.forward, *alone.backward) for o in s.operators)


def flops_by_torch(model: Model) -> Counter[str]:
    """Torch's own count over one block, by name of the operation; it counts attention without its mask."""
    ops = torch.ops.aten
    counter = FlopCounterMode(
        display=False,
        custom_mapping={
            ops._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
            ops._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: (
                sdpa_backward_flop_count(g, q, k, v)
            ),
        },
    )
    shard = shard_of(model, degrees(1, 1), SEQUENCE)
    with FakeTensorMode():
        block = Block(model, shard, Mesh(), torch.bfloat16)
        hidden = torch.empty(4, SEQUENCE, model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        with counter:
            out = block(hidden, rotary_table(model, SEQUENCE, None))
            out.backward(torch.empty_like(out))
    return Counter({str(op).split(".")[-1]: n for op, n in counter.get_flop_counts()["Global"].items()})


@pytest.mark.parametrize("model", [LLAMA, QWEN], ids=lambda m: m.name)
def test_flops_agree_with_torchs_counter(model: Model) -> None:
    counted = flops_by_torch(model)
    attention = sum(n for name, n in counted.items() if "attention" in name)
    assert attention
    assert total_flops(nanobatch(model, 1, 1)) == counted.total() - attention // 2


@pytest.mark.parametrize(("tp", "cp"), [(8, 1), (2, 1), (4, 2), (1, 2), (2, 4)])
def test_all_gpus_together_do_the_arithmetic_of_one(tp: int, cp: int) -> None:
    assert tp * cp * total_flops(nanobatch(LLAMA, tp, cp)) == total_flops(nanobatch(LLAMA, 1, 1))


def test_a_nanobatch_does_half_the_arithmetic_of_a_microbatch() -> None:
    both = graphs(LLAMA, 4, 2)
    assert 2 * total_flops(both[Batch.NANOBATCH]) == total_flops(both[Batch.MICROBATCH])


def test_what_stands_around_the_blocks_has_its_own_segments() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    assert named(graph.embedding_forward) == {"embedding": ["embedding"]}
    assert named(graph.head_forward) == {"head": ["norm", "lm_head", "loss"], "loss": ["loss"], "loss.2": ["loss"]}
    assert named(graph.head_backward) == {"head": ["loss", "lm_head.dgrad", "lm_head.wgrad"], "norm": ["norm"]}
    messages = [s.collective.message_bytes if s.collective else 0 for s in graph.head_forward]
    assert messages == [4 * 4096 * 4, 2 * 4 * 4096 * 4, 0]  # maxima; sums and the labels' logits
    lookup = operator(graph.embedding_forward, "embedding", "embedding")
    assert lookup.bytes_written == 4 * 4096 * 3072 * 2


def test_the_loss_reads_logits_twice_and_keeps_no_probabilities() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    logits = 4 * 4096 * (128256 // 8) * 2
    loss = [o for s in (*graph.head_forward, *graph.head_backward) for o in s.operators if o.name == "loss"]
    assert [round(o.bytes_read / logits) for o in loss] == [1, 1, 0, 1]
    assert [round(o.bytes_written / logits) for o in loss] == [0, 0, 0, 1]
