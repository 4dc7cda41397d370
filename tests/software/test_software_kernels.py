"""Kernels that software launches by itself: softmax, dropout and casts to fp8."""

from dataclasses import replace

import pytest
import torch
from helpers.builders import all_reduce, gemm, segment, small_model, software
from torch.utils._python_dispatch import TorchDispatchMode

from kareus.graph.number_formats import Precision
from kareus.graph.records import BlockGraph, CollectiveKind, Direction, Operator, OperatorKind
from kareus.model.parallelism import Parallelism, Sharding
from kareus.software.kernels import SINGLE_KERNELS, SINGLE_TRAFFIC, of_software, weight_cast
from kareus.software.record import LossKernels

HEADS = small_model(num_attention_heads=8)
PLAIN = software("kareus")
UNFUSED = software("megatron-2022", softmax_multiple=4, stream_dropout=False, loss_kernels=LossKernels.ENGINE)
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


def with_logits(logits: int) -> BlockGraph:
    """A head over a vocabulary that GPUs share: forward reads logits for maxima, then for sums, and adds up tokens."""
    few = replace(streaming("loss", 64), bytes_read=8 * 64, bytes_written=4 * 64)
    reading = replace(few, bytes_read=2 * logits + 8 * 64)
    backward = replace(few, bytes_read=2 * logits + 8 * 64, bytes_written=2 * logits)
    graph = graph_of(few)
    forward = tuple(segment("head", Direction.FORWARD, [loss]) for loss in (reading, reading, few))
    return replace(graph, head_forward=forward, head_backward=(segment("head", Direction.BACKWARD, [backward]),))


class MovedBytes(TorchDispatchMode):
    """Adds up the bytes of tensors of a size that operations read and write; those that make views move none."""

    def __init__(self, values: int):
        super().__init__()
        self.values, self.moved = values, 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if not function.is_view:
            for tensor in (*arguments, *(result if isinstance(result, tuple) else (result,))):
                if isinstance(tensor, torch.Tensor) and tensor.numel() == self.values:
                    self.moved += tensor.numel() * tensor.element_size()
        return result


def bytes_of_megatrons_loss() -> tuple[float, float]:
    """Bytes of a logit of a loss by single kernels that work in place, as formulas say it, forward and backward."""
    logits = torch.zeros(16, 64, dtype=torch.bfloat16)
    with MovedBytes(logits.numel()) as forward:
        shares = logits.float()
        shares -= shares.max(-1).values.unsqueeze(-1)
        shares.exp_()
        shares /= shares.sum(-1).unsqueeze(-1)
    with MovedBytes(logits.numel()) as backward:
        shares *= torch.ones(16, 1)
        shares.bfloat16()
    return forward.moved / logits.numel(), backward.moved / logits.numel()


def test_a_loss_of_single_kernels_moves_what_its_operations_read_and_write() -> None:
    graph = launched(with_logits(4096), software("kareus", loss_kernels=LossKernels.SEPARATE))
    for segments, logit_bytes in zip((graph.head_forward, graph.head_backward), bytes_of_megatrons_loss(), strict=True):
        first, *others = (operator for part in segments for operator in part.operators)
        assert first.copied_bytes == logit_bytes * 4096
        assert not any(operator.copied_bytes for operator in others)


@pytest.mark.parametrize("kernels", [kernels for kernels in LossKernels if kernels is not LossKernels.ENGINE])
def test_bytes_of_logits_are_counted_once(kernels: LossKernels) -> None:
    """What the graph has for each token stays, and so do blocks."""
    before = with_logits(4096)
    graph = launched(before, software("kareus", loss_kernels=kernels))
    for part in graph.head_forward:
        assert [(o.bytes_read, o.bytes_written) for o in part.operators] == [(8 * 64, 4 * 64)]
    (backward,) = graph.head_backward[0].operators
    assert (backward.bytes_read, backward.bytes_written) == (8 * 64, 0)
    assert (graph.forward, graph.backward) == (before.forward, before.backward)


def test_fused_losses_move_least() -> None:
    def moved(kernels: LossKernels) -> int:
        graph = launched(with_logits(4096), software("kareus", loss_kernels=kernels))
        return sum(o.copied_bytes for s in (*graph.head_forward, *graph.head_backward) for o in s.operators)

    fused, transformer_engine, compiled, separate = (
        moved(LossKernels(name)) for name in ("fused", "transformer-engine", "compiled", "separate")
    )
    assert fused < transformer_engine < compiled < separate


def test_weight_gradients_may_be_added_to_their_sums_by_a_kernel() -> None:
    """The product writes two bytes of each of 64 x 128 weights; the kernel reads them and the sum, and writes that."""
    product = gemm("up.wgrad", 64, 128, 32)
    fused = replace(product, bytes_read=product.bytes_read + 4 * 64 * 128, bytes_written=4 * 64 * 128)
    graph = launched(graph_of(fused, PRODUCT), software("kareus", fused_accumulation=False))
    apart, other = graph.backward[0].operators
    assert (apart.bytes_read, apart.bytes_written) == (product.bytes_read, 2 * 64 * 128)
    assert (apart.copies, apart.copied_bytes) == (1, (2 + 4 + 4) * 64 * 128)
    assert other == PRODUCT
