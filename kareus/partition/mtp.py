"""Blocks that predict further tokens, in the operator graph (multi-token prediction; DeepSeek-V3, section 2.2).

Each is where the LM head is, after the last block, as Megatron Core runs it: the embedding of the next token, norms of
it and of what came before, a product that makes one hidden state of both, a block as the model's last one, and head and
loss again. All of it is of the scope of the head: it runs once for a microbatch, whole, outside the blocks that
nanobatches share out. What Megatron Core recomputes of it, `kareus.graph.recomputation` tells by the names given here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kareus.graph.interleave import numbered
from kareus.graph.number_formats import BF16_BYTES
from kareus.graph.recomputation import FURTHER_BLOCK
from kareus.graph.records import (
    INPUT_GRADIENT_SUFFIX,
    TENSOR_PARALLEL,
    BlockGraph,
    Collective,
    CollectiveKind,
    Direction,
    Operator,
    Scope,
    Segment,
)
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.partition.made import moved, product, weight_gradient

PROJECTION, NORMS = "mtp_projection", "mtp_norms"
"""Names of operators."""


def with_further_tokens(graph: BlockGraph, model: Model, parallelism: Parallelism, tokens: int) -> BlockGraph:
    """Return the graph with what predicts further tokens beside its head.

    Args:
        graph: with the kernels of its software.
        model: that it is of.
        parallelism: its layout.
        tokens: of all sequences that a tensor-parallel group has.
    """
    if not model.mtp_layers:
        return graph
    dense = model.experts is not None and model.mtp_is_dense
    blocks = (graph.dense_forward, graph.dense_backward) if dense else (graph.forward, graph.backward)
    forward = [*_inputs(model, parallelism, tokens), *blocks[0]]
    leaving = _input_gradients(model, parallelism, tokens, trained=bool(graph.embedding_backward))
    layers = model.mtp_layers
    ahead = _of_head(layers, graph.embedding_forward, forward, graph.head_forward)
    back = _of_head(layers, graph.head_backward, [*blocks[1], *leaving], graph.embedding_backward)
    return replace(graph, head_forward=(*graph.head_forward, *ahead), head_backward=(*back, *graph.head_backward))


def _of_head(
    layers: int, before: Sequence[Segment], block: Sequence[Segment], after: Sequence[Segment]
) -> Iterable[Segment]:
    """Return so many times a block and what is before and after it, named after what Megatron Core recomputes."""
    ends = [[f"mtp-{segment.name}" for segment in segments] for segments in (before, after)]
    names = numbered(layers * [*ends[0], *(f"{FURTHER_BLOCK}{segment.name}" for segment in block), *ends[1]])
    segments = layers * [*before, *block, *after]
    return (replace(s, scope=Scope.HEAD, name=name) for s, name in zip(segments, names, strict=True))


def _inputs(model: Model, parallelism: Parallelism, tokens: int) -> list[Segment]:
    """Both norms, and the product of what they give, whose outputs a tensor-parallel group shares out."""
    hidden = model.hidden_size
    read = 2 * tokens // parallelism.token_shards * hidden
    gathered = _gather(parallelism, 2 * tokens * hidden if parallelism.sequence_parallel else 0)
    made = product(PROJECTION, tokens, hidden // parallelism.tp, 2 * hidden)
    return [
        _segment(NORMS, Direction.FORWARD, [moved(NORMS, read, read)], gathered),
        _segment(PROJECTION, Direction.FORWARD, [made], _gather(parallelism, tokens * hidden)),
    ]


def _input_gradients(model: Model, parallelism: Parallelism, tokens: int, *, trained: bool) -> list[Segment]:
    hidden, width = model.hidden_size, model.hidden_size // parallelism.tp
    normed = 2 * tokens // parallelism.token_shards * hidden
    products = [product(PROJECTION + INPUT_GRADIENT_SUFFIX, tokens, 2 * hidden, width)]
    products += [weight_gradient(PROJECTION, width, 2 * hidden, tokens)] if trained else []
    scattered = CollectiveKind.REDUCE_SCATTER if parallelism.sequence_parallel else CollectiveKind.ALL_REDUCE
    summed = _gather(parallelism, 2 * tokens * hidden, scattered)
    projection = _segment(PROJECTION, Direction.BACKWARD, products, summed)
    return [
        replace(projection, independent_tail=int(trained and summed is not None)),
        _segment(NORMS, Direction.BACKWARD, [moved(NORMS, 2 * normed, normed)], None),
    ]


def _gather(
    parallelism: Parallelism, values: int, kind: CollectiveKind = CollectiveKind.ALL_GATHER
) -> Collective | None:
    if parallelism.tp == 1 or not values:
        return None
    size = BF16_BYTES * values
    return Collective(kind=kind, group=TENSOR_PARALLEL, group_size=parallelism.tp, message_bytes=size, fused=1)


def _segment(name: str, direction: Direction, operators: Sequence[Operator], collective: Collective | None) -> Segment:
    return Segment(
        name=name,
        direction=direction,
        scope=Scope.HEAD,
        operators=tuple(operators),
        collective=collective,
        independent_tail=0,
    )
