"""Experts and latent attention in the operator graph: work that adds up to the model's, exchanges, dense blocks."""

import dataclasses

import pytest
from helpers.builders import small_model, software
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.graph.interleave import block_passes
from kareus.graph.recomputation import AGAIN_SUFFIX, Recomputation, head_backward
from kareus.graph.records import (
    Batch,
    BlockGraph,
    CollectiveKind,
    Direction,
    Operator,
    OperatorKind,
    PlacedCollective,
    Scope,
    Segment,
    TokenExchange,
)
from kareus.model.config import Model
from kareus.model.experts import Experts, LatentAttention
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.parameters import used_by_mtp, used_matrices
from kareus.partition.extract import extract
from kareus.partition.mtp import with_further_tokens
from kareus.partition.place import ExchangedCopies, placed

BATCH, TOKENS = 2, 64
MODEL = small_model(
    hidden_size=64,
    intermediate_size=192,
    num_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=16,
    experts=Experts(count=16, per_token=3, width=32, shared_width=48, dense_layers=(0,)),
)
LATENT = dataclasses.replace(
    MODEL,
    num_key_value_heads=8,
    head_dim=24,
    latent_attention=LatentAttention(query_rank=40, key_value_rank=32, rotary_dim=8, value_dim=16),
)


def layout(**degrees: int) -> Parallelism:
    own = {"dp": 1, "pp": 1, "tp": 1, "cp": 1, **degrees}
    return Parallelism(layers_per_stage=None, sharding=Sharding.NONE, sequence_parallel=own["tp"] > 1, **own)


def graph_of(model: Model, parallelism: Parallelism, imbalance: float = 1.0) -> BlockGraph:
    own = software("megatron-core", expert_imbalance=imbalance)
    return extract(model, parallelism, BATCH, TOKENS, None, own)[Batch.MICROBATCH]


def operators(segments: tuple[Segment, ...]) -> list[Operator]:
    return [operator for segment in segments for operator in segment.operators]


def product_flops(segments: tuple[Segment, ...]) -> int:
    kinds = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM)
    return sum(operator.flops for operator in operators(segments) if operator.kind in kinds)


LAYOUTS = [
    layout(dp=4, ep=4),
    layout(dp=2, tp=2, ep=4),
    layout(dp=2, tp=2, ep=2, etp=2),
    layout(dp=2, cp=2, ep=4),
    layout(dp=2, tp=2, cp=2, ep=8),
]


@pytest.mark.parametrize("parallelism", LAYOUTS, ids=str)
@pytest.mark.parametrize("shared", [0, 48])
def test_products_of_all_gpus_are_those_of_the_tokens(parallelism: Parallelism, shared: int) -> None:
    assert MODEL.experts is not None
    model = dataclasses.replace(MODEL, experts=dataclasses.replace(MODEL.experts, shared_width=shared))
    graph = graph_of(model, parallelism)
    tokens = parallelism.dp * BATCH * TOKENS
    for forward, backward, dense in (
        (graph.forward, graph.backward, False),
        (graph.dense_forward, graph.dense_backward, True),
    ):
        flops = 2 * tokens * used_matrices(model, dense=dense)
        assert parallelism.gpus * product_flops(forward) == flops
        assert parallelism.gpus * product_flops(backward) == 2 * flops


@pytest.mark.parametrize("parallelism", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "base", [MODEL, LATENT, dataclasses.replace(MODEL, experts=None)], ids=lambda m: str(m.experts)
)
def test_further_tokens_are_predicted_once_beside_the_head(base: Model, parallelism: Parallelism) -> None:
    if base.experts is None:
        parallelism = dataclasses.replace(parallelism, ep=1, etp=1)
    model = dataclasses.replace(base, mtp_layers=2)
    plain = graph_of(model, parallelism)
    graph = with_further_tokens(plain, model, parallelism, BATCH * TOKENS // parallelism.cp)
    matrices = model.vocab_size * model.hidden_size + used_by_mtp(model)
    flops = 2 * parallelism.dp * BATCH * TOKENS * matrices
    assert parallelism.gpus * product_flops(graph.head_forward) == flops
    assert parallelism.gpus * product_flops(graph.head_backward) == 2 * flops
    for segments in (graph.head_forward, graph.head_backward):
        assert {segment.scope for segment in segments} == {Scope.HEAD}
        assert len({segment.name for segment in segments}) == len(segments)
    assert (graph.forward, graph.backward) == (plain.forward, plain.backward)
    heads = 3 * 2 * parallelism.dp * BATCH * TOKENS * model.vocab_size * model.hidden_size
    for repeated in (Recomputation.FULL, Recomputation.STAGE):  # the blocks and what enters them, the heads not
        assert parallelism.gpus * product_flops(head_backward(graph, repeated)) == 3 * flops - heads
    assert head_backward(graph, Recomputation.NONE) == graph.head_backward
    selective = [o for s in head_backward(graph, Recomputation.SELECTIVE) for o in s.operators]
    usual = [o for s in graph.head_backward for o in s.operators]
    assert {o.name.partition(".")[0] for o in selective if o.name.endswith(AGAIN_SUFFIX)} == {"attention"}
    assert sum(o.flops for o in selective if o.is_core_attention) == sum(
        o.flops
        for segments in (graph.head_forward, graph.head_backward)
        for s in segments
        for o in s.operators
        if o.is_core_attention
    )
    assert sorted(o.name for o in selective if not o.name.endswith(AGAIN_SUFFIX)) == sorted(o.name for o in usual)
    assert with_further_tokens(plain, base, parallelism, 1) is plain


@given(
    ep=st.sampled_from([1, 2, 8]),
    per_token=st.integers(1, 6),
    imbalance=st.floats(1.0, 3.0),
    groups=st.sampled_from([8, 16, 32]),
)
@settings(max_examples=25, deadline=None)
def test_exchanges_move_every_copy_there_and_back(ep: int, per_token: int, imbalance: float, groups: int) -> None:
    model = dataclasses.replace(MODEL, experts=Experts(count=groups, per_token=per_token, width=32))
    graph = graph_of(model, layout(dp=8, ep=ep), imbalance)
    for segments in (graph.forward, graph.backward):
        exchanges = [s.collective for s in segments if s.collective and s.collective.kind is CollectiveKind.ALL_TO_ALL]
        copies = BATCH * TOKENS * per_token
        fullest = round(copies * imbalance) if ep > 1 else copies
        assert [each.message_bytes for each in exchanges] == [2 * 64 * fullest] * (2 if ep > 1 else 0)
        products = [o for o in operators(segments) if o.kind is OperatorKind.GROUPED_GEMM]
        assert {product.shape[:2] for product in products} == {(groups // ep, fullest)}


def test_blocks_without_experts_are_those_of_the_dense_model() -> None:
    parallelism = layout(dp=2, tp=2, ep=2)
    graph = graph_of(MODEL, parallelism)
    dense = graph_of(dataclasses.replace(MODEL, experts=None), parallelism)
    assert {segment.scope for segment in graph.dense_forward} == {Scope.DENSE_BLOCK}
    assert operators(graph.dense_forward) == operators(dense.forward)
    assert operators(graph.dense_backward) == operators(dense.backward)
    assert graph.head_forward == dense.head_forward
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        for recomputation in (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL, Recomputation.STAGE):
            scopes = [
                own[-1].scope for own in block_passes(graph, 3, direction, recomputation=recomputation, dense=1)
                if own[-1].direction is direction
            ]  # fmt: skip
            order = [Scope.DENSE_BLOCK, Scope.BLOCK, Scope.BLOCK]
            assert scopes == (order if direction is Direction.FORWARD else order[::-1])


def test_a_router_replaces_the_gather_of_tokens() -> None:
    """With sequence parallelism every GPU routes its tokens: what is left is what attention and shared experts need."""
    parallelism = layout(dp=2, tp=2, ep=2)
    assert MODEL.experts is not None
    routed = dataclasses.replace(MODEL, experts=dataclasses.replace(MODEL.experts, shared_width=0))
    for model, moves in ((routed, 2), (MODEL, 4)):
        graph = graph_of(model, parallelism)
        for segments in (graph.forward, graph.backward):
            assert sum(s.collective is not None and s.collective.group == "tp" for s in segments) == moves


def test_every_layout_has_the_attention_of_latent_heads() -> None:
    for parallelism in (layout(dp=2, ep=2), layout(dp=2, tp=2, ep=4)):
        graph = graph_of(LATENT, parallelism)
        tokens = parallelism.dp * BATCH * TOKENS
        flops = 2 * tokens * used_matrices(LATENT, dense=False)
        whole = parallelism.gpus * product_flops(graph.forward)
        assert whole == flops
        assert parallelism.gpus * product_flops(graph.backward) == 2 * whole
        (attention,) = [o for o in operators(graph.forward) if o.kind is OperatorKind.ATTENTION]
        pairs = parallelism.dp * BATCH * TOKENS**2 // 2
        assert parallelism.gpus * attention.flops == 2 * pairs * 8 * (24 + 16)


def test_copies_for_one_node_travel_once() -> None:
    copies = ExchangedCopies(per_token=8, share_of_groups=1)
    assert copies.share(1) == pytest.approx(1 / 8)
    assert copies.share(8) == pytest.approx(8 * (1 - (7 / 8) ** 8) / 8)
    assert ExchangedCopies(per_token=8, share_of_groups=0.5).share(8) == pytest.approx(4 / 8)
    graph = graph_of(MODEL, layout(dp=16, ep=16))
    for one, kind in ((None, PlacedCollective), (copies, TokenExchange)):
        exchange = placed(graph, layout(dp=16, ep=16), 8, one).forward[0].collective
        assert type(exchange) is kind
        assert (exchange.nodes, exchange.per_node) == (2, 8)
