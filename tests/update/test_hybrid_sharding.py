"""Hybrid sharding: model states shared out within groups of replicas, the groups holding copies."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import CONFIG

from kareus.adviser.layouts import Constraints, layouts_of
from kareus.artifacts.records import leaves, to_plain
from kareus.errors import ConfigError, EngineError, RefusedWorkloadError
from kareus.export.layouts import MODEL_FIELDS
from kareus.graph.records import CollectiveKind, Direction
from kareus.interchange.meaning import keys_of
from kareus.interchange.table import trainer_named
from kareus.interchange.writing import layout_said, written
from kareus.model.parallelism import Sharding
from kareus.prediction.workload_prediction import predict
from kareus.profile.programs import chunk_shapes, laid_out_shapes, weights_of
from kareus.runtime.engine_checks import check_runs
from kareus.update.collectives import (
    expert_gather_collectives,
    expert_reduction_collectives,
    gather_collectives,
    norm_collectives,
    reduction_collectives,
    update_directions,
)
from kareus.workload.memory import estimate_memory
from kareus.workload.resolve import resolve_accepted
from kareus.workload.state_memory import state_bytes

JOB = (
    "model=llama3.1-8b", "gpu=h100-sxm5-80gb", "software=torchtitan", "parallelism.dp=32", "parallelism.pp=1",
    "parallelism.tp=1", "parallelism.sharding=full", "microbatch_size=1", "num_microbatches=1", "sequence_length=2048",
    "recomputation=full",
)  # fmt: skip


def job(*overrides):
    given = {text.partition("=")[0] for text in overrides}
    usual = [text for text in JOB if text.partition("=")[0] not in given]
    (workload,) = resolve_accepted([*usual, *overrides], CONFIG).values()
    return workload


def mesh(replicas, shards):
    """Ranks of `init_device_mesh("cuda", (replicas, shards))`: rows share out, columns hold copies."""
    return np.arange(replicas * shards).reshape(replicas, shards)


@pytest.mark.parametrize(("dp", "shards"), [(32, 8), (32, 4), (6, 3)])
def test_groups_are_those_of_a_device_mesh(dp, shards):
    parallelism = dataclasses.replace(job().parallelism, dp=dp, shards=shards)
    expected = mesh(dp // shards, shards)
    assert parallelism.sharing_ranks(0, over_context=False) == expected[0].tolist()
    assert parallelism.copy_ranks(0) == expected[:, 0].tolist()


def test_sharing_out_over_all_is_what_it_was():
    assert predict(job("parallelism.shards=32")).time_s == predict(job()).time_s
    assert estimate_memory(job("parallelism.shards=32")).total_gib == estimate_memory(job()).total_gib


def test_gathers_stay_in_the_group_and_shards_are_summed_over_copies():
    workload = job("parallelism.shards=8")
    (shape,) = chunk_shapes(workload.parallelism.split, workload.chunks).values()
    weights = weights_of(workload, 0, shape, 20)
    ((gather,), (reduce,)) = weights.block.gather, weights.block.reduce
    assert (gather.group_size, gather.nodes, reduce.group_size) == (8, 1, 8)
    ((summed, placement),) = reduction_collectives(
        workload.parallelism, workload.gpu, workload.software, 0, parameters=8_000
    )
    assert (summed.kind, summed.group_size, placement.nodes) == (CollectiveKind.ALL_REDUCE, 4, 4)
    assert summed.message_bytes == workload.software.gradient_bytes * 1_000
    assert Direction.GRADIENT_REDUCTION in update_directions(workload, 0)
    assert Direction.GRADIENT_REDUCTION not in update_directions(job(), 0)


def test_an_optimizer_is_shared_out_within_a_group_too():
    parallelism = dataclasses.replace(job().parallelism, sharding=Sharding.OPTIMIZER, shards=8)
    software, gpu = job().software, job().gpu
    kinds = [(c.kind, c.group_size) for c, _ in reduction_collectives(parallelism, gpu, software, 0, 8_000)]
    assert kinds == [(CollectiveKind.REDUCE_SCATTER, 8), (CollectiveKind.ALL_REDUCE, 4)]
    ((gather, placement),) = gather_collectives(parallelism, gpu, software, 0, 8_000)
    assert (gather.group_size, placement.nodes) == (8, 1)
    assert [c.group_size for c, _ in norm_collectives(parallelism, gpu, 0)] == [8]


def test_a_gpu_holds_as_much_as_in_a_job_of_its_group():
    hybrid, small = job("parallelism.shards=8"), job("parallelism.dp=8")
    assert state_bytes(hybrid, 0, 32) == state_bytes(small, 0, 32)


def mixture(*overrides):
    """32 GPUs, four of which hold the same eighth of a block's experts."""
    return job("model=qwen3-30b-a3b", "parallelism.ep=8", *overrides)


@pytest.mark.parametrize(("shards", "sharing"), [(32, 4), (16, 2), (8, 1)])
def test_groups_of_experts_are_those_of_a_device_mesh(shards, sharing):
    """`init_device_mesh("cuda", (copies, sharing, ep))`: experts are shared out within what shares out the rest."""
    parallelism = dataclasses.replace(mixture().parallelism, shards=shards)
    expected = np.arange(32).reshape(32 // shards, sharing, 8)
    assert parallelism.expert_sharing == sharing
    assert parallelism.expert_sharing_ranks(0) == expected[0, :, 0].tolist()
    assert parallelism.expert_copy_ranks(0) == expected[:, 0, 0].tolist()


@pytest.mark.parametrize("shards", [16, 8])
def test_a_gpu_holds_as_much_of_experts_as_in_a_job_of_its_group(shards):
    hybrid, small = mixture(f"parallelism.shards={shards}"), mixture(f"parallelism.dp={shards}")
    assert state_bytes(hybrid, 0, 48) == state_bytes(small, 0, 48)
    weights = [weights_of(one, 0, next(iter(laid_out_shapes(one).values())), 20).block for one in (hybrid, small)]
    assert weights[0] == weights[1]
    assert Direction.GRADIENT_REDUCTION in update_directions(hybrid, 0)


def test_shards_of_experts_are_summed_over_copies():
    gpu, software = mixture().gpu, mixture().software
    parallelism = dataclasses.replace(mixture().parallelism, sharding=Sharding.OPTIMIZER, shards=16)
    found = expert_reduction_collectives(parallelism, gpu, software, 0, 8_000)
    assert [(c.kind, c.group_size) for c, _ in found] == [
        (CollectiveKind.REDUCE_SCATTER, 2),
        (CollectiveKind.ALL_REDUCE, 2),
    ]
    (one, summed) = (c.message_bytes for c, _ in found)
    assert one == 2 * summed == 8_000 * software.gradient_bytes
    ((gather, _),) = expert_gather_collectives(parallelism, gpu, 0, 8_000)
    assert gather.group_size == 2
    full = dataclasses.replace(parallelism, sharding=Sharding.FULL, shards=8)
    assert [(c.kind, c.group_size) for c, _ in expert_reduction_collectives(full, gpu, software, 0, 8_000)] == [
        (CollectiveKind.ALL_REDUCE, 4)
    ]


def test_experts_are_predicted_with_hybrid_sharding_and_it_is_read_as_it_was_written():
    within, over_all = mixture("parallelism.sharding=hybrid"), mixture()
    assert within.parallelism.shards == 8
    assert predict(within).memory.total_gib > predict(over_all).memory.total_gib
    for trainer, syntax, workload in (
        ("torchtitan", "toml", within),
        (
            "megatron-lm",
            "shell",
            mixture("software=megatron-core", "parallelism.sharding=optimizer", "parallelism.shards=16"),
        ),
    ):
        plain = dict(leaves(to_plain(workload)))
        own = written(trainer_named(trainer), {**MODEL_FIELDS, **plain}, 8, syntax)
        assert not [text for text in own.unsaid if text.startswith("parallelism.")]
        said = layout_said(trainer_named(trainer), own.text, syntax, 48)
        for key in ("parallelism.dp", "parallelism.ep", "parallelism.shards", "parallelism.sharding"):
            assert said[key] == plain[key], (trainer, key)


def test_many_nodes_gain_by_gathering_within_them():
    """Gathers of short passes over 64 nodes take longer than the passes; within a node they hide."""
    over_all = predict(job("parallelism.dp=512"))
    within = predict(job("parallelism.dp=512", "parallelism.shards=8"))
    assert within.time_s < over_all.time_s
    assert within.memory.total_gib > over_all.memory.total_gib


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["parallelism.shards=5"], RefusedWorkloadError, r"parallelism\.shards=5: must divide parallelism\.dp \(32\)"),
        (
            ["model=qwen3-30b-a3b", "parallelism.ep=8", "parallelism.shards=4"],
            RefusedWorkloadError,
            r"parallelism\.shards=4: GPUs of a group .* = 4\) must share out experts evenly, .*use a multiple",
        ),
        (["parallelism.shards=1"], ConfigError, "shards=1: must be from 2"),
        (["parallelism.shards=8", "parallelism.sharding=none"], ConfigError, "nothing is shared out"),
        (["parallelism.sharding=hybrid", "parallelism.tp=8"], ConfigError, "fills the 8 GPUs of a node; give"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(overrides, error, message):
    with pytest.raises(error, match=message):
        job(*overrides)


def test_the_engine_says_that_it_shares_out_over_all():
    with pytest.raises(EngineError, match=r"over all replicas; leave parallelism\.shards out"):
        check_runs(job("parallelism.shards=8"))
    check_runs(job("parallelism.shards=32"))


def test_a_trainers_mesh_is_read_and_written():
    keys = keys_of({"shards": 8, "replicas": 4, "reshards": "default", "parallelism.pp": 1}, lost := [])
    assert (keys["parallelism.dp"], keys["parallelism.sharding"], keys["parallelism.shards"]) == (32, "full", 8)
    assert lost == []
    plain = dict(leaves(to_plain(job("parallelism.shards=8"))))
    text = written(trainer_named("torchtitan"), {**MODEL_FIELDS, **plain}, 8, "toml").text
    assert "data_parallel_replicate_degree = 4" in text
    assert "data_parallel_shard_degree = 8" in text


def test_advice_tries_a_node_as_a_group():
    base = job()
    found = list(layouts_of(base, 32, 32, Constraints(tp=(1,), cp=(1,), pp=(1,), sharding=(Sharding.FULL,))))
    assert {one.shards for one in found} == {None, 8}
    assert any("sharding full over 8" in one.words for one in found)
    assert any("parallelism.shards=8" in one.overrides for one in found)
    assert {one.shards for one in layouts_of(base, 8, 32, Constraints(tp=(1,), cp=(1,), pp=(1,)))} == {None}
