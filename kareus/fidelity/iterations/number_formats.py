"""Operator graphs of training in fp8: the products of the blocks, as Transformer Engine runs them.

Operands of the three products of a projection are cast once each, together with a transposed copy: the input by the
forward, the gradient of the output by the backward. Weights are cast once an
iteration, with its update. The head, attention and sums of weight gradients stay in more bits.
"""

from dataclasses import fields, replace

from kareus.graph.records import BlockGraph, Fp8Product, Operator, OperatorKind, Segment

CAST_BYTES = 4
"""Bytes of casting a value: 16 bits are read, 8 bits are written twice, one of them transposed."""
IN_BLOCKS = ("forward", "backward")


def in_fp8(graph: BlockGraph) -> BlockGraph:
    """Return the graph with products of blocks in fp8."""
    return replace(graph, **{name: tuple(_segment(s) for s in getattr(graph, name)) for name in IN_BLOCKS})


def _segment(segment: Segment) -> Segment:
    return replace(segment, operators=tuple(_operator(operator) for operator in segment.operators))


def _operator(operator: Operator) -> Operator:
    if operator.kind is not OperatorKind.GEMM:
        return operator
    rows, columns, inner = operator.shape
    saved = inner * (rows + columns)  # a byte less for each value of the operands
    cast = 0 if operator.is_weight_gradient else rows * inner
    values = {f.name: getattr(operator, f.name) for f in fields(operator)}
    return Fp8Product(
        **values
        | {
            "bytes_read": operator.bytes_read - saved,
            "copies": operator.copies + (cast > 0),
            "copied_bytes": operator.copied_bytes + CAST_BYTES * cast,
        }
    )
