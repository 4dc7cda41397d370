"""Partitions with dispatch and combine: those written by hand, an order that keeps every dependency, tables."""

import dataclasses
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from helpers.builders import small_model, software
from helpers.partition_tables import write_graphs, write_partitions
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.artifacts.provenance import Provenance
from kareus.graph.interleave import Pair, block_segments, staggered
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import TRACED, Batch, BlockGraph, Collective, Direction, OperatorKind
from kareus.model.config import Model
from kareus.model.experts import Experts, LatentAttention
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract, partitions_of
from kareus.partition.names import collective_group_size
from kareus.partition.place import ExchangedCopies, placed
from kareus.partition.read import read_graphs, read_partitions

BATCH, TOKENS, HIDDEN, PER_TOKEN = 4, 32, 64, 3
MODEL = small_model(
    hidden_size=HIDDEN,
    intermediate_size=192,
    num_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=16,
    experts=Experts(count=16, per_token=PER_TOKEN, width=32),
)
LATENT = dataclasses.replace(
    MODEL,
    num_key_value_heads=8,
    head_dim=24,
    latent_attention=LatentAttention(query_rank=40, key_value_rank=32, rotary_dim=8, value_dim=16),
)


@dataclasses.dataclass(frozen=True)
class Extracted:
    model: Model
    parallelism: Parallelism
    recomputation: Recomputation = Recomputation.NONE
    microbatch_size: int = BATCH
    split_backward: bool = False


def layout(**degrees: int) -> Parallelism:
    own = {"dp": 1, "pp": 1, "tp": 1, "cp": 1, **degrees}
    return Parallelism(layers_per_stage=None, sharding=Sharding.NONE, sequence_parallel=own["tp"] > 1, **own)


def variant(shared: int = 0, dense: tuple[int, ...] = (), *, latent: bool = False, biases: bool = False) -> Model:
    model = LATENT if latent else MODEL
    assert model.experts is not None
    experts = dataclasses.replace(model.experts, shared_width=shared, dense_layers=dense, biases=biases)
    return dataclasses.replace(model, experts=experts)


def graphs(model: Model, parallelism: Parallelism, imbalance: float = 1.0) -> dict[Batch, BlockGraph]:
    return extract(model, parallelism, BATCH, TOKENS, None, software("megatron-core", expert_imbalance=imbalance))


@cache
def nanobatch(parallelism: Parallelism, shared: int = 0, dense: tuple[int, ...] = ()) -> BlockGraph:
    return graphs(variant(shared, dense), parallelism)[Batch.NANOBATCH]


def test_two_nanobatches_hide_dispatch_and_combine_beside_attention_and_experts() -> None:
    graph = graphs(MODEL, layout(dp=4, ep=4))[Batch.NANOBATCH]
    found = detect_partitions(graph, recomputation=Recomputation.NONE)
    attention = "merge norm qkv rope attention projection norm.2 router choose permute"
    experts = "sort experts_gate_up experts_activation experts_down unsort"
    back = "permute choose router.dgrad router.wgrad norm projection.dgrad projection.wgrad attention rope"
    assert {p.name: (n, " ".join(o.name for o in p.operators)) for p, n in found.items()} == {
        "forward-attention-alltoall": (2, attention),
        "forward-experts-alltoall": (2, experts),
        "backward-attention-alltoall": (2, f"{back} qkv.dgrad qkv.wgrad norm.2 merge"),
        "backward-experts-alltoall": (
            2,
            "unsort experts_down.dgrad experts_down.wgrad experts_activation experts_gate_up.dgrad "
            "experts_gate_up.wgrad sort",
        ),
    }


@given(imbalance=st.floats(1.0, 3.0), ep=st.sampled_from([2, 4, 8]))
@settings(max_examples=10, deadline=None)
def test_an_exchange_has_the_copies_of_half_of_the_tokens(imbalance: float, ep: int) -> None:
    graph = graphs(MODEL, layout(dp=8, ep=ep), imbalance)[Batch.NANOBATCH]
    copies = BATCH // 2 * TOKENS * PER_TOKEN
    for partition in detect_partitions(graph, recomputation=Recomputation.NONE):
        assert partition.collective.message_bytes == 2 * HIDDEN * round(copies * imbalance)
        assert partition.collective.group_size == collective_group_size(partition.name, layout(dp=8, ep=ep)) == ep


LAYOUTS = (
    layout(dp=4, ep=4),
    layout(dp=2, tp=2, ep=4),
    layout(dp=2, tp=2, ep=2, etp=2),
    layout(dp=2, cp=2, ep=4),
    layout(dp=16, ep=16),
    layout(dp=16, tp=2, ep=16, etp=2),
)
"""Layouts; of the last each GPU has a part of one expert, so that two collectives follow each other."""


@pytest.mark.parametrize("parallelism", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "model",
    [variant(), variant(48), variant(0, (0,)), variant(48, (0, 1), latent=True), variant(biases=True)],
    ids=["routed", "shared", "dense", "latent", "biased"],
)
def test_names_are_known_without_tracing(model: Model, parallelism: Parallelism) -> None:
    if model.latent_attention is not None and parallelism.cp > 1:
        pytest.skip("latent attention has no context parallelism")
    for recomputation in Recomputation:
        workload = Extracted(model, parallelism, recomputation)
        found = partitions_of(graphs(model, parallelism), workload)  # refuses names that were not predicted
        sizes = {p.name: p.collective.group_size for p in found}
        assert sizes == {name: collective_group_size(name, parallelism) for name in sizes}


def exposed(pairs: list[Pair]) -> Counter[str]:
    """Collectives that run alone, or beside no product but the router's."""
    kinds = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM, OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD)
    hiding = [
        pair.segment is not None
        and any(o.kind in kinds and not o.name.startswith("router") for o in pair.segment.operators)
        for pair in pairs
    ]
    return Counter(p.collective.label for p, hides in zip(pairs, hiding, strict=True) if p.collective and not hides)


@pytest.mark.parametrize("parallelism", LAYOUTS[:2], ids=["ep", "tp-ep"])
@pytest.mark.parametrize("shared", [0, 48])
def test_in_the_steady_state_every_collective_runs_beside_products(parallelism: Parallelism, shared: int) -> None:
    graph = nanobatch(parallelism, shared)
    for direction in TRACED:
        few, more = (exposed(staggered(graph, n, direction, recomputation=Recomputation.NONE)) for n in (3, 9))
        assert few == more
        assert few.total() <= 2


def moved(collective: Collective) -> tuple[str, str, int]:
    return str(collective.kind), collective.group, collective.message_bytes


@given(
    parallelism=st.sampled_from(LAYOUTS),
    shared=st.sampled_from([0, 48]),
    layers=st.integers(1, 5),
    dense=st.integers(0, 2),
    direction=st.sampled_from(TRACED),
    recomputation=st.sampled_from([Recomputation.NONE, Recomputation.FULL, Recomputation.STAGE]),
)
@settings(max_examples=60, deadline=None)
def test_two_nanobatches_do_the_work_of_the_graph_and_wait_for_what_they_need(
    parallelism: Parallelism,
    shared: int,
    layers: int,
    dense: int,
    direction: Direction,
    recomputation: Recomputation,
) -> None:
    """Each nanobatch does all of a nanobatch's work, and goes on only once its collective has run.

    The oracle knows nothing of blocks: it counts operators and collectives, and follows what each nanobatch waits for.
    """
    graph = nanobatch(parallelism, shared, (0, 1))
    dense = min(dense, layers)
    pairs = staggered(graph, layers, direction, recomputation=recomputation, dense=dense)
    whole = block_segments(graph, layers, direction, recomputation=recomputation, dense=dense)
    work = Counter((o.kind, o.shape, o.bytes_read) for segment in whole for o in segment.operators)
    sent = Counter(moved(segment.collective) for segment in whole if segment.collective)
    for place in (0, 1):
        own = [pair.segment for pair in pairs if pair.segment and pair.nanobatch == place]
        assert Counter((o.kind, o.shape, o.bytes_read) for segment in own for o in segment.operators) == work
    assert Counter(moved(pair.collective) for pair in pairs if pair.collective) == sent + sent
    waiting: dict[int, Collective | None] = {0: None, 1: None}
    for pair in pairs:
        other = pair.nanobatch if pair.segment is None else 1 - pair.nanobatch
        if pair.segment is not None:
            assert waiting[pair.nanobatch] is None, "a segment reads what its nanobatch's collective brings"
        if pair.collective is not None and waiting[other] is not None:
            assert moved(pair.collective) == moved(waiting[other])
            waiting[other] = None
        if pair.segment is not None:
            waiting[pair.nanobatch] = pair.segment.collective
    assert waiting == {0: None, 1: None}


def test_graphs_and_partitions_of_experts_are_read_as_they_were_written(tmp_path: Path) -> None:
    parallelism, copies = layout(dp=16, ep=16), ExchangedCopies(per_token=PER_TOKEN, share_of_groups=1)
    model = variant(48, (0,))
    written = {batch: placed(graph, parallelism, 8, copies) for batch, graph in graphs(model, parallelism).items()}
    provenance = Provenance(config_hash="0123456789abcdef")
    write_graphs(tmp_path / "segments.parquet", written, provenance)
    assert read_graphs(tmp_path / "segments.parquet") == written
    found = detect_partitions(written[Batch.NANOBATCH], recomputation=Recomputation.SELECTIVE)
    write_partitions(tmp_path / "partitions.parquet", found, provenance)
    assert read_partitions(tmp_path / "partitions.parquet") == tuple(found)
