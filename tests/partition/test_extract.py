"""The operator graph and the partitions of real models, against figures worked out by hand."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from kareus.errors import KareusError, RefusedWorkloadError
from kareus.graph.interleave import block_segments, interleave, partition_of
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    UPDATING,
    Batch,
    BlockGraph,
    Direction,
    Operator,
    OperatorKind,
    Segment,
    SequenceCollective,
)
from kareus.graph.split_backward import pass_segments
from kareus.model.block import Block
from kareus.model.communication import Mesh
from kareus.model.config import Model, Parallelism, Sharding
from kareus.model.layers import rotary_table
from kareus.model.shards import shard_of
from kareus.partition.extract import extract, partitions_of
from kareus.partition.names import collective_group_size, expected_partitions, instruction_partitions
from kareus.partition.trace import trace

SEQUENCE = 4096
LLAMA = Model(
    name="llama3.2-3b",
    hidden_size=3072,
    intermediate_size=8192,
    num_layers=28,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128256,
    tie_embeddings=True,
    qk_norm=False,
    qkv_bias=False,
    norm_epsilon=1e-5,
    rotary_base=500_000.0,
    rotary_scaling=None,
    layers_per_stage={},
)
QWEN = dataclasses.replace(
    LLAMA,
    name="qwen3-1.7b",
    hidden_size=2048,
    intermediate_size=6144,
    num_attention_heads=16,
    vocab_size=151936,
    qk_norm=True,
)
EXTRACTED: dict[tuple[object, ...], dict[Batch, BlockGraph]] = {}
DEGREES = [(8, 1), (4, 2), (1, 2), (1, 1)]


@dataclass(frozen=True)
class Extracted:
    """What decides the partitions of a workload."""

    parallelism: Parallelism
    microbatch_size: int = 8
    recomputation: Recomputation = Recomputation.NONE
    split_backward: bool = False


def degrees(tp: int, cp: int, *, shared: bool = False) -> Parallelism:
    """Degrees of parallelism; `shared` if a tensor-parallel group shares tokens (sequence parallelism)."""
    return Parallelism(
        dp=1, pp=2, tp=tp, cp=cp, layers_per_stage=(14, 14), sharding=Sharding.NONE, sequence_parallel=shared
    )


def graphs(
    model: Model, tp: int, cp: int, microbatch_size: int = 8, *, shared: bool = False
) -> dict[Batch, BlockGraph]:
    key = (model.name, model.qkv_bias, tp, cp, microbatch_size, shared)
    if key not in EXTRACTED:
        EXTRACTED[key] = extract(model, degrees(tp, cp, shared=shared), microbatch_size, SEQUENCE)
    return EXTRACTED[key]


def nanobatch(model: Model, tp: int, cp: int, *, shared: bool = False) -> BlockGraph:
    return graphs(model, tp, cp, shared=shared)[Batch.NANOBATCH]


def partitions(tp: int, cp: int, *, shared: bool = False, **changes: object) -> dict[str, int]:
    workload = Extracted(degrees(tp, cp, shared=shared), **changes)
    found = partitions_of(graphs(LLAMA, tp, cp, shared=shared), workload)
    return {partition.name: multiplicity for partition, multiplicity in found.items()}


def named(segments: Iterable[Segment]) -> dict[str, list[str]]:
    return {s.name: [o.name for o in s.operators] for s in segments}


def operator(segments: Iterable[Segment], segment: str, name: str) -> Operator:
    return next(o for s in segments if s.name == segment for o in s.operators if o.name == name)


def total_flops(graph: BlockGraph) -> int:
    return sum(o.flops for s in (*graph.forward, *graph.backward) for o in s.operators)


def test_tp_has_two_partitions_in_each_direction() -> None:
    assert partitions(8, 1) == {
        "forward-attention-allreduce": 2,
        "forward-mlp-allreduce": 2,
        "backward-mlp-allreduce": 2,
        "backward-attention-allreduce": 2,
    }


def test_cp_with_tp_has_five_forward_and_seven_backward_kinds() -> None:
    assert partitions(4, 2) == {
        "forward-qkv-allreduce": 1,
        "forward-qkv-allgather": 1,
        "forward-attention-allgather": 1,
        "forward-attention-allreduce": 1,
        "forward-mlp-allreduce": 2,
        "backward-mlp-allreduce": 2,
        "backward-projection-allreduce": 1,
        "backward-projection-allgather": 1,
        "backward-attention-allgather": 1,
        "backward-attention-reducescatter": 1,
        "backward-qkv-reducescatter": 1,
        "backward-qkv-allreduce": 1,
    }


def test_cp_alone_overlaps_the_whole_block_with_the_allgather() -> None:
    assert partitions(1, 2) == {
        "forward-block-allgather": 2,
        "backward-mlp-allgather": 1,
        "backward-mlp-reducescatter": 1,
        "backward-attention-allgather": 1,
        "backward-attention-reducescatter": 1,
    }
    assert partitions(1, 2, recomputation=Recomputation.STAGE) == partitions(1, 2)


@pytest.mark.parametrize("place", [(8, 1), (4, 2)])
@pytest.mark.parametrize("recomputation", list(Recomputation))
def test_recomputation_adds_no_kind_of_partition_under_tp(place: tuple[int, int], recomputation: Recomputation) -> None:
    assert partitions(*place, recomputation=recomputation) == partitions(*place)


@pytest.mark.parametrize(("tp", "cp"), [(8, 1), (4, 2), (1, 2)])
@pytest.mark.parametrize("direction", [Direction.BACKWARD, Direction.INPUT_GRADIENT])
def test_attention_runs_again_before_what_reads_it(tp: int, cp: int, direction: Direction) -> None:
    graph = nanobatch(LLAMA, tp, cp)
    kept, again = (
        block_segments(graph, 1, direction, recomputation=r) for r in (Recomputation.NONE, Recomputation.SELECTIVE)
    )
    assert [s.collective for s in again] == [s.collective for s in kept]
    order = [o.name for s in again for o in s.operators]
    assert Counter(order) - Counter(o.name for s in kept for o in s.operators) == Counter(["attention.again"])
    own = next(s for s in again if "attention.again" in [o.name for o in s.operators])
    names = [o.name for o in own.operators]
    place = names.index("attention.again")
    rest = ["attention"] if direction is Direction.INPUT_GRADIENT else ["projection.wgrad", "attention"]
    assert names[place + 1 : place + 1 + len(rest)] == rest
    assert order.index("projection.dgrad") < order.index("attention.again")


def test_input_gradients_have_the_partitions_of_full_backward() -> None:
    for tp, cp in DEGREES:
        whole = partitions(tp, cp, recomputation=Recomputation.STAGE)
        split = partitions(tp, cp, recomputation=Recomputation.STAGE, split_backward=True)
        assert split == {name.replace("backward", "input-gradient"): n for name, n in whole.items()}


def test_weight_gradients_repeat_the_matrix_products_of_forward() -> None:
    graph = graphs(QWEN, 4, 2)[Batch.MICROBATCH]
    scopes = (
        (graph.forward, graph.backward),
        (graph.embedding_forward, graph.embedding_backward),
        (graph.head_forward, graph.head_backward),
    )
    for forward, backward in scopes:
        weights, inputs = (
            [o for s in pass_segments(forward, backward, direction) for o in s.operators]
            for direction in (Direction.WEIGHT_GRADIENT, Direction.INPUT_GRADIENT)
        )
        products = [o for s in forward for o in s.operators if o.kind is OperatorKind.GEMM]
        assert sum(o.flops for o in weights) == sum(o.flops for o in products)
        assert len(weights) + len(inputs) == sum(len(s.operators) for s in backward)
    assert pass_segments(graph.embedding_forward, graph.embedding_backward, Direction.INPUT_GRADIENT) == ()


def test_without_collectives_there_are_no_partitions() -> None:
    assert partitions(1, 1) == {}
    assert [s.collective for s in nanobatch(LLAMA, 1, 1).forward] == [None]


def test_an_odd_microbatch_has_no_nanobatches_and_no_partitions() -> None:
    odd = graphs(LLAMA, 8, 1, 3)
    assert list(odd) == [Batch.MICROBATCH]
    assert partitions_of(odd, Extracted(degrees(8, 1), microbatch_size=3)) == {}


@pytest.mark.parametrize(("tp", "cp"), DEGREES)
@pytest.mark.parametrize("recomputation", list(Recomputation))
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("model", [LLAMA, QWEN], ids=lambda m: m.name)
def test_the_predicted_names_are_those_that_are_found(
    model: Model, shared: bool, tp: int, cp: int, recomputation: Recomputation, split: bool
) -> None:
    workload = Extracted(degrees(tp, cp, shared=shared), recomputation=recomputation, split_backward=split)
    found = partitions_of(graphs(model, tp, cp, shared=shared), workload)
    assert {p.name for p in found} == set(expected_partitions(workload))
    assert all(collective_group_size(p.name, workload.parallelism) == p.collective.group_size for p in found)


@pytest.mark.parametrize(("tp", "cp"), DEGREES)
@pytest.mark.parametrize("recomputation", list(Recomputation))
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("direction", [d for d in Direction if d not in UPDATING])
@pytest.mark.parametrize("shared", [False, True])
def test_predicted_partitions_match_staggered_nanobatches(
    shared: bool, tp: int, cp: int, recomputation: Recomputation, layers: int, direction: Direction
) -> None:
    workload = Extracted(degrees(tp, cp, shared=shared), recomputation=recomputation)
    graph = nanobatch(LLAMA, tp, cp, shared=shared)
    pairs = interleave(block_segments(graph, layers, direction, recomputation=recomputation))
    walked = [partition_of(pair.segment, pair.collective).name for pair in pairs if pair.segment and pair.collective]
    assert sorted(instruction_partitions(workload, direction, layers)) == sorted(set(walked))


def test_shared_tokens_give_sublayers_two_partitions_each_way() -> None:
    assert partitions(8, 1, shared=True) == {
        "forward-qkv-reducescatter-tp": 2,
        "forward-attention-allgather-tp": 2,
        "forward-mlp-reducescatter-tp": 2,
        "forward-down-allgather-tp": 2,
        "backward-down-reducescatter-tp": 2,
        "backward-mlp-allgather2-tp": 2,
        "backward-attention-reducescatter-tp": 2,
        "backward-qkv-allgather2-tp": 2,
    }


def test_segments_of_shared_tokens_are_halves_of_sublayers() -> None:
    graph = nanobatch(QWEN, 8, 1, shared=True)
    assert named(graph.forward) == {
        "norm": ["norm"],
        "qkv": ["qkv", "rope"],
        "attention": ["attention", "projection"],
        "norm.2": ["norm"],
        "mlp": ["gate_up"],
        "down": ["activation", "down"],
    }
    assert named(graph.backward) == {
        "norm": ["norm"],
        "down": ["down.dgrad", "down.wgrad", "activation"],
        "mlp": ["gate_up.dgrad", "gate_up.wgrad"],
        "norm.2": ["norm"],
        "attention": ["projection.dgrad", "projection.wgrad", "attention"],
        "qkv": ["rope", "qkv.dgrad", "qkv.wgrad"],
    }


def test_shared_tokens_are_gathered_with_what_was_not_kept() -> None:
    hidden = 4 * 4096 * 3072 * 2
    graph = nanobatch(LLAMA, 8, 1, shared=True)
    sent = [
        s.collective and (s.collective.label, s.collective.message_bytes) for s in (*graph.forward, *graph.backward)
    ]
    scatter = ("reducescatter-tp", hidden)
    assert sent == [("allgather-tp", hidden), None, scatter] * 2 + [("allgather2-tp", 2 * hidden), None, scatter] * 2
    whole = nanobatch(LLAMA, 8, 1)
    assert total_flops(graph) == total_flops(whole)
    moved = [operator(g.forward, s, "norm").bytes_written for g, s in ((graph, "norm.2"), (whole, "mlp"))]
    assert moved[0] * 8 == moved[1], "a norm sees an eighth of the tokens"


def test_attention_sends_each_sequence_by_itself() -> None:
    """Eight of a microbatch and four of a nanobatch; the MLP sends all tokens at once, whose order it leaves open."""
    for batch, graph in graphs(LLAMA, 8, 1, shared=True).items():
        sequences = 8 if batch is Batch.MICROBATCH else 4
        sent = [s.collective for s in graph.forward if s.collective]
        assert [getattr(collective, "sequences", 1) for collective in sent] == [sequences, sequences, 1, 1]
        sent = [s.collective for s in graph.backward if s.collective]
        assert [getattr(collective, "sequences", 1) for collective in sent] == [1, 1, sequences, sequences]
    alone = graphs(LLAMA, 8, 1, microbatch_size=1, shared=True)[Batch.MICROBATCH]
    assert not any(isinstance(s.collective, SequenceCollective) for s in (*alone.forward, *alone.backward))


def test_a_wrong_prediction_stops_extraction() -> None:
    with pytest.raises(KareusError, match="forward-qkv-allgather"):
        partitions_of(graphs(LLAMA, 4, 2), Extracted(degrees(8, 1)))


def test_segments_of_tp_follow_the_case_study_of_the_paper() -> None:
    graph = nanobatch(QWEN, 8, 1)
    assert named(graph.forward) == {
        "attention": ["norm", "qkv", "rope", "attention", "projection"],
        "mlp": ["norm", "gate_up", "activation", "down"],
    }
    assert named(graph.backward) == {
        "mlp": ["norm", "down.dgrad", "down.wgrad", "activation", "gate_up.dgrad", "gate_up.wgrad"],
        "attention": [
            "norm",
            "projection.dgrad",
            "projection.wgrad",
            "attention",
            "rope",
            "qkv.dgrad",
            "qkv.wgrad",
        ],
    }


def test_segments_of_cp_and_tp_are_cut_at_gathers_of_kv() -> None:
    graph = nanobatch(QWEN, 4, 2)
    assert named(graph.forward) == {
        "qkv": ["norm", "qkv", "rope"],
        "attention": ["attention", "projection"],
        "mlp": ["norm", "gate_up", "activation", "down"],
    }
    assert named(graph.backward) == {
        "mlp": ["norm", "down.dgrad", "down.wgrad", "activation", "gate_up.dgrad", "gate_up.wgrad"],
        "projection": ["norm", "projection.dgrad", "projection.wgrad"],
        "attention": ["attention"],
        "qkv": ["rope", "qkv.dgrad", "qkv.wgrad"],
    }


def test_collectives_wait_for_all_but_the_last_weight_gradient() -> None:
    tensor, both = nanobatch(LLAMA, 8, 1), nanobatch(LLAMA, 4, 2)
    assert [s.independent_tail for s in (*tensor.forward, *both.forward)] == [0] * 5
    assert {s.name: s.independent_tail for s in tensor.backward} == {"mlp": 1, "attention": 1}
    assert {s.name: s.independent_tail for s in both.backward} == {"mlp": 1, "projection": 1, "attention": 0, "qkv": 1}


def all_segments(tp: int, cp: int) -> list[Segment]:
    graph = nanobatch(LLAMA, tp, cp)
    return [*graph.forward, *graph.backward]


def test_an_all_reduce_carries_the_hidden_states_of_a_nanobatch() -> None:
    for segment in all_segments(8, 1):
        assert segment.collective is not None
        assert segment.collective.message_bytes == 4 * 4096 * 3072 * 2  # 100.7 MB
        assert (segment.collective.group, segment.collective.group_size, segment.collective.fused) == ("tp", 8, 1)


def test_keys_and_values_share_their_collectives() -> None:
    graph = nanobatch(QWEN, 4, 2)
    both = 2 * 4 * 4096 * (8 // 4) * 128 * 2  # keys and values x sequences x tokens x heads x dimension x bytes
    for collective in (graph.forward[0].collective, graph.backward[1].collective, graph.backward[2].collective):
        assert collective is not None
        assert (collective.message_bytes, collective.fused) == (both, 2)
        assert (collective.group, collective.group_size) == ("cp", 2)


def test_norm_moves_what_a_fused_kernel_moves() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    hidden, scales, weight = 4 * 4096 * 3072 * 2, 4 * 4096 * 4, 3072
    forward = operator(graph.forward, "mlp", "norm")
    assert forward.bytes_read == 2 * hidden + 2 * weight  # residual stream and update
    assert forward.bytes_written == 2 * hidden + scales  # residual stream and normalised, scales for backward
    backward = operator(graph.backward, "mlp", "norm")
    # Gradients of the output and of the residual stream, the input, its scales, the weight and its gradient's sum.
    assert backward.bytes_read == 3 * hidden + scales + (2 + 4) * weight
    assert backward.bytes_written == hidden + 4 * weight


def test_activation_and_rope_move_what_a_fused_kernel_moves() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    tokens, inner = 4 * 4096, 8192 // 8
    forward, backward = (operator(s, "mlp", "activation") for s in (graph.forward, graph.backward))
    assert (forward.bytes_read, forward.bytes_written) == (2 * tokens * 2 * inner, 2 * tokens * inner)
    assert (backward.bytes_read, backward.bytes_written) == (2 * tokens * 3 * inner, 2 * tokens * 2 * inner)
    rope = operator(graph.forward, "attention", "rope")
    angles = 2 * 4096 * 64 * 4
    assert (rope.bytes_read, rope.bytes_written) == (2 * tokens * (3 + 1) * 128 + angles, 2 * tokens * (3 + 1) * 128)


def test_matrix_products_read_inputs_and_add_gradients_in_fp32() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    tokens, wide, hidden = 4 * 4096, 2 * 8192 // 8, 3072
    forward = operator(graph.forward, "mlp", "gate_up")
    assert forward.shape == (tokens, wide, hidden)
    assert (forward.bytes_read, forward.bytes_written) == (2 * hidden * (tokens + wide), 2 * tokens * wide)
    dgrad, wgrad = (operator(graph.backward, "mlp", f"gate_up.{part}") for part in ("dgrad", "wgrad"))
    assert (dgrad.shape, wgrad.shape) == ((tokens, hidden, wide), (wide, hidden, tokens))
    assert wgrad.bytes_read == 2 * tokens * (wide + hidden) + 4 * wide * hidden
    assert wgrad.bytes_written == 4 * wide * hidden
    assert forward.flops == dgrad.flops == wgrad.flops == 2 * tokens * wide * hidden


def test_a_bias_is_part_of_its_projection() -> None:
    biased = nanobatch(dataclasses.replace(LLAMA, qkv_bias=True), 8, 1)
    plain = nanobatch(LLAMA, 8, 1)
    assert named(biased.forward) == named(plain.forward)
    rows = (24 + 2 * 8) * 128 // 8
    reads = [operator(graph.forward, "attention", "qkv").bytes_read for graph in (biased, plain)]
    assert reads[0] - reads[1] == 2 * rows


def test_the_gradient_of_a_bias_reads_the_output_gradient() -> None:
    biased = nanobatch(dataclasses.replace(LLAMA, qkv_bias=True), 8, 1)
    plain = nanobatch(LLAMA, 8, 1)
    products = [operator(graph.backward, "attention", "qkv.wgrad") for graph in (biased, plain)]
    assert products[0] == products[1]
    own = operator(biased.backward, "attention", "qkv.bias.wgrad")
    rows = (24 + 2 * 8) * 128 // 8
    assert own.is_weight_gradient
    assert (own.kind, own.flops, own.shape) == (OperatorKind.MEMORY, 0, (rows,))
    assert (own.bytes_read, own.bytes_written) == (2 * 4 * SEQUENCE * rows + 4 * rows, 4 * rows)
    tails = [next(s.independent_tail for s in g.backward if s.name == "attention") for g in (biased, plain)]
    assert tails == [2, 1]


@pytest.mark.parametrize(("tp", "cp"), [(8, 1), (4, 2), (2, 4)])
def test_attention_leaves_out_the_masked_half(tp: int, cp: int) -> None:
    graph = nanobatch(LLAMA, tp, cp)
    forward, backward = (operator(segments, "attention", "attention") for segments in (graph.forward, graph.backward))
    assert (forward.kind, backward.kind) == (OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD)
    assert forward.shape == backward.shape == (4, 24 // tp, 8 // tp, SEQUENCE // cp, SEQUENCE, 128)
    pairs = (SEQUENCE // cp) * SEQUENCE // 2
    assert forward.flops == 2 * 2 * 4 * (24 // tp) * pairs * 128
    assert backward.flops * 2 == forward.flops * 5
    if cp == 1:
        tokens, heads = 4 * SEQUENCE, 24 // tp + 2 * (8 // tp)
        assert forward.bytes_read == 2 * tokens * heads * 128
        assert forward.bytes_written == tokens * (24 // tp) * (2 * 128 + 4)


def test_cp_attention_counts_copies_of_keys_values_and_outputs() -> None:
    graph = nanobatch(LLAMA, 4, 2)
    forward, backward = (operator(segments, "attention", "attention") for segments in (graph.forward, graph.backward))
    queries, shared = (2 * 4 * tokens * heads * 128 for tokens, heads in ((SEQUENCE // 2, 24 // 4), (SEQUENCE, 8 // 4)))
    # Keys and values are read and written once, and so are the outputs of the two chunks of queries.
    assert (forward.copies, forward.copied_bytes) == (3, 2 * 2 * shared + 2 * queries)
    # Keys and values as before; of their gradients, the first chunk's, a quarter, is added to the last's, and all is
    # handed out to the ranks: the front half at once, of the back half each chunk.
    gradients = 2 * (3 * shared // 4 + 2 * shared)
    assert (backward.copies, backward.copied_bytes) == (2 + 2 * 4 + 1, 2 * 2 * shared + gradients + 2 * queries)
    alone = nanobatch(LLAMA, 8, 1)
    assert all((o.copies, o.copied_bytes) == (0, 0) for s in (*alone.forward, *alone.backward) for o in s.operators)


def flops_by_torch(model: Model) -> Counter[str]:
    """Torch's own count over one block, by name of the operation; it counts attention without its mask."""
    ops = torch.ops.aten
    counter = FlopCounterMode(
        display=False,
        custom_mapping={
            ops._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
            ops._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: (
                sdpa_backward_flop_count(g, q, k, v)
            ),
        },
    )
    shard = shard_of(model, degrees(1, 1), SEQUENCE)
    with FakeTensorMode():
        block = Block(model, shard, Mesh(), torch.bfloat16)
        hidden = torch.empty(4, SEQUENCE, model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        with counter:
            out = block(hidden, rotary_table(model, SEQUENCE, None))
            out.backward(torch.empty_like(out))
    return Counter({str(op).split(".")[-1]: n for op, n in counter.get_flop_counts()["Global"].items()})


@pytest.mark.parametrize("model", [LLAMA, QWEN], ids=lambda m: m.name)
def test_flops_agree_with_torchs_counter(model: Model) -> None:
    counted = flops_by_torch(model)
    attention = sum(n for name, n in counted.items() if "attention" in name)
    assert attention
    assert total_flops(nanobatch(model, 1, 1)) == counted.total() - attention // 2


@pytest.mark.parametrize(("tp", "cp"), [(8, 1), (2, 1), (4, 2), (1, 2), (2, 4)])
def test_all_gpus_together_do_the_arithmetic_of_one(tp: int, cp: int) -> None:
    assert tp * cp * total_flops(nanobatch(LLAMA, tp, cp)) == total_flops(nanobatch(LLAMA, 1, 1))


def test_a_nanobatch_does_half_the_arithmetic_of_a_microbatch() -> None:
    both = graphs(LLAMA, 4, 2)
    assert 2 * total_flops(both[Batch.NANOBATCH]) == total_flops(both[Batch.MICROBATCH])


@given(
    layers=st.integers(1, 40),
    place=st.sampled_from([(8, 1), (4, 2), (1, 2)]),
    recomputation=st.sampled_from(Recomputation),
)
@settings(max_examples=60)
def test_multiplicities_count_all_but_the_first_segment(
    layers: int, place: tuple[int, int], recomputation: Recomputation
) -> None:
    assume(recomputation is not Recomputation.FULL or place[0] > 1)  # what is refused
    graph = nanobatch(LLAMA, *place)
    multiplicities = partitions(*place, recomputation=recomputation)
    run = Counter[str]()
    for pair in interleave(block_segments(graph, layers, Direction.BACKWARD, recomputation=recomputation)):
        if pair.segment and pair.collective:
            run[partition_of(pair.segment, pair.collective).name] += 1
    assert set(run) <= set(multiplicities)
    segments = len(graph.backward) + (len(graph.forward) if recomputation.repeats_blocks else 0)
    assert run.total() == 2 * segments * layers - 1
    backward = {name: n for name, n in multiplicities.items() if name.startswith("backward")}
    missing = Counter({name: n * layers for name, n in backward.items()}) - run
    # The first backward segment runs beside nothing, or beside the recomputed forward's last collective, which has the
    # same kind as the backward's own unless there is context parallelism alone.
    assert missing.total() == (0 if recomputation.repeats_blocks and place[0] > 1 else 1)


def test_what_stands_around_the_blocks_has_its_own_segments() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    assert named(graph.embedding_forward) == {"embedding": ["embedding"]}
    assert named(graph.head_forward) == {"head": ["norm", "lm_head", "loss"], "loss": ["loss"], "loss.2": ["loss"]}
    assert named(graph.head_backward) == {"head": ["loss", "lm_head.dgrad", "lm_head.wgrad"], "norm": ["norm"]}
    messages = [s.collective.message_bytes if s.collective else 0 for s in graph.head_forward]
    assert messages == [4 * 4096 * 4, 2 * 4 * 4096 * 4, 0]  # maxima; sums and the labels' logits
    lookup = operator(graph.embedding_forward, "embedding", "embedding")
    assert lookup.bytes_written == 4 * 4096 * 3072 * 2


def test_the_loss_reads_logits_twice_and_keeps_no_probabilities() -> None:
    graph = nanobatch(LLAMA, 8, 1)
    logits = 4 * 4096 * (128256 // 8) * 2
    loss = [o for s in (*graph.head_forward, *graph.head_backward) for o in s.operators if o.name == "loss"]
    assert [round(o.bytes_read / logits) for o in loss] == [1, 1, 0, 1]
    assert [round(o.bytes_written / logits) for o in loss] == [0, 0, 0, 1]


def test_tracing_is_repeatable_and_leaves_no_process_group() -> None:
    first, second = (extract(QWEN, degrees(4, 2), 2, 512) for _ in range(2))
    assert first == second
    assert not dist.is_initialized()


def test_an_indivisible_model_is_refused_without_process_groups() -> None:
    with pytest.raises(RefusedWorkloadError, match="num_attention_heads=24: must be divisible by tp"):
        trace(LLAMA, degrees(16, 1), 1, 128)
    assert not dist.is_initialized()


def test_tracing_refuses_to_replace_existing_process_groups() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(KareusError, match="already runs distributed training"):
            trace(LLAMA, degrees(8, 1), 1, 128)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
