"""The operator graph and the partitions of real models, against figures worked out by hand."""

from collections import Counter
from dataclasses import dataclass

import pytest
import torch.distributed as dist
from helpers.extracted import DEGREES, LLAMA, QWEN, degrees, graphs, named, nanobatch, operator, total_flops
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

from kareus.errors import KareusError, RefusedWorkloadError
from kareus.graph.interleave import block_segments, interleave, partition_of
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import UPDATING, Batch, Direction, OperatorKind, SequenceCollective
from kareus.graph.split_backward import pass_segments
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.partition.extract import extract, partitions_of
from kareus.partition.names import collective_group_size, expected_partitions, instruction_partitions
from kareus.partition.trace import trace


@dataclass(frozen=True)
class Extracted:
    """What decides the partitions of a workload."""

    parallelism: Parallelism
    microbatch_size: int = 8
    recomputation: Recomputation = Recomputation.NONE
    split_backward: bool = False
    model: Model = LLAMA


def partitions(tp: int, cp: int, *, shared: bool = False, **changes: object) -> dict[str, int]:
    workload = Extracted(degrees(tp, cp, shared=shared), **changes)
    found = partitions_of(graphs(LLAMA, tp, cp, shared=shared), workload)
    return {partition.name: multiplicity for partition, multiplicity in found.items()}


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
