"""Latent attention in the operator graph of a block (DeepSeek-V2, section 2.1, as Megatron Core runs it).

The graph is traced with heads of the width of values. In the place of the projection of queries, keys and values go
the products that give latent vectors (`latent`), norms of these, and the products that give the values of heads; keys
and queries have further values, some of which rotate. With sequence parallelism each GPU makes the latent vectors of
its own tokens, and these are gathered in the place of tokens; Kareus' engine gathers tokens, and makes those of all.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from kareus.graph.records import (
    INPUT_GRADIENT_SUFFIX,
    TENSOR_PARALLEL,
    BlockGraph,
    Collective,
    CollectiveKind,
    Direction,
    Operator,
    OperatorKind,
    Segment,
)
from kareus.model.config import Model
from kareus.model.experts import LatentAttention
from kareus.model.parallelism import Parallelism
from kareus.partition.made import moved, product, weight_gradient
from kareus.partition.mean_block import ATTENTION, ROTATION

PROJECTION = "qkv"
"""Name of the projection of queries, keys and values."""
UP_PROJECTIONS = QUERY_UP, KEY_VALUE_UP = "query_up", "key_value_up"
"""Names of the products that make these of latent vectors."""


def with_latent_attention(
    graph: BlockGraph, model: Model, parallelism: Parallelism, tokens: int, *, whole: bool = False
) -> BlockGraph:
    """Return the graph of a block with latent attention.

    Args:
        graph: of a block whose heads have the width of values.
        model: with latent attention.
        parallelism: its layout.
        tokens: of all sequences that a tensor-parallel group has.
        whole: whether each GPU makes the latent vectors of all of these.
    """
    latent = model.latent_attention
    assert latent is not None
    of_gpu = tokens if whole else tokens // parallelism.token_shards
    forward, backward = _products(model, latent, parallelism, tokens, of_gpu)
    gathered = Fraction(1) if whole else Fraction(_rank(latent), model.hidden_size)
    return replace(
        graph,
        forward=_changed(graph.forward, model, forward, gathered),
        backward=_changed(graph.backward, model, backward, gathered),
    )


def _rank(latent: LatentAttention) -> int:
    """Values of a token's latent vectors, with the keys' that rotate."""
    return (latent.query_rank or 0) + latent.key_value_rank + latent.rotary_dim


def _products(
    model: Model, latent: LatentAttention, parallelism: Parallelism, tokens: int, of_gpu: int
) -> tuple[list[Operator], list[Operator]]:
    """Return what takes the place of the projection, both ways; a GPU makes the vectors of `of_gpu` tokens."""
    heads = model.num_attention_heads // parallelism.tp
    queries, keys = heads * model.head_dim, heads * (model.head_dim - latent.rotary_dim + latent.value_dim)
    ups = [(KEY_VALUE_UP, keys, latent.key_value_rank)]
    if latent.query_rank is not None:
        ups.insert(0, (QUERY_UP, queries, latent.query_rank))
    made = _rank(latent) + (queries if latent.query_rank is None else 0)
    normed = tokens * sum(rank for _, _, rank in ups)
    forward = [
        product("latent", of_gpu, made, model.hidden_size),
        moved("latent_norm", normed, normed),
        *(product(name, tokens, values, rank) for name, values, rank in ups),
    ]
    backward = []
    for name, values, rank in ups:
        backward.append(product(name + INPUT_GRADIENT_SUFFIX, tokens, rank, values))
        backward.append(weight_gradient(name, values, rank, tokens))
    backward += [
        moved("latent_norm", 2 * normed, normed),
        product("latent" + INPUT_GRADIENT_SUFFIX, of_gpu, model.hidden_size, made),
        weight_gradient("latent", made, model.hidden_size, of_gpu),
    ]
    return forward, backward


def _changed(
    segments: Sequence[Segment], model: Model, products: Sequence[Operator], gathered: Fraction
) -> tuple[Segment, ...]:
    """Put products in the place of the projection, and latent vectors in that of tokens around it."""
    changed = []
    for number, segment in enumerate(segments):
        following, operators = segments[(number + 1) % len(segments)], list[Operator]()
        for operator in segment.operators:
            if not _projects(operator):
                operators.append(_widened(operator, model))
            elif products[0] not in operators:
                operators += products
        scatters = segment.direction is Direction.BACKWARD and any(map(_projects, segment.operators))
        gathers = segment.direction is Direction.FORWARD and any(map(_projects, following.operators[:1]))
        collective = segment.collective
        if collective is not None and _of_tokens(collective) and (scatters or gathers):
            collective = replace(collective, message_bytes=int(collective.message_bytes * gathered))
        changed.append(replace(segment, operators=tuple(operators), collective=collective))
    return tuple(changed)


def _of_tokens(collective: Collective) -> bool:
    return collective.group == TENSOR_PARALLEL and collective.kind is not CollectiveKind.ALL_REDUCE


def _projects(operator: Operator) -> bool:
    return operator.name.partition(".")[0] == PROJECTION


def _widened(operator: Operator, model: Model) -> Operator:
    """Return attention, or what rotates, with queries and keys that are wider than values.

    Products of queries and keys, and those with values, have the FLOPs of heads of the mean width. Of the queries, keys
    and values that attention reads, and whose gradients it writes, two thirds are wider.
    """
    wider = Fraction(model.head_dim, model.value_head_dim)
    bytes_factor = (2 * wider + 1) / 3
    if operator.name.partition(".")[0] == ROTATION:
        read, written = (int(n * bytes_factor) for n in (operator.bytes_read, operator.bytes_written))
        return replace(operator, bytes_read=read, bytes_written=written)
    if operator.kind not in ATTENTION:
        return operator
    flops_factor = (wider + 1) / 2
    *sizes, head_dim = operator.shape[:6]  # as `OperatorKind.ATTENTION` has it; a window may follow
    forward = operator.kind is OperatorKind.ATTENTION
    written = operator.bytes_written if forward else int(operator.bytes_written * bytes_factor)
    return replace(
        operator,
        shape=(*sizes, int(head_dim * flops_factor), *operator.shape[6:]),
        flops=int(operator.flops * flops_factor),
        bytes_read=int(operator.bytes_read * bytes_factor),
        bytes_written=written,
    )
