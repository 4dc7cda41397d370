"""Kernels that software launches by itself: softmax, dropout and casts to fp8."""

from dataclasses import replace

import pytest
from helpers.builders import all_reduce, gemm, segment, small_model, software

from kareus.graph.number_formats import Precision
from kareus.graph.records import BlockGraph, CollectiveKind, Direction, Operator, OperatorKind
from kareus.model.config import Parallelism, Sharding
from kareus.software.kernels import SINGLE_KERNELS, SINGLE_TRAFFIC, of_software, weight_cast

HEADS = small_model(num_attention_heads=8)
PLAIN = software("kareus")
UNFUSED = software("megatron-2022", softmax_multiple=4, stream_dropout=False)
DROPPING = software("kareus", stream_dropout=True)


def graph_of(*operators: Operator) -> BlockGraph:
    """A block, and a head, that run these operators in both directions."""
    forward, backward = (segment("s", way, list(operators)) for way in (Direction.FORWARD, Direction.BACKWARD))
    return BlockGraph(
        forward=(forward,), backward=(backward,), embedding_forward=(), embedding_backward=(), head_forward=(forward,),
        head_backward=(backward,),
    )  # fmt: skip


def launched(graph: BlockGraph, by=PLAIN, precision=Precision.BF16, *, tp: int = 1, batch: int = 1) -> BlockGraph:
    layout = Parallelism(
        dp=1, pp=1, tp=tp, cp=1, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False
    )
    return of_software(graph, by, precision, HEADS, layout, batch)


def streaming(name: str, *shape: int) -> Operator:
    return Operator(
        name=name, kind=OperatorKind.MEMORY, shape=shape, flops=0, bytes_read=1024, bytes_written=1024, kernels=1
    )


SOFTMAX, NORM, PRODUCT = streaming("softmax", 2, 4, 8, 8), streaming("norm", 2, 8, 16), gemm("up", 64, 128, 32)


def test_software_that_fuses_all_launches_the_operators_of_the_graph() -> None:
    graph = graph_of(SOFTMAX, NORM, PRODUCT)
    assert launched(graph) == graph


def test_softmax_that_is_not_one_kernel_is_six() -> None:
    """Eight heads over four GPUs are two on each, of which Megatron's kernel takes multiples of four."""
    (single,) = launched(graph_of(SOFTMAX), UNFUSED, tp=4).forward[0].operators
    assert (single.kernels, single.bytes_read) == (SINGLE_KERNELS, SINGLE_TRAFFIC * 1024)


@pytest.mark.parametrize(("tp", "batch"), [(1, 1), (2, 3), (4, 2), (8, 4)])
def test_softmax_is_one_kernel_where_sequences_times_heads_allow(tp: int, batch: int) -> None:
    assert launched(graph_of(SOFTMAX), UNFUSED, tp=tp, batch=batch) == graph_of(SOFTMAX)


def test_dropout_of_the_stream_writes_and_reads_a_mask() -> None:
    """256 values: a byte of mask each; the backward reads it with a gradient in bf16, and writes one."""
    graph = launched(graph_of(NORM), DROPPING)
    (forward,), (backward,) = graph.forward[0].operators, graph.backward[0].operators
    assert (forward.kernels, forward.bytes_read, forward.bytes_written) == (1, 1024, 1024 + 256)
    assert (backward.kernels, backward.bytes_read, backward.bytes_written) == (2, 1024 + 512 + 256, 1024 + 512)
    assert graph.head_forward == graph_of(NORM).head_forward


def test_products_of_blocks_take_operands_of_eight_bits_and_cast_one() -> None:
    graph = launched(graph_of(PRODUCT), precision=Precision.FP8)
    (found,) = graph.forward[0].operators
    assert found.precision is Precision.FP8
    assert found.bytes_read == PRODUCT.bytes_read // 2
    assert (found.copies, found.copied_bytes) == (1, 4 * 64 * 32)
    assert graph.head_forward[0].operators == (PRODUCT,)


def test_operands_of_weight_gradients_have_been_cast_before() -> None:
    (found,) = launched(graph_of(gemm("up.wgrad", 64, 128, 32)), precision=Precision.FP8).backward[0].operators
    assert found.precision is Precision.FP8
    assert (found.copies, found.copied_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("precision", "kernels", "operands", "cast"),
    [  # bytes of 64 x 32 and 32 x 128 values, and of casting the former
        (Precision.FP8_CURRENT, 2, 6144, 2048 * (2 + 2 + 1 + 1)),
        (Precision.FP8_BLOCKWISE, 1, 6144 + 6144 // 32, 2048 * (2 + 2) + 2 * 64),
        (Precision.MXFP8, 2, 6144 + 6144 // 32, 2048 * (2 + 2) + 2 * 64),
        (Precision.NVFP4, 3, 3072 + 384, 2048 * (2 + 2) + 2 * (1024 + 128)),
    ],
)
def test_formats_have_their_bytes_and_their_casts(precision: Precision, kernels: int, operands: int, cast: int) -> None:
    whole = replace(PRODUCT, bytes_read=2 * 6144)
    (found,) = launched(graph_of(whole), precision=precision).forward[0].operators
    assert (found.precision, found.bytes_read) == (precision, operands)
    assert (found.copies, found.copied_bytes) == (kernels, cast)


def test_experts_cast_the_tokens_of_all_groups() -> None:
    """Two groups with 64 tokens between them, of 32 values each, times 32 x 128 of each group."""
    experts = replace(PRODUCT, kind=OperatorKind.GROUPED_GEMM, shape=(2, 64, 128, 32), bytes_read=2 * (2048 + 8192))
    (found,) = launched(graph_of(experts), precision=Precision.FP8).forward[0].operators
    assert (found.bytes_read, found.copied_bytes) == (2048 + 8192, 4 * 2048)


def test_gathered_tokens_are_sent_as_products_take_them() -> None:
    gathered = replace(all_reduce(1024, 4), kind=CollectiveKind.ALL_GATHER)
    for collective, sent in ((gathered, 0.5), (all_reduce(1024, 4), 1), (replace(gathered, group="cp"), 1)):
        graph = graph_of(PRODUCT)
        graph = replace(graph, forward=(replace(graph.forward[0], collective=collective),))
        (found,) = launched(graph, precision=Precision.FP8).forward
        assert found.collective is not None
        assert found.collective.message_bytes == sent * collective.message_bytes


def test_fp8_changes_products_alone() -> None:
    graph = launched(graph_of(NORM, SOFTMAX), precision=Precision.FP8)
    assert graph == graph_of(NORM, SOFTMAX)


def test_a_cast_of_weights_reads_two_bytes_and_writes_one_twice() -> None:
    cast = weight_cast(1000, Precision.FP8)
    assert (cast.bytes_read, cast.bytes_written, cast.kernels) == (2000, 2000, 1)


def test_copies_that_attention_makes_are_kept_in_fp8() -> None:
    copying = replace(PRODUCT, copies=2, copied_bytes=100)
    (found,) = launched(graph_of(copying), precision=Precision.FP8).forward[0].operators
    assert (found.copies, found.copied_bytes) == (3, 100 + 4 * 64 * 32)


def test_logits_of_the_loss_may_be_cast_to_more_bits() -> None:
    """4,096 logits: a kernel reads two bytes of each and writes four, which the loss reads and, backward, writes."""
    forward = replace(streaming("loss", 64, 64), bytes_read=2 * 4096, bytes_written=8 * 64)
    backward = replace(streaming("loss", 64, 64), bytes_read=2 * 4096, bytes_written=2 * 4096)
    for loss, written in ((forward, 8 * 64), (backward, 4 * 4096)):
        graph = launched(graph_of(loss), software("kareus", fp32_logits=True))
        (cast,) = graph.head_backward[0].operators
        assert (cast.bytes_read, cast.bytes_written) == (4 * 4096, written)
        assert (cast.copies, cast.copied_bytes) == (1, 6 * 4096)
        assert graph.forward == graph_of(loss).forward


def test_weight_gradients_may_be_added_to_their_sums_by_a_kernel() -> None:
    """The product writes two bytes of each of 64 x 128 weights; the kernel reads them and the sum, and writes that."""
    product = gemm("up.wgrad", 64, 128, 32)
    fused = replace(product, bytes_read=product.bytes_read + 4 * 64 * 128, bytes_written=4 * 64 * 128)
    graph = launched(graph_of(fused, PRODUCT), software("kareus", fused_accumulation=False))
    apart, other = graph.backward[0].operators
    assert (apart.bytes_read, apart.bytes_written) == (product.bytes_read, 2 * 64 * 128)
    assert (apart.copies, apart.copied_bytes) == (1, (2 + 4 + 4) * 64 * 128)
    assert other == PRODUCT
