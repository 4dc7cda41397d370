"""Time of an operator or a collective alone, and its HBM traffic.

Rooflines with efficiencies, fill, wave quantisation and launch gaps; coefficients are the GPU's, never a workload's.
Clocks and SM counts may be numbers or arrays of one shape: all candidates of a partition are evaluated at once.
"""

from dataclasses import replace

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model import attention, gemm
from kareus.gpu_model.attention import AttentionShape
from kareus.gpu_model.coefficients import acts
from kareus.gpu_model.gemm import GemmShape
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.norms import LEAST_S, longer_s
from kareus.gpu_model.rings import ring_time_s
from kareus.graph.number_formats import SIXTEEN_BITS
from kareus.graph.records import TENSOR_PARALLEL, Collective, CollectiveKind, Operator, OperatorKind

ODD_PRODUCT = 3.0
"""Time of a product of 16-bit values, where rows of a matrix have odd lengths, over that with even lengths.

Such rows begin at odd multiples of two bytes, where asynchronous copies cannot load (`cp.async` moves 4, 8 or 16 bytes,
PTX ISA), so that a slower kernel takes the place of cuBLAS' best: heads with such vocabularies take three times as long
("Scaling LLM Post-Training at Netflix", Netflix Technology Blog, 2026). The number of rows may be odd: measured GEMMs
of 1,025 to 4,353 rows (`kernel_gemm.csv.gz`) take what the laws of even ones say.
"""


def operator_time_s(
    gpu: Gpu, operator: Operator, frequency_mhz: Array, sm_count: Array, hbm_share: Array | float = 1.0
) -> Array:
    """Return the time of `operator` alone on `sm_count` SMs, with `hbm_share` of the achievable HBM bandwidth."""
    c, bytes_per_s = gpu.coefficients, hbm_bytes_per_s(gpu, sm_count) * hbm_share
    busy_s = (operator.bytes_read + operator.bytes_written) / bytes_per_s
    if operator.kind is OperatorKind.GEMM:
        busy_s = longer_s(gemm.arithmetic_s(gpu, _gemm_shape(operator), frequency_mhz, sm_count, bytes_per_s), busy_s)
        if has_odd_rows(operator):
            busy_s = ODD_PRODUCT * busy_s
    elif operator.kind is OperatorKind.GROUPED_GEMM:
        each_s = gemm.arithmetic_s(gpu, _grouped_shape(operator), frequency_mhz, sm_count, bytes_per_s)
        busy_s = longer_s(min(operator.shape[0], operator.shape[1]) * each_s, busy_s)
    elif operator.kind is OperatorKind.MEMORY:
        busy_s = (1 + (c.traffic - 1) * unfused_slowdown(gpu, frequency_mhz)) * busy_s
    else:
        busy_s = longer_s(_attention_s(gpu, operator, frequency_mhz, sm_count), busy_s) + c.attention_s
        busy_s = c.attention_slowdown * busy_s
    copies_s = operator.copied_bytes / bytes_per_s
    return busy_s + copies_s + launches(gpu, operator) * c.kernel_overhead_s


def unfused_slowdown(gpu: Gpu, frequency_mhz: Array) -> Array | float:
    """Return the time at a clock of kernels that nothing fuses, over that at the maximum clock.

    They keep few bytes in flight, which L2 and crossbar move at the core's clock: what these reach (`stream_gb_per_s`)
    and HBM are joined as rooflines are. Fused kernels on the same chip show nothing of it from 900 MHz up
    (benchmarks/README.md).
    """
    c = gpu.coefficients
    if not acts(c.stream_gb_per_s):
        return 1.0
    passed = gpu.hbm_gb_per_s * c.hbm_efficiency / np.maximum(c.stream_gb_per_s, LEAST_S) * np.ones_like(frequency_mhz)
    return longer_s(passed * gpu.maximum_clock_mhz / frequency_mhz, 1.0) / longer_s(passed, 1.0)


def launches(gpu: Gpu, operator: Operator) -> Array | float:
    """Return the kernels that the host launches: `streaming_kernels` times those of the graph where HBM bounds them."""
    each = gpu.coefficients.streaming_kernels if operator.kind is OperatorKind.MEMORY else 1
    return each * operator.kernels + operator.copies


def attention_shape(operator: Operator) -> AttentionShape:
    """Return the sizes of causal attention or its gradient."""
    batch, heads, _, queries, keys, head_dim, *window = operator.shape
    return AttentionShape(batch, heads, keys, queries, head_dim, *window)


def has_odd_rows(product: Operator) -> bool:
    """Return whether rows of an operand or of the output have an odd length; tokens are the rows."""
    rows, columns, inner = product.shape
    lengths = (rows, columns) if product.is_weight_gradient else (columns, inner)
    return any(length % 2 for length in lengths)


def hbm_bytes(gpu: Gpu, operator: Operator) -> Array | float:
    """Return the bytes that `operator` moves to and from HBM: where HBM bounds it, `traffic` times the graph's."""
    moved = operator.bytes_read + operator.bytes_written
    whole: Array | float = gpu.coefficients.traffic * moved if operator.kind is OperatorKind.MEMORY else moved
    return whole + operator.copied_bytes


def hbm_bytes_per_s(gpu: Gpu, sm_count: Array) -> Array:
    """Return the HBM bandwidth that `sm_count` SMs achieve: a share of them saturates it, at any clock."""
    saturation = np.minimum(1.0, sm_count / (gpu.coefficients.hbm_saturating_share * gpu.sm_count))
    return gpu.hbm_gb_per_s * 1e9 * gpu.coefficients.hbm_efficiency * saturation


def collective_time_s(gpu: Gpu, collective: Collective, frequency_mhz: Array, sm_count: Array) -> Array:
    """Return the time of `collective` alone on `sm_count` SMs; see `rings`."""
    passes = 2 if collective.kind is CollectiveKind.ALL_REDUCE else 1
    return collective_slowdown(gpu, collective) * ring_time_s(
        gpu,
        bus_bytes=collective.bus_bytes,
        message_bytes=collective.message_bytes,
        group_size=collective.group_size,
        passes=passes,
        frequency_mhz=frequency_mhz,
        sm_count=sm_count,
    )


def collective_slowdown(gpu: Gpu, collective: Collective) -> Array | float:
    """Return the time of a collective over that of the library that the coefficients are of: tensor parallelism's."""
    return gpu.coefficients.collective_slowdown if collective.group == TENSOR_PARALLEL else 1.0


def collective_hbm_bytes(gpu: Gpu, collective: Collective) -> float:
    """Return the HBM bytes that `collective` moves on one GPU."""
    return gpu.coefficients.hbm_bytes_per_bus_byte * collective.bus_bytes


def _gemm_shape(operator: Operator) -> GemmShape:
    """Return the sizes of a GEMM; what it reads beyond its operands is an output that it adds to."""
    rows, columns, inner = operator.shape
    return _written(operator, GemmShape(rows, columns, inner, precision=operator.precision))


def _grouped_shape(operator: Operator) -> GemmShape:
    """Return the sizes of one product of a grouped GEMM, as trainers launch it: one after the other, all alike.

    Iterations of mixtures of experts agree with products of cuBLAS (Transformer Engine), and not with the fused kernels
    of inference engines, which `GemmShape.groups` is the law of.
    """
    groups, rows, columns, inner = operator.shape
    each = max(rows // groups, 1)
    sizes = (columns, inner, each) if operator.is_weight_gradient else (each, columns, inner)
    written = 2 * operator.bytes_written / (SIXTEEN_BITS * groups * columns * inner)
    return GemmShape(*sizes, precision=operator.precision, written=written if operator.is_weight_gradient else 1.0)


def _written(operator: Operator, shape: GemmShape) -> GemmShape:
    """Return the shape with the share of its output that an operator writes and reads again."""
    operands = shape.value_bytes * shape.products * shape.inner * (shape.rows + shape.columns)
    added_bytes = max(operator.bytes_read - operands, 0)
    outputs = shape.products * shape.rows * shape.columns
    return replace(shape, written=(operator.bytes_written + added_bytes) / (SIXTEEN_BITS * outputs))


def _attention_s(gpu: Gpu, operator: Operator, frequency_mhz: Array, sm_count: Array) -> Array:
    c = gpu.coefficients
    forward = operator.kind is OperatorKind.ATTENTION
    efficiency = c.attention_forward_efficiency if forward else c.attention_backward_efficiency
    return attention.arithmetic_s(gpu, attention_shape(operator), operator.flops, efficiency, frequency_mhz, sm_count)
