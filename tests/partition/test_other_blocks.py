"""Operators of blocks other than Llama's: closed forms, and graphs evaluated for sizes against fresh traces."""

import dataclasses
from collections.abc import Iterable

import pytest
from helpers.builders import small_model
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.errors import RefusedWorkloadError
from kareus.graph.recomputation import Recomputation, block_backward
from kareus.graph.records import Batch, BlockGraph, Operator, OperatorKind, Segment
from kareus.model.config import ActivationKind, AttentionKernel, Model, NormKind, PositionKind
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.extract import extract, graph_of
from kareus.partition.trace import trace

BATCH, TOKENS = 2, 32
HIDDEN, INNER, HEADS, DIM, ROWS = 64, 256, 4, 16, 512
GPT = small_model(
    name="small-gpt",
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    head_dim=DIM,
    vocab_size=ROWS,
    norm=NormKind.LAYERNORM,
    activation=ActivationKind.GELU_TANH,
    positions=PositionKind.LEARNED,
    max_positions=TOKENS,
    biases=True,
)
MPT = dataclasses.replace(
    GPT,
    name="small-mpt",
    activation=ActivationKind.GELU,
    positions=PositionKind.ALIBI,
    max_positions=None,
    biases=False,
)
NEMOTRON = dataclasses.replace(
    MPT,
    name="small-nemotron",
    activation=ActivationKind.SQUARED_RELU,
    positions=PositionKind.ROPE,
    num_key_value_heads=2,
)
FUSED = AttentionKernel.FUSED
UNFUSED = (AttentionKernel.UNFUSED, AttentionKernel.UNFUSED_DROPOUT)


def degrees(tp: int = 1, cp: int = 1, *, shared: bool = False) -> Parallelism:
    return Parallelism(
        dp=1, pp=1, tp=tp, cp=cp, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=shared and tp > 1
    )


TRACED: dict[tuple[str, int, bool, AttentionKernel], BlockGraph] = {}


def graph(
    model: Model, tp: int = 1, kernel: AttentionKernel = AttentionKernel.FUSED, *, shared: bool = False
) -> BlockGraph:
    key = (model.name, tp, shared, kernel)
    if key not in TRACED:
        TRACED[key] = graph_of(trace(model, degrees(tp, shared=shared), BATCH, TOKENS, kernel))
    return TRACED[key]


def operators(segments: Iterable[Segment]) -> dict[str, Operator]:
    """Operators by segment and name."""
    return {f"{s.name}/{o.name}": o for s in segments for o in s.operators}


def moved(operator: Operator) -> tuple[int, int]:
    return operator.bytes_read, operator.bytes_written


def test_layernorm_reads_its_weights_and_keeps_two_numbers_a_row() -> None:
    forward, backward = operators(graph(GPT, 2).forward), operators(graph(GPT, 2).backward)
    hidden, rows = 2 * BATCH * TOKENS * HIDDEN, BATCH * TOKENS
    # Residual stream and update in, their sum and what is normalised out; mean and scale in fp32.
    assert moved(forward["mlp/norm"]) == (2 * hidden + 2 * 2 * HIDDEN, 2 * hidden + 2 * 4 * rows)
    # Two gradients and the sum in; weight in bf16, the gradients of weight and offset in fp32.
    assert moved(backward["mlp/norm"]) == (3 * hidden + 2 * 4 * rows + (2 + 8) * HIDDEN, hidden + 8 * HIDDEN)
    plain = operators(graph(MPT, 2).forward)["mlp/norm"]
    assert plain.bytes_read == forward["mlp/norm"].bytes_read - 2 * HIDDEN
    assert plain.bytes_written == forward["mlp/norm"].bytes_written


def test_an_mlp_without_a_gate_has_two_products_of_one_width() -> None:
    forward, backward = operators(graph(MPT, 2).forward), operators(graph(MPT, 2).backward)
    rows, inner = BATCH * TOKENS, INNER // 2
    assert forward["mlp/up"].shape == (rows, inner, HIDDEN)
    assert forward["mlp/down"].shape == (rows, HIDDEN, inner)
    assert forward["mlp/up"].flops == forward["mlp/down"].flops == 2 * rows * inner * HIDDEN
    assert moved(forward["mlp/activation"]) == (2 * rows * inner, 2 * rows * inner)
    assert moved(backward["mlp/activation"]) == (2 * 2 * rows * inner, 2 * rows * inner)
    assert "mlp/up.bias.wgrad" not in backward


def test_biases_are_read_by_products_and_their_gradients_are_sums() -> None:
    with_biases, without = (operators((*g.forward, *g.backward)) for g in (graph(GPT, 2), graph(MPT, 2)))
    rows = BATCH * TOKENS
    widths = {
        "attention/qkv": 3 * HIDDEN // 2,
        "attention/projection": HIDDEN,
        "mlp/up": INNER // 2,
        "mlp/down": HIDDEN,
    }
    for name, width in widths.items():
        assert with_biases[name].bytes_read - without[name].bytes_read == 2 * width
        assert with_biases[name].flops == without[name].flops
        for product in (f"{name}.dgrad", f"{name}.wgrad"):
            assert with_biases[product] == without[product]
        own = with_biases[f"{name}.bias.wgrad"]
        assert (own.kind, own.flops, own.is_weight_gradient) == (OperatorKind.MEMORY, 0, True)
        assert moved(own) == (2 * rows * width + 4 * width, 4 * width)


def test_learned_positions_are_added_where_tokens_are_looked_up() -> None:
    for tp in (1, 2):
        forward, backward = (
            [next(o for s in segments for o in s.operators) for segments in (g.embedding_forward, g.embedding_backward)]
            for g in (graph(GPT, tp), graph(MPT, tp))
        )
        positions = TOKENS * HIDDEN
        assert (forward[0].bytes_read - backward[0].bytes_read) == 2 * positions
        assert forward[0].bytes_written == backward[0].bytes_written
        again = 2 * BATCH * TOKENS * HIDDEN  # the gradient, in the order of places instead of ids
        assert forward[1].bytes_read - backward[1].bytes_read == 4 * positions + again
        assert forward[1].bytes_written - backward[1].bytes_written == 4 * positions


def test_without_rotation_only_backward_moves_heads() -> None:
    forward, backward = operators(graph(MPT, 2).forward), operators(graph(MPT, 2).backward)
    assert not {"attention/rope", "attention/heads"} & set(forward)
    qkv = 2 * BATCH * TOKENS * 3 * HIDDEN // 2
    assert moved(backward["attention/heads"]) == (qkv, qkv)


def test_alibi_adds_one_number_a_head_to_attention() -> None:
    fused, plain = (operators(graph(m, 2).forward)["attention/attention"] for m in (MPT, GPT))
    assert (fused.flops, fused.shape, fused.copies, fused.bytes_written) == (
        plain.flops,
        plain.shape,
        0,
        plain.bytes_written,
    )
    assert fused.bytes_read - plain.bytes_read == 4 * HEADS // 2


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (2, 2)])
def test_the_engine_reads_a_mask_for_alibi(tp: int, cp: int) -> None:
    own, other = (graph_of(trace(MPT, degrees(tp, cp), BATCH, TOKENS, kernel)) for kernel in (None, FUSED))
    # Whole sequences see all of their tokens; of four chunks, rank 0 has the first and the last.
    pairs = TOKENS**2 if cp == 1 else TOKENS // 4 * (TOKENS // 4 + TOKENS)
    mask, slopes = 2 * pairs * HEADS // tp, 4 * HEADS // tp
    for ours, theirs in zip((*own.forward, *own.backward), (*other.forward, *other.backward), strict=True):
        for operator, computed in zip(ours.operators, theirs.operators, strict=True):
            reads = mask - slopes if operator.name == "attention" else 0
            assert operator == dataclasses.replace(computed, bytes_read=computed.bytes_read + reads)


@pytest.mark.parametrize("tp", [1, 2])
def test_unfused_attention_writes_and_reads_scores(tp: int) -> None:
    heads = HEADS // tp
    segments = graph(GPT, tp, AttentionKernel.UNFUSED_DROPOUT)
    forward = {o.name: o for s in segments.forward for o in s.operators}
    rows, pairs, head = BATCH * heads * TOKENS, BATCH * heads * TOKENS**2, 2 * BATCH * TOKENS * heads * DIM
    assert forward["scores"].shape == (rows, TOKENS, DIM)
    assert forward["mixing"].shape == (rows, DIM, TOKENS)
    assert forward["scores"].flops == forward["mixing"].flops == 2 * pairs * DIM
    assert moved(forward["scores"]) == (2 * head, 2 * pairs)
    assert moved(forward["softmax"]) == (2 * pairs, 2 * pairs)
    assert moved(forward["dropout"]) == (2 * pairs, (2 + 1) * pairs)
    assert moved(forward["mixing"]) == (2 * pairs + head, head)
    backward = [o for s in segments.backward for o in s.operators if o.is_core_attention]
    assert [(o.name, moved(o), o.flops) for o in backward] == [
        ("mixing.dgrad", (2 * head, 2 * pairs), 2 * pairs * DIM),
        ("mixing.dgrad.2", (2 * pairs + head, head), 2 * pairs * DIM),
        ("dropout", ((2 + 1) * pairs, 2 * pairs), 0),
        ("softmax", (2 * 2 * pairs, 2 * pairs), 0),
        ("scores.dgrad", (2 * pairs + head, head), 2 * pairs * DIM),
        ("scores.dgrad.2", (2 * pairs + head, head), 2 * pairs * DIM),
    ]


def test_unfused_attention_without_dropout_has_one_operator_less() -> None:
    names = [
        [o.name for s in graph(GPT, 2, kernel).forward for o in s.operators if o.is_core_attention]
        for kernel in UNFUSED
    ]
    assert names == [["scores", "softmax", "mixing"], ["scores", "softmax", "dropout", "mixing"]]


def test_selective_recomputation_runs_all_of_unfused_attention_again() -> None:
    own = graph(GPT, 2, AttentionKernel.UNFUSED_DROPOUT)
    names = [o.name for s in block_backward(own, Recomputation.SELECTIVE) for o in s.operators]
    first = names.index("scores.again")
    assert names[first : first + 6] == [
        "scores.again",
        "softmax.again",
        "dropout.again",
        "mixing.again",
        "projection.wgrad",
        "mixing.dgrad",
    ]
    assert sorted(n for n in names if not n.endswith(".again")) == sorted(
        o.name for s in own.backward for o in s.operators
    )


def test_unfused_attention_is_refused_where_sequences_are_shared() -> None:
    with pytest.raises(RefusedWorkloadError, match=r"attention that is not fused .* needs whole sequences; use cp=1"):
        extract(GPT, degrees(1, 2), BATCH, TOKENS, AttentionKernel.UNFUSED)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("model", "kernel"),
    [(GPT, AttentionKernel.FUSED), (MPT, AttentionKernel.UNFUSED), (NEMOTRON, AttentionKernel.UNFUSED_DROPOUT)],
    ids=lambda value: getattr(value, "name", None),
)
def test_segments_are_those_of_other_blocks(model: Model, kernel: AttentionKernel, *, shared: bool) -> None:
    llama = small_model(hidden_size=HIDDEN, num_attention_heads=HEADS, vocab_size=ROWS)
    own, other = graph(model, 2, kernel, shared=shared), graph(llama, 2, shared=shared)
    for part in ("forward", "backward", "embedding_forward", "embedding_backward", "head_forward", "head_backward"):
        segments = [
            [(s.name, s.collective and s.collective.label) for s in getattr(each, part)] for each in (own, other)
        ]
        assert segments[0] == segments[1], part


@st.composite
def cases(draw, least=2):
    """A model, its degrees, a microbatch, a sequence, and how attention is computed."""
    tp, cp, shared = draw(st.sampled_from([(1, 1, False), (2, 1, False), (2, 1, True), (1, 2, False), (2, 2, True)]))
    size = st.integers(least, 24)
    key_value, positions = draw(size), draw(st.sampled_from(PositionKind))
    tokens = 2 * cp * tp * draw(size)
    model = small_model(
        hidden_size=draw(size),
        intermediate_size=draw(size) * tp,
        num_attention_heads=key_value * draw(st.integers(1, 3)) * tp,
        num_key_value_heads=key_value * tp,
        head_dim=2 * draw(size),
        vocab_size=draw(size) * tp,
        norm=draw(st.sampled_from(NormKind)),
        activation=draw(st.sampled_from(ActivationKind)),
        positions=positions,
        max_positions=tokens if positions is PositionKind.LEARNED else None,
        biases=draw(st.booleans()),
    )
    kernel = draw(st.sampled_from(AttentionKernel)) if cp == 1 else AttentionKernel.FUSED
    return model, degrees(tp, cp, shared=shared), draw(st.integers(least, 6)), tokens, kernel


def check_is_fresh(case) -> None:
    model, parallelism, batch, tokens, kernel = case
    known = extract(model, parallelism, batch, tokens, kernel)[Batch.MICROBATCH]
    assert known == graph_of(trace(model, parallelism, batch, tokens, kernel))


@given(cases())
@settings(max_examples=2)
def test_a_graph_of_another_block_is_that_of_a_fresh_trace(case) -> None:
    check_is_fresh(case)


@pytest.mark.acceptance
@given(cases(least=1))
@settings(max_examples=20)
def test_many_graphs_of_other_blocks_are_those_of_fresh_traces(case) -> None:
    check_is_fresh(case)
