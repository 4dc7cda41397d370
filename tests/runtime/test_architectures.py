"""Loss and every gradient of GPT-2- and MPT-like models are those of transformers, in any layout."""

import dataclasses
from pathlib import Path

import pytest
from helpers.builders import CONFIG
from helpers.numerics import FOUR_LAYERS, INTERLEAVED, ZERO_BUBBLE, case, with_references
from helpers.worlds import GPT, MPT, spawn
from runtime.test_fully_sharded import check_shardings
from runtime.test_pipeline_numerics import check_against_transformers

from kareus.errors import EngineError
from kareus.graph.recomputation import Recomputation
from kareus.model.config import ActivationKind
from kareus.model.parallelism import Sharding
from kareus.runtime.engine_checks import check_trains, engine_refusal
from kareus.workload.resolve import resolve_accepted

RELU = dataclasses.replace(GPT, name="tiny-relu", activation=ActivationKind.SQUARED_RELU, tie_embeddings=True)
SIX_HEADS = dataclasses.replace(
    MPT, name="tiny-six", num_attention_heads=6, num_key_value_heads=6, hidden_size=48, intermediate_size=192
)
TIED_POSITIONS = dataclasses.replace(GPT, name="tiny-tied", vocab_size=264, tie_embeddings=True, max_positions=16)
GPT_LAYERS = dataclasses.replace(GPT, num_layers=FOUR_LAYERS.num_layers)


def test_two_ranks_compute_what_gpt2_and_mpt_do(tmp_path: Path) -> None:
    cases = [
        case(tp=2, model=GPT, microbatch_size=3),
        case(tp=2, model=MPT, recomputation=Recomputation.NONE),
        case(tp=2, sequence_parallel=True, model=GPT, recomputation=Recomputation.SELECTIVE),
    ]
    check_against_transformers(2, cases, tmp_path)


def test_one_rank_computes_what_gpt2_and_mpt_do(tmp_path: Path) -> None:
    cases = [case(model=model, recomputation=Recomputation.SELECTIVE) for model in (GPT, MPT, RELU, SIX_HEADS)]
    check_against_transformers(1, cases, tmp_path)


@pytest.mark.acceptance
def test_two_ranks_compute_what_gpt2_and_mpt_do_in_more_layouts(tmp_path: Path) -> None:
    cases = [
        case(cp=2, model=GPT, recomputation=Recomputation.NONE),
        case(cp=2, model=MPT),
        case(pp=2, model=RELU, pipeline=ZERO_BUBBLE),
        case(tp=2, sequence_parallel=True, model=MPT, recomputation=Recomputation.FULL, microbatch_size=3),
        case(tp=2, sequence_parallel=True, model=RELU, recomputation=Recomputation.NONE),
        case(tp=2, model=SIX_HEADS, recomputation=Recomputation.FULL),
        case(cp=2, model=RELU, recomputation=Recomputation.SELECTIVE),
        case(dp=2, model=GPT, sharding=Sharding.OPTIMIZER),
        case(dp=2, model=GPT, microbatch_size=3, recomputation=Recomputation.FULL),
        case(pp=2, model=GPT_LAYERS, recomputation=Recomputation.FULL, **INTERLEAVED),
        case(pp=2, model=SIX_HEADS, pipeline=ZERO_BUBBLE, microbatch_size=3, recomputation=Recomputation.NONE),
    ]
    check_against_transformers(2, cases, tmp_path)


@pytest.mark.acceptance
def test_replicas_that_share_weights_out_compute_what_gpt2_and_mpt_do(tmp_path: Path) -> None:
    cases = [case(dp=2, model=model, recomputation=Recomputation.NONE) for model in (GPT, MPT)]
    spawn(2, check_shardings, tmp_path, with_references(cases, tmp_path))


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        (("model=mixtral-8x7b", "gpu.memory_gib=2000", "parallelism.tp=1"), ""),
        (("model=gpt-oss-120b", "gpu.memory_gib=2000", "parallelism.tp=1"), "model gpt-oss-120b: the engine does not"),
        (("training.gradients=bf16",), "training.gradients: is planned and predicted, but"),
    ],
    ids=["experts", "another model", "another option"],
)
def test_the_engine_says_what_it_does_not_train(overrides: tuple[str, ...], refusal: str) -> None:
    (workload,) = resolve_accepted(["software=kareus", *overrides], CONFIG).values()
    assert engine_refusal(workload).startswith(refusal)
    assert bool(engine_refusal(workload)) == bool(refusal)


@pytest.mark.parametrize(("place", "heads", "trains"), [("cuda", 2, False), ("cuda", 4, True), ("cpu", 2, True)])
def test_shared_heads_with_alibi_are_refused_on_gpus(place: str, heads: int, *, trains: bool) -> None:
    model = dataclasses.replace(MPT, num_key_value_heads=heads)
    if trains:
        check_trains(model, 16, place)
        return
    with pytest.raises(EngineError, match="needs a head of keys and values for each of 4 heads of queries"):
        check_trains(model, 16, place)


@pytest.mark.acceptance
def test_four_ranks_compute_what_gpt2_and_mpt_do(tmp_path: Path) -> None:
    cases = [
        case(tp=2, cp=2, model=GPT),
        case(tp=2, cp=2, sequence_parallel=True, model=MPT, microbatch_size=3),
        case(tp=2, pp=2, sequence_parallel=True, model=RELU),
        case(tp=2, pp=2, model=GPT, pipeline=ZERO_BUBBLE, recomputation=Recomputation.NONE),
        case(dp=2, pp=2, model=TIED_POSITIONS, sharding=Sharding.OPTIMIZER),
    ]
    check_against_transformers(4, cases, tmp_path)
