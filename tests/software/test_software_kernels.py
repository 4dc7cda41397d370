"""Kernels that software launches by itself: softmax, dropout and casts to fp8."""

import math
import re
from dataclasses import replace

import pytest
import torch
from helpers.builders import all_reduce, gemm, segment, small_model, software
from helpers.memory import Alive
from torch.nn import functional
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


FIRST_IS_READ = {"_log_softmax": 3, "_log_softmax_backward_data": 2, "nll_loss_forward": 0, "nll_loss_backward": 0}
"""How often kernels read all of their first tensor, if not once: for maxima, sums and results of rows that are long
(aten/src/ATen/native/cuda/SoftMax.cu), or a value of each row."""


class LogitKernels(TorchDispatchMode):
    """What operations read and write of tensors of a size, in bytes of a value, one after the other; views are none."""

    def __init__(self, values: int):
        super().__init__()
        self.values, self.moved = values, list[tuple[int, int]]()

    def bytes_of(self, tensors) -> list[int]:
        return [t.element_size() for t in tensors if isinstance(t, torch.Tensor) and t.numel() == self.values]

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        read, written = (self.bytes_of(t) for t in (arguments, result if isinstance(result, tuple) else (result,)))
        times = FIRST_IS_READ.get(function.name().partition("::")[2].partition(".")[0], 1)
        moved = sum(read) + (times - 1) * sum(read[:1]), sum(written)
        if not function.is_view and any(moved):
            self.moved.append(moved)
        return result


LOGITS, ROWS = 16 * 4096, 16


def shares_of(logits: torch.Tensor) -> torch.Tensor:
    """Megatron's vocabulary-parallel loss by single operations that work in place, without what it has for tokens."""
    shares = logits.float()
    shares -= shares.max(-1).values.unsqueeze(-1)
    shares.exp_()
    shares /= shares.sum(-1).unsqueeze(-1)
    return shares


def gradient_of(shares: torch.Tensor) -> torch.Tensor:
    """Its backward, without what it takes off for labels."""
    shares *= torch.ones(ROWS, 1)
    return shares.bfloat16()


def of_single_kernels() -> tuple[list[tuple[int, int]], ...]:
    with LogitKernels(LOGITS) as forward:
        shares = shares_of(torch.zeros(ROWS, LOGITS // ROWS, dtype=torch.bfloat16))
    with LogitKernels(LOGITS) as backward:
        gradient_of(shares)
    return forward.moved[1:], backward.moved  # zeros are none of the loss


def of_pytorch() -> tuple[list[tuple[int, int]], ...]:
    logits = torch.zeros(ROWS, LOGITS // ROWS, dtype=torch.bfloat16, requires_grad=True)
    with LogitKernels(LOGITS) as forward:
        loss = functional.cross_entropy(logits.float(), torch.zeros(ROWS, dtype=torch.long))
    with LogitKernels(LOGITS) as backward:
        torch.autograd.grad(loss, logits)
    return forward.moved, backward.moved


COMPILED_LOSS = [(2, 4), (4, 4), (4, 4)], [(4, 4), (4, 4 + 2)]
BY_HAND = {
    LossKernels.FUSED: lambda: ([(2, 0)], [(2, 2)]),
    LossKernels.TRANSFORMER_ENGINE: lambda: ([(2, 0), (2, 2)], [(2, 2)]),
    LossKernels.COMPILED: lambda: COMPILED_LOSS,
    LossKernels.SEPARATE: of_single_kernels,
    LossKernels.PYTORCH: of_pytorch,
}
"""Kernels of each loss, forward and backward, with the bytes of a logit that they read and write."""


@pytest.mark.parametrize("kernels", BY_HAND)
def test_a_loss_launches_its_kernels_and_moves_their_bytes(kernels: LossKernels) -> None:
    """A head on one GPU has one operator of the loss each way; its kernels over all logits are the ones of tokens."""
    whole = with_logits(4096)
    whole = replace(whole, head_forward=whole.head_forward[:1])
    graph = launched(whole, software("kareus", loss_kernels=kernels))
    for segments, expected in zip((graph.head_forward, graph.head_backward), BY_HAND[kernels](), strict=True):
        (loss,) = segments[0].operators
        assert loss.launches == len(expected)
        assert loss.copied_bytes == 4096 * sum(map(sum, expected))


def generated_loops(code: str) -> list[tuple[int, int]]:
    """Bytes of a logit that loops over all logits read and write, of C++ that Inductor generates."""
    pointers = re.findall(r"(float|at::BFloat16)\*\s+(\w+)", code)
    width = {name: 4 if kind == "float" else 2 for kind, name in pointers}
    moved = []
    for nest in re.split(r"\n(?= {8}for\(int64_t x0)", code)[1:]:
        lengths = map(int, re.findall(r"for\(int64_t x\d=[^;]*; x\d<static_cast<int64_t>\((\d+)L\)", nest))
        if math.prod(lengths) == LOGITS:
            pattern = (r"::loadu\((\w+) \+", r"\.store\((\w+) \+")
            read, written = (sum(width[name] for name in set(re.findall(p, nest))) for p in pattern)
            moved.append((read, written))
    return moved


@pytest.mark.acceptance
@pytest.mark.filterwarnings("ignore")  # of what Megatron Core and compiling import
def test_megatrons_compiled_loss_moves_what_is_generated_for_it() -> None:
    """Cast and maxima are two loops on CPUs, where GPUs have one kernel: reductions there take in what they read."""
    from megatron.core.fusions import fused_cross_entropy as fused  # noqa: PLC0415 - takes seconds
    from torch._inductor.utils import run_and_get_code  # noqa: PLC0415

    width, labels = LOGITS // ROWS, torch.arange(ROWS).view(ROWS, 1)
    logits = torch.randn(ROWS, 1, width, dtype=torch.bfloat16)
    (copied, maxima), cast = run_and_get_code(fused.calculate_logits_max, logits)
    (mask, places, sums, shares), summed = run_and_get_code(
        fused.calculate_predicted_logits, copied, labels, maxima, 0, width
    )
    _, divided = run_and_get_code(fused.calculate_cross_entropy_loss, shares, sums)
    _, backward = run_and_get_code(fused.calculate_gradients, shares, torch.ones(ROWS, 1), mask, places)
    found = [moved for code in (*cast, *summed, *divided, *backward) for moved in generated_loops(code)]
    assert found == [(2, 4), (4, 0), *COMPILED_LOSS[0][1:], *COMPILED_LOSS[1]]


def test_logits_of_single_kernels_take_as_many_bytes_at_once() -> None:
    with Alive() as alive:
        logits = torch.zeros(ROWS, LOGITS // ROWS, dtype=torch.bfloat16)
        shares = shares_of(logits)
        del logits
        gradient_of(shares)
    assert alive.most_bytes // LOGITS == LossKernels.SEPARATE.logit_bytes


def test_logits_of_pytorchs_loss_take_as_many_bytes_at_once() -> None:
    weight = torch.zeros(ROWS, LOGITS // ROWS, dtype=torch.bfloat16, requires_grad=True)
    with Alive([weight]) as alive:
        logits = weight * 1.0
        loss = functional.cross_entropy(logits.float(), torch.zeros(ROWS, dtype=torch.long))
        del logits
        torch.autograd.grad(loss, weight)
    assert alive.most_bytes // LOGITS == LossKernels.PYTORCH.logit_bytes


@pytest.mark.parametrize("kernels", [LossKernels.SEPARATE, LossKernels.PYTORCH])
def test_a_loss_keeps_as_many_bytes_of_a_logit_for_its_backward(kernels: LossKernels) -> None:
    logits = torch.zeros(ROWS, LOGITS // ROWS, dtype=torch.bfloat16)
    if kernels is LossKernels.SEPARATE:
        kept = [shares_of(logits)]
    else:
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
        ):
            functional.cross_entropy(logits.float().requires_grad_(), torch.zeros(ROWS, dtype=torch.long))
    buffers = {tensor.data_ptr(): tensor.nbytes for tensor in kept if tensor.numel() == LOGITS}
    assert sum(buffers.values()) == LOGITS * kernels.kept_bytes


def test_what_gpus_tell_each_other_launches_kernels_of_its_own() -> None:
    graph = launched(with_logits(4096), software("kareus", loss_kernels=LossKernels.SEPARATE))
    first, *others = (operator for part in graph.head_forward for operator in part.operators)
    assert first.launches == 6
    assert [(operator.launches, operator.copied_bytes) for operator in others] == [(1, 0), (1, 0)]


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
