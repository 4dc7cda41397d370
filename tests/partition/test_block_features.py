"""Operators of blocks with features that Llama's lacks: closed forms of their bytes and FLOPs, in all layouts."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.builders import a100, small_model
from partition.test_other_blocks import degrees

from kareus.gpu_model.laws import attention_shape, operator_time_s
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, BlockGraph, Operator, OperatorKind, Segment
from kareus.model.config import ActivationKind, Model, NormKind, PositionKind
from kareus.model.features import Branches, NormPlacement, QkNormScope
from kareus.partition.extract import extract, graph_of, partitions_of
from kareus.partition.mean_block import attended_share, mean_window
from kareus.partition.trace import trace
from kareus.workload.model_flops import forward_flops_per_sequence

BATCH, TOKENS, HIDDEN, INNER, HEADS, SHARED, DIM, ROWS, LAYERS = 2, 32, 64, 256, 4, 2, 16, 512, 6
LLAMA = small_model(
    name="llama",
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=SHARED,
    head_dim=DIM,
    vocab_size=ROWS,
)
AROUND = dataclasses.replace(LLAMA, name="around", norm_placement=NormPlacement.AROUND)
AFTER = dataclasses.replace(
    LLAMA, name="after", norm_placement=NormPlacement.AFTER, qk_norm=True, qk_norm_scope=QkNormScope.TOKEN
)
BESIDE = dataclasses.replace(LLAMA, name="beside", branches=Branches.PARALLEL)
ONE_NORM = dataclasses.replace(
    LLAMA,
    name="one-norm",
    branches=Branches.PARALLEL_ONE_NORM,
    norm=NormKind.LAYERNORM,
    biases=True,
    head_bias=True,
    rotary_share=0.5,
    activation=ActivationKind.GELU,
)
BLOOM = dataclasses.replace(
    LLAMA,
    name="bloom",
    norm=NormKind.LAYERNORM,
    positions=PositionKind.ALIBI,
    embedding_norm=True,
    biases=True,
    activation=ActivationKind.GELU_TANH,
    num_key_value_heads=HEADS,
)
BIASED = dataclasses.replace(LLAMA, name="biased", projection_bias=True, mlp_bias=True, norm_weight=False)
WINDOWED = dataclasses.replace(LLAMA, name="windowed", window_tokens=8, windowed_layers=(0, 2, 4))
MODELS = (AROUND, AFTER, BESIDE, ONE_NORM, BLOOM, BIASED, WINDOWED)
STREAM = 2 * BATCH * TOKENS * HIDDEN
"""Bytes of hidden states in bf16."""
WEIGHT = 2 * HIDDEN


def graph(model: Model, tp: int = 1, cp: int = 1, *, shared: bool = False) -> BlockGraph:
    return extract(model, degrees(tp, cp, shared=shared), BATCH, TOKENS)[Batch.MICROBATCH]


def operators(segments: tuple[Segment, ...]) -> dict[str, Operator]:
    return {operator.name: operator for segment in segments for operator in segment.operators}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize(
    ("tp", "cp", "shared"),
    [
        (1, 1, False),
        (2, 1, False),
        pytest.param(2, 1, True, marks=pytest.mark.acceptance),  # as in the last
        (1, 2, False),
        (2, 2, True),
    ],
)
def test_partitions_are_those_that_are_predicted(model: Model, tp: int, cp: int, *, shared: bool) -> None:
    parallelism = degrees(tp, cp, shared=shared)
    graphs = extract(model, parallelism, BATCH, TOKENS)
    for recomputation in Recomputation:
        for split_backward in (False, True):
            asked = SimpleNamespace(
                model=model,
                parallelism=parallelism,
                microbatch_size=BATCH,
                recomputation=recomputation,
                split_backward=split_backward,
            )
            found = partitions_of(graphs, asked)
            assert bool(found) is (tp * cp > 1)


@pytest.mark.parametrize("model", MODELS[:-1], ids=lambda model: model.name)
def test_graphs_evaluated_for_sizes_are_those_of_a_trace(model: Model) -> None:
    # A part of a head is counted afterwards, and a norm of a token as those of its heads, which moves the same bytes.
    whole = dataclasses.replace(model, rotary_share=1.0, qk_norm_scope=QkNormScope.HEAD)
    assert graph(whole, 2, shared=True) == graph_of(trace(whole, degrees(2, shared=True), BATCH, TOKENS))


def test_a_norm_after_a_layer_joins_the_norm_before_the_next() -> None:
    plain, around = (operators(graph(model).forward)["norm"] for model in (LLAMA, AROUND))
    assert around.bytes_read == plain.bytes_read + WEIGHT == 2 * STREAM + 2 * WEIGHT
    assert around.bytes_written - plain.bytes_written == 4 * BATCH * TOKENS  # scales; its input is there already
    backwards = [operators(graph(model).backward)["norm"] for model in (LLAMA, AROUND)]
    assert backwards[1].bytes_read - backwards[0].bytes_read >= STREAM  # that input
    assert around.kernels == plain.kernels + 1


def test_norms_after_layers_leave_the_stream_as_it_is() -> None:
    forward = operators(graph(AFTER).forward)
    assert forward["post_norm"].bytes_read == 2 * STREAM + WEIGHT
    gate_up = forward["gate_up"]
    assert gate_up.flops == 2 * BATCH * TOKENS * HIDDEN * 2 * INNER


def test_side_by_side_blocks_have_the_operators_and_collectives_of_others() -> None:
    for direction in ("forward", "backward"):
        plain, beside = (getattr(graph(model, 2), direction) for model in (LLAMA, BESIDE))
        assert [s.collective for s in plain] == [s.collective for s in beside]
        written = [{name: o.bytes_written for name, o in operators(own).items()} for own in (plain, beside)]
        assert written[0] == written[1], "the gradient of what attention adds passes as it is"


def test_biases_of_one_kind_have_gradients_of_their_own() -> None:
    gradients = {name for name in operators(graph(BIASED).backward) if name.endswith(".bias.wgrad")}
    assert gradients == {"projection.bias.wgrad", "gate_up.bias.wgrad", "down.bias.wgrad"}
    head = {o.name for s in graph(ONE_NORM).head_backward for o in s.operators}
    assert "lm_head.bias.wgrad" in head


def test_a_norm_after_the_embedding_reads_and_writes_the_stream() -> None:
    (segment,) = graph(BLOOM).embedding_forward
    (embedding,) = segment.operators
    (plain,) = (o for s in graph(LLAMA).embedding_forward for o in s.operators)
    assert embedding.bytes_written - plain.bytes_written >= STREAM


def test_a_part_of_a_head_rotates_a_part_of_the_bytes() -> None:
    whole = operators(graph(LLAMA).forward)["rope"]
    quarter = operators(graph(dataclasses.replace(LLAMA, rotary_share=0.25)).forward)["rope"]
    assert (quarter.bytes_read, quarter.bytes_written) == (whole.bytes_read // 4, whole.bytes_written // 4)


def test_windows_leave_out_pairs_in_the_mean_block() -> None:
    def pairs(window: int) -> float:
        attending = sum(0 <= query - key < window for query in range(TOKENS) for key in range(TOKENS))
        return attending - window / 2  # a token counts half of itself

    share = float(attended_share(WINDOWED, TOKENS))
    assert share == pytest.approx((pairs(8) + pairs(TOKENS)) / 2 / pairs(TOKENS))
    window = mean_window(attended_share(WINDOWED, TOKENS), TOKENS)
    assert pairs(window) / pairs(TOKENS) == pytest.approx(share, rel=0.05)
    for direction in ("forward", "backward"):
        whole, windowed = (operators(getattr(graph(model), direction))["attention"] for model in (LLAMA, WINDOWED))
        assert windowed.flops == pytest.approx(share * whole.flops)
        assert windowed.shape == (*whole.shape, window)
        assert attention_shape(windowed).window == window


def test_a_window_as_long_as_the_sequence_changes_no_graph() -> None:
    masks_nothing = dataclasses.replace(LLAMA, window_tokens=TOKENS)
    assert graph(masks_nothing) == graph(LLAMA)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_operators_have_the_flops_of_the_model(model: Model) -> None:
    own = graph(model)
    block, head = (sum(o.flops for s in segments for o in s.operators) for segments in (own.forward, own.head_forward))
    assert LAYERS * block + head == pytest.approx(BATCH * forward_flops_per_sequence(model, TOKENS), rel=1e-9)


def test_a_window_takes_less_time_and_more_than_its_share() -> None:
    long = dataclasses.replace(LLAMA, head_dim=128, hidden_size=512)
    windowed = dataclasses.replace(long, window_tokens=1024)
    gpu, mhz = a100(), np.array([1410.0])
    times = []
    for model in (long, windowed):
        own = extract(model, degrees(), BATCH, 16_384)[Batch.MICROBATCH]
        (attention,) = (o for s in own.forward for o in s.operators if o.kind is OperatorKind.ATTENTION)
        times.append(float(operator_time_s(gpu, attention, mhz, np.array([gpu.sm_count]), 1.0)[0]))
    share = float(attended_share(windowed, 16_384))
    assert share < times[1] / times[0] < 2 * share
