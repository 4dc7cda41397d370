"""Operators that are not traced, but made from sizes: products and moves of values of 16 bits."""

from dataclasses import replace

from kareus.graph.number_formats import BF16_BYTES, FP32_BYTES
from kareus.graph.records import WEIGHT_GRADIENT_SUFFIX, Operator, OperatorKind


def product(name: str, rows: int, columns: int, inner: int) -> Operator:
    """Return the product of a matrix of `rows` x `inner` with one of `inner` x `columns`."""
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        shape=(rows, columns, inner),
        flops=2 * rows * columns * inner,
        bytes_read=BF16_BYTES * inner * (rows + columns),
        bytes_written=BF16_BYTES * rows * columns,
        kernels=1,
    )


def weight_gradient(name: str, rows: int, columns: int, inner: int) -> Operator:
    """Return such a product that is added to a gradient of 32 bits; `inner` are tokens."""
    made, sums = product(name + WEIGHT_GRADIENT_SUFFIX, rows, columns, inner), FP32_BYTES * rows * columns
    return replace(made, bytes_read=made.bytes_read + sums, bytes_written=sums)


def grouped_product(name: str, groups: int, rows: int, columns: int, inner: int) -> Operator:
    """Return the products of groups of rows with a matrix of `inner` x `columns` for each; `rows` are of all groups."""
    return Operator(
        name=name,
        kind=OperatorKind.GROUPED_GEMM,
        shape=(groups, rows, columns, inner),
        flops=2 * rows * columns * inner,
        bytes_read=BF16_BYTES * (rows * inner + groups * columns * inner),
        bytes_written=BF16_BYTES * rows * columns,
        kernels=1,
    )


def grouped_weight_gradient(name: str, groups: int, rows: int, columns: int, inner: int) -> Operator:
    """Return the gradients of these matrices, each added to one of 32 bits."""
    made, sums = grouped_product(name, groups, rows, columns, inner), FP32_BYTES * groups * columns * inner
    read = BF16_BYTES * rows * (columns + inner) + sums
    return replace(made, name=name + WEIGHT_GRADIENT_SUFFIX, bytes_read=read, bytes_written=sums)


def moved(name: str, read: int, written: int, kernels: int = 1) -> Operator:
    """Return an operator that reads and writes so many values of 16 bits, and is bound by that."""
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        shape=(max(read, written),),
        flops=0,
        bytes_read=BF16_BYTES * read,
        bytes_written=BF16_BYTES * written,
        kernels=kernels,
    )
