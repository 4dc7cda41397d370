"""Loss and gradients of a model that replicas share out are those of the whole model on one GPU."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.builders import small_model
from helpers.hugging_face import LOSS, load_gradients
from helpers.memory import Alive
from helpers.numerics import QWEN2, TIED, TOLERANCE, Case, Reference, case, microbatches, own_shard, with_references
from helpers.trainings import tiny_workload
from helpers.worlds import LLAMA, departure, spawn

from kareus.errors import EngineError
from kareus.graph.recomputation import Recomputation
from kareus.model.communication import Mesh
from kareus.model.layers import rotary_table
from kareus.model.parallelism import FsdpSettings, Sharding
from kareus.model.shards import shard_of
from kareus.model.weights import draw_weights, load_weights
from kareus.profile.programs import stage_shapes
from kareus.runtime.engine_checks import check_runs
from kareus.runtime.fully_sharded import FillWeights, FullyShardedModel
from kareus.runtime.stage_model import StageModel
from kareus.training.full_sharding import FullSharding
from kareus.workload.config import Workload
from kareus.workload.state_memory import state_bytes

SET = FsdpSettings(gather_sms=4, reduce_sms=8)


def shared_out(
    workload: Workload, sharding: Sharding, fill: FillWeights, dtype: torch.dtype = torch.float32
) -> tuple[StageModel, FullyShardedModel]:
    """A model of two replicas with filled weights, and its weights by their names in the whole model."""
    model = workload.model
    (shape,) = stage_shapes(workload.parallelism.split)
    shard = shard_of(model, workload.parallelism, workload.sequence_length)
    with torch.device("meta"):
        stage = StageModel(model, shard, Mesh(), shape, torch.float32, recomputation=workload.recomputation)
    names = [name for name, _ in stage.named_parameters()]
    table = rotary_table(model, shard.tokens, None)
    sharded = FullyShardedModel(stage, table, dist.new_group([0, 1]), sharding, dtype, fill, SET)
    assert [name for name, _ in stage.named_parameters()] == names
    return stage, sharded


def check_building(_rank: int, workloads: list[Workload]) -> None:
    for workload in workloads:
        with Alive() as alive:
            stage, _ = shared_out(
                workload, Sharding.FULL, lambda part, model=workload.model: draw_weights(part, model, 0, 0)
            )
        weights = dict(stage.named_parameters())
        blocks = [sum(w.numel() for w in block.parameters()) for block in stage.blocks]
        ends = sum(w.numel() for w in weights.values()) - sum(blocks)
        largest = max(weight.numel() for weight in weights.values())  # drawn whole, then copied
        held = sum(weight.to_local().numel() for weight in weights.values())
        assert alive.most_bytes <= 4 * (held + max(*blocks, ends) + largest) + 4096
        assert alive.most_bytes < 4 * sum(w.numel() for w in weights.values())


def check_shardings(rank: int, cases: list[tuple[Case, Reference]]) -> None:
    for of, reference in cases:
        for sharding in (Sharding.FULL, Sharding.GRADIENTS):
            check(rank, of, reference, sharding)


def check(rank: int, of: Case, reference: Reference, sharding: Sharding) -> None:
    workload = of.workload
    stage, sharded = shared_out(
        workload, sharding, lambda part: load_weights(part, workload.model, reference.checkpoint, 0)
    )
    communicators = {
        (way._all_gather_comm.group.group_desc, way._reduce_scatter_comm.group.group_desc)
        for module in sharded.sharded_modules()
        for way in module._get_fsdp_state()._fsdp_param_groups
    }
    assert communicators == {("fsdp-4-sms", "fsdp-8-sms")}
    theirs = load_gradients(reference.gradients)
    total = torch.zeros(())
    for m in microbatches(workload, rank, 0, 1):
        loss = sharded(torch.from_numpy(m.ids), torch.from_numpy(m.labels)) / (workload.num_microbatches * 2)
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    sharded.reshard_all()
    found = {name: p.grad.full_tensor() for name, p in stage.named_parameters()}
    expected = {name: own_shard(theirs, workload, name, Mesh()) for name in found}
    held = sum(p.to_local().numel() for p in stage.parameters())
    whole = sum(p.numel() for p in stage.parameters())
    assert held <= whole / 2 + 100
    assert departure({LOSS: total, **found}, {LOSS: theirs[LOSS], **expected}) <= TOLERANCE


@pytest.mark.parametrize(
    ("layout", "changes", "named"),
    [
        ({"pp": 2}, {"recomputation": Recomputation.FULL}, "parallelism.pp=2"),
        ({"tp": 2}, {"recomputation": Recomputation.FULL}, "parallelism.tp=2"),
        ({}, {"recomputation": Recomputation.STAGE}, "recomputation=stage"),
    ],
)
def test_what_the_engine_does_not_shard_is_said(
    layout: dict[str, int], changes: dict[str, Recomputation], named: str
) -> None:
    workload = tiny_workload(dp=2, **layout, **changes)
    sharded = dataclasses.replace(workload.parallelism, sharding=Sharding.FULL)
    with pytest.raises(EngineError, match=f"sharding=full: is planned with {named}, but the engine runs it"):
        check_runs(dataclasses.replace(workload, parallelism=sharded))


def test_two_replicas_share_out_a_model(tmp_path: Path) -> None:
    run = (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
    models = (LLAMA, TIED, QWEN2)
    cases = [
        case(dp=2, microbatch_size=3, model=model, recomputation=recomputation)
        for model, recomputation in zip(models, run, strict=True)
    ]
    spawn(2, check_shardings, tmp_path, with_references(cases, tmp_path))


@pytest.mark.acceptance
def test_two_replicas_share_out_every_model(tmp_path: Path) -> None:
    run = (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
    models = (LLAMA, TIED, QWEN2)
    cases = [case(dp=2, model=model, recomputation=recomputation) for model in models for recomputation in run]
    spawn(2, check_shardings, tmp_path, with_references(cases, tmp_path))


def test_no_more_than_one_block_is_whole_while_a_model_is_built(tmp_path: Path) -> None:
    deep = [dataclasses.replace(model, num_layers=12) for model in (LLAMA, TIED)]
    workloads = [tiny_workload(dp=2, model=model, recomputation=Recomputation.FULL) for model in deep]
    spawn(2, check_building, tmp_path, workloads)


COPIES_OF_GLOO = {Sharding.FULL: (0.4, 0.8), Sharding.GRADIENTS: (1.1, 1.3)}
"""Of the largest reduction, beside what is planned: 0.57 to 0.61 where weights are given back meanwhile, else 1.25."""


def check_training(_rank: int, workloads: list[Workload]) -> None:
    for workload in workloads:
        model = workload.model
        (layers,) = workload.parallelism.split
        ids = torch.zeros(1, 8, dtype=torch.long)
        with Alive() as alive:
            stage, sharded = shared_out(
                workload,
                workload.parallelism.sharding,
                lambda part, model=model: draw_weights(part, model, 0, 0),
                torch.bfloat16,
            )
            kept = FullSharding(stage, sharded)
            for _ in range(2):
                sharded(ids, ids).backward()
            kept.finish()
        weights = [weight.numel() for weight in stage.parameters()]
        blocks = [sum(weight.numel() for weight in block.parameters()) for block in stage.blocks]
        held, gradients, states = state_bytes(workload, 0, layers)
        planned = held + gradients + states / 3  # moments come with the first update
        copied = 4 * max(*blocks, sum(weights) - sum(blocks))  # gloo copies what it reduces
        least, most = COPIES_OF_GLOO[workload.parallelism.sharding]
        assert planned + least * copied <= alive.most_bytes <= planned + most * copied, model.name


def test_backwards_hold_the_gradients_that_are_planned(tmp_path: Path) -> None:
    wide = small_model(name="wide", hidden_size=128, intermediate_size=512, num_layers=4, head_dim=32, vocab_size=64)
    many = dataclasses.replace(wide, name="many", vocab_size=2048)
    tied = dataclasses.replace(many, name="tied", tie_embeddings=True)
    workloads = []
    for model, sharding in ((wide, Sharding.FULL), (tied, Sharding.FULL), (many, Sharding.GRADIENTS)):
        one = tiny_workload(dp=2, model=model, recomputation=Recomputation.FULL, microbatch_size=1, sequence_length=8)
        parallelism = dataclasses.replace(one.parallelism, sharding=sharding)
        workloads.append(dataclasses.replace(one, parallelism=parallelism))
    spawn(2, check_training, tmp_path, workloads)
