"""Parameters of the parts of a model: those of the memory estimate, divided up."""

import pytest
import torch
from helpers.builders import CONFIG
from helpers.worlds import GPT, LLAMA, MPT, QWEN, degrees

from kareus.graph.records import Scope
from kareus.model.block import Block
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.ends import Head
from kareus.model.layers import Norm, QueryKeyNorm
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.parameters import partial_parameters, scope_parameters
from kareus.model.shards import shard_of
from kareus.update.work import stage_parameters
from kareus.workload import state_memory
from kareus.workload.compose import compose
from kareus.workload.resolve import resolve_accepted

PARTS = {Scope.BLOCK: Block, Scope.HEAD: Head}
"""Modules of a model that have norms."""


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["parallelism.pp=1", "microbatch_size=1"],
        ["model=qwen3-1.7b", "parallelism=cp2tp4"],
        ["model=llama3.3-70b", "parallelism=pp10tp8", "microbatch_size=1"],
        ["model=gpt3-175b", "parallelism.tp=8", "parallelism.pp=16", "gpu=a100-sxm4-80gb", "sequence_length=2048"],
    ],
    ids="-".join,
)
def test_parts_add_up_to_what_memory_holds(overrides):
    (workload,) = resolve_accepted(overrides, CONFIG).values()
    for stage, layers in enumerate(workload.parallelism.split):
        held = state_memory.stage_parameters(workload.model, workload.parallelism, stage, layers)
        assert stage_parameters(workload, stage) == held


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("llama3.1-8b", 8_030_261_248),
        ("gpt2-xl", 1_557_611_200),
        ("mpt-7b", 6_649_286_656),
        # 174,600 million, table 2.1 of the paper; Megatron-LM pads the vocabulary, by 943 rows
        ("gpt3-175b", 174_604_259_328 + 943 * 12_288),
    ],
)
def test_models_have_the_parameters_that_are_published(model: str, parameters: int) -> None:
    assert sum(whole(model).values()) == parameters


def test_nemotron_has_the_parameters_of_its_report() -> None:
    parts = whole("nemotron4-15b")
    assert parts[Scope.EMBEDDING] + parts[Scope.HEAD] == pytest.approx(3.2e9, rel=0.02)
    assert parts[Scope.BLOCK] == pytest.approx(12.5e9, rel=0.003)


def whole(name: str) -> dict[Scope, int]:
    """Parameters of the parts of a model that one GPU holds, of all blocks together."""
    model = compose([f"model={name}"], CONFIG)[0].workload.model
    alone = Parallelism(dp=1, pp=1, tp=1, cp=1, layers_per_stage=None, sharding=Sharding.NONE, sequence_parallel=False)
    parts = scope_parameters(model, alone)
    return {**parts, Scope.BLOCK: model.num_layers * parts[Scope.BLOCK]}


@pytest.mark.parametrize("model", [LLAMA, QWEN, GPT, MPT], ids=lambda model: model.name)
@pytest.mark.parametrize("shared", [False, True])
def test_partial_parameters_are_those_of_norms_that_see_a_part(model: Model, shared: bool) -> None:
    parallelism = degrees(tp=2, sequence_parallel=shared)
    shard = shard_of(model, parallelism, 16)
    seeing = (QueryKeyNorm, Norm) if shared else (QueryKeyNorm,)
    parts = {scope: part(model, shard, Mesh(), torch.float32) for scope, part in PARTS.items()}
    held = {
        scope: sum(w.numel() for m in part.modules() if isinstance(m, seeing) for w in m.parameters())
        for scope, part in parts.items()
    }
    assert partial_parameters(model, parallelism) == held | {Scope.EMBEDDING: 0}
