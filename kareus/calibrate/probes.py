"""Programs that a calibration may measure: single kernels of many shapes, collectives, and both beside each other.

Records are what a trace of a model gives (`kareus.partition.operators`), so that every testbed can launch them. What
they tell decides which are measured, at which clocks and in which order (`kareus.calibrate.design`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kareus.graph.records import TENSOR_PARALLEL, Collective, CollectiveKind, Operator, OperatorKind, Program, Step

BF16_BYTES, FP32_BYTES = 2, 4


class ProbeKind(StrEnum):
    """Kind of a probe, by which errors are listed."""

    GEMM = "GEMM"
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention backward"
    MEMORY = "memory-bound"
    LAUNCHES = "many small kernels"
    COLLECTIVE = "collective"
    OVERLAP = "collective beside kernels"
    PARTITION = "partition of a workload"
    """No probe of a calibration; searches measure them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A program that tells something of a GPU."""

    kind: ProbeKind
    program: Program


GEMMS = (
    # Large ones, near the peak, that also reach the power limit.
    (8192, 8192, 8192), (16384, 4096, 4096), (8192, 28672, 4096), (8192, 4096, 14336), (4096, 4096, 4096),
    # Few waves of tiles: how many SMs the last one leaves idle.
    (3072, 3072, 3072), (2048, 2048, 2048), (5120, 2560, 3200), (1536, 2304, 4096), (1024, 1024, 1024), (512, 512, 512),
    # Products of tensor-parallel shards.
    (16384, 1280, 8192), (16384, 640, 3072), (16384, 3072, 384), (4096, 1024, 4096), (32768, 768, 2048),
    # Short inner dimensions: epilogues and HBM.
    (16384, 8192, 128), (8192, 8192, 256), (16384, 16384, 64), (4096, 8192, 64),
    # Long ones: steps along them, and partial sums where they are split.
    (1024, 1024, 65536), (512, 512, 32768), (256, 4096, 16384), (2048, 1536, 32768), (256, 256, 8192),
    (1536, 1280, 49152), (768, 768, 65536),
    # So few tiles and so many steps that neither arithmetic nor HBM nor the host takes longer than the steps do.
    (128, 128, 131072),
    # So many outputs that partial sums take far longer than to synchronise them.
    (1792, 1280, 8192),
    # Few rows: bound by HBM.
    (64, 4096, 4096), (128, 8192, 8192), (64, 28672, 8192),
)  # fmt: skip
"""Rows, columns and inner dimension."""
WEIGHT_GRADIENTS = ((4096, 4096, 16384), (3072, 640, 32768), (8192, 1024, 8192))
"""The same, of products that are added to sums in single precision."""
ATTENTIONS = (
    (1, 32, 8, 4096, 128), (1, 32, 8, 16384, 128), (8, 24, 8, 2048, 128), (4, 16, 16, 1024, 64), (2, 8, 2, 8192, 128),
    (16, 32, 32, 512, 128), (1, 8, 1, 4096, 128), (1, 4, 1, 2048, 64), (2, 16, 4, 4096, 256), (4, 8, 8, 2048, 192),
)  # fmt: skip
"""Batch, query heads, key-value heads, length and head dimension of causal attention."""
NORMS = ((128, 1024), (1024, 4096), (4096, 4096), (16384, 4096), (32768, 8192))
"""Tokens and hidden size of a residual addition and norm."""
SWIGLUS = ((1024, 14336), (4096, 14336), (16384, 28672))
"""Tokens and intermediate size of SwiGLU."""
SMALL_NORMS = (8, 32)
"""Numbers of norms of a few tokens, which take no longer than their launches."""
SMALL_NORM = (16, 1024)
MIB = 2**20
ALL_REDUCES = ((1, 8), (4, 8), (16, 16), (64, 4), (64, 8), (64, 24), (256, 4), (256, 16), (512, 32))
"""MiB of the message and SMs."""
GATHERS = ((16, 8), (128, 4), (256, 16))
"""The same, of all-gathers; reduce-scatters take as long."""
BESIDE_GEMM = ((4, 48), (8, 96), (16, 192), (24, 384), (32, 384))
"""SMs and MiB of all-reduces beside a large GEMM."""
BESIDE_NORMS = ((4, 64), (8, 128), (16, 256), (24, 384))
"""The same, beside norms."""
NORMS_BESIDE = 4


def probes(group_size: int) -> list[Probe]:
    """Return all probes, whose collectives are of groups of `group_size` GPUs."""
    return [*_kernels(), *_collectives(group_size)]


def _kernels() -> Iterator[Probe]:
    for shape in GEMMS:
        yield _alone(ProbeKind.GEMM, gemm("probe", shape))
    for shape in WEIGHT_GRADIENTS:
        yield _alone(ProbeKind.GEMM, gemm("probe.wgrad", shape, summed=True))
    for sizes in ATTENTIONS:
        yield _alone(ProbeKind.ATTENTION, attention(sizes, backward=False))
        yield _alone(ProbeKind.ATTENTION_BACKWARD, attention(sizes, backward=True))
    for tokens, size in NORMS:
        yield _alone(ProbeKind.MEMORY, norm(tokens, size))
    for tokens, size in SWIGLUS:
        yield _alone(ProbeKind.MEMORY, swiglu(tokens, size))
    for count in SMALL_NORMS:
        step = Step(operators=(norm(*SMALL_NORM),) * count)
        yield Probe(kind=ProbeKind.LAUNCHES, program=Program(name=f"{count} small norms", steps=(step,)))


def _collectives(group_size: int) -> Iterator[Probe]:
    for kind, messages in ((CollectiveKind.ALL_REDUCE, ALL_REDUCES), (CollectiveKind.ALL_GATHER, GATHERS)):
        for mib, sm_count in messages:
            yield beside((), collective(kind, mib, group_size), sm_count)
    for sm_count, mib in BESIDE_GEMM:
        yield beside((gemm("probe", (16384, 4096, 8192)),), _all_reduce(mib, group_size), sm_count)
    for sm_count, mib in BESIDE_NORMS:
        yield beside((norm(32768, 8192),) * NORMS_BESIDE, _all_reduce(mib, group_size), sm_count)


def _all_reduce(mib: int, group_size: int) -> Collective:
    return collective(CollectiveKind.ALL_REDUCE, mib, group_size)


def _alone(kind: ProbeKind, operator: Operator) -> Probe:
    direction = " backward" if kind is ProbeKind.ATTENTION_BACKWARD else ""
    name = f"{operator.name}{direction} {'x'.join(map(str, operator.shape))}"
    return Probe(kind=kind, program=Program(name=name, steps=(Step(operators=(operator,)),)))


def beside(operators: tuple[Operator, ...], moving: Collective, sm_count: int) -> Probe:
    """Return a probe in which a collective starts together with the first of `operators`; without any it runs alone."""
    name = f"{moving.kind} {moving.message_bytes // MIB} MiB on {sm_count} SMs"
    step = Step(operators=operators, collective=moving, launch=0, sm_count=sm_count)
    kind = ProbeKind.OVERLAP if operators else ProbeKind.COLLECTIVE
    with_operators = f" beside {len(operators)} {operators[0].name}" if operators else ""
    return Probe(kind=kind, program=Program(name=name + with_operators, steps=(step,)))


def collective(kind: CollectiveKind, mib: int, group_size: int) -> Collective:
    """Return a collective of `mib` MiB on each of `group_size` GPUs."""
    return Collective(kind=kind, group=TENSOR_PARALLEL, group_size=group_size, message_bytes=mib * MIB, fused=1)


def gemm(name: str, shape: tuple[int, int, int], *, summed: bool = False) -> Operator:
    """Return a product of `shape` (m, n, k); one that is `summed` is added to sums in single precision."""
    m, n, k = shape
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        shape=shape,
        flops=2 * m * n * k,
        bytes_read=BF16_BYTES * (m * k + n * k) + summed * FP32_BYTES * m * n,
        bytes_written=(FP32_BYTES if summed else BF16_BYTES) * m * n,
        kernels=1,
    )


def attention(sizes: tuple[int, int, int, int, int], *, backward: bool) -> Operator:
    """Return causal attention of `sizes` (batch, heads, key-value heads, length, head dimension), or its gradient."""
    batch, heads, shared, length, dimension = sizes
    queries, keys = (BF16_BYTES * batch * length * n * dimension for n in (heads, shared))
    scales = FP32_BYTES * batch * heads * length
    products = 5 if backward else 2  # the gradient computes one of them anew
    return Operator(
        name="attention",
        kind=OperatorKind.ATTENTION_BACKWARD if backward else OperatorKind.ATTENTION,
        shape=(batch, heads, shared, length, length, dimension),
        flops=products * batch * heads * dimension * length**2,
        bytes_read=3 * queries + 2 * keys + scales if backward else queries + 2 * keys,
        bytes_written=queries + 2 * keys if backward else queries + scales,
        kernels=1,
    )


def norm(tokens: int, size: int) -> Operator:
    """Return a residual addition and norm of `tokens` vectors of `size` values."""
    hidden = BF16_BYTES * tokens * size
    return _memory("norm", (1, tokens, size), 2 * hidden + BF16_BYTES * size, 2 * hidden + FP32_BYTES * tokens)


def swiglu(tokens: int, size: int) -> Operator:
    """Return a SwiGLU of `tokens` vectors of `size` values."""
    written = BF16_BYTES * tokens * size
    return _memory("activation", (1, tokens, size), 2 * written, written)


def _memory(name: str, shape: tuple[int, ...], bytes_read: int, bytes_written: int) -> Operator:
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        shape=shape,
        flops=0,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        kernels=1,
    )
