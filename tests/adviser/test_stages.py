"""Blocks on stages: the least of all splits, by brute force; what the predictor says of them; and their memory."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.builders import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from kareus.adviser.feasible import Candidate
from kareus.adviser.layouts import layout_of
from kareus.adviser.predictions import LayoutCost, LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.adviser.split_costs import least_split
from kareus.adviser.stages import Unsplit, better_split, is_worth, searched_splits, with_searched_split
from kareus.errors import RefusedWorkloadError
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.workload_prediction import predict_time_s
from kareus.software.record import driven
from kareus.software.trainers import trainer_of
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.memory import estimate_memory
from kareus.workload.resolve import checked_but_for_memory

FLAT = PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
USUAL = (
    "model=llama3.1-8b", "model.num_layers=16", "gpu=h100-sxm5-80gb",
    "software=megatron-core", "sequence_length=4096", "recomputation=none", "microbatch_size=1", "parallelism.tp=2",
    "parallelism.dp=2", "parallelism.sharding=optimizer", "parallelism.sequence_parallel=true",
)  # fmt: skip


@cache
def base() -> Workload:
    return compose(USUAL, CONFIG)[0].workload


def workload(pp: int, microbatches: int, schedule: PipelineSchedule = FLAT, chunks: int = 1) -> Workload:
    pipeline = replace(base().pipeline, schedule=schedule, chunks=chunks)
    parallelism = replace(base().parallelism, pp=pp)
    laid_out = replace(base(), pipeline=pipeline, parallelism=parallelism, num_microbatches=microbatches)
    return checked_but_for_memory(replace(laid_out, gpu=driven(base().gpu, base().software, parallelism.gpus, pp)))


def predictor_of(one: Workload) -> LayoutPredictor:
    trainer = trainer_of(one.software.name)
    return LayoutPredictor(one, InstructionPrices(one, trainer=trainer), trainer)


def all_splits(blocks: int, stages: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, blocks), stages - 1):
        yield tuple(after - before for before, after in itertools.pairwise((0, *cuts, blocks)))


def memory_gib(one: Workload) -> float:
    return estimate_memory(one).total_gib


def searched(one: Workload, limit_gib: float) -> Iterator[Workload]:
    """Workloads that the search yields, whose memory it knows."""
    for option in searched_splits(predictor_of(one), candidate_of(one), limit_gib):
        assert option.memory == estimate_memory(option.workload)
        assert option.layout.layers_per_stage == option.workload.parallelism.placed
        yield option.workload


def candidate_of(one: Workload) -> Candidate:
    return Candidate(layout=layout_of(one), workload=one, memory=estimate_memory(one))


def with_split(one: Workload, split: tuple[int, ...]) -> Workload:
    return replace(one, parallelism=replace(one.parallelism, layers_per_stage=split))


@given(
    stages=st.integers(1, 4),
    more=st.integers(0, 5),
    most=st.integers(1, 9),
    seed=st.integers(0, 999),
    forbidden=st.floats(0, 0.5),
)
def test_the_least_split_is_that_of_all(stages: int, more: int, most: int, seed: int, forbidden: float) -> None:
    """Whatever a stage costs by its blocks and those before it, also where much of it is forbidden."""
    blocks, random = stages + more, np.random.default_rng(seed)
    costs = random.normal(size=(stages, blocks + 1, most + 1))
    costs[random.random(costs.shape) < forbidden] = np.inf

    def cost(split: tuple[int, ...], join: Callable[[list[float]], float]) -> float:
        before = itertools.accumulate(split, initial=0)
        return join([costs[stage, *own] for stage, own in enumerate(zip(before, split, strict=False))])

    possible = [split for split in all_splits(blocks, stages) if max(split) <= most]
    for ufunc, join in ((np.maximum, max), (np.add, sum)):
        expected = min((cost(split, join) for split in possible), default=np.inf)
        found = least_split(costs, ufunc)
        assert (found is None) == bool(np.isinf(expected))
        if found is not None:
            assert found[0] == pytest.approx(expected)
            assert cost(found[1], join) == pytest.approx(expected)


@pytest.mark.parametrize(
    "usual", [(3, 4), (4, 5), (3, 9, PipelineSchedule.ZERO_BUBBLE_H1)], ids=lambda own: "-".join(map(str, own))
)
def test_the_split_that_is_found_is_the_fastest_of_all(usual: tuple[Any, ...]) -> None:
    """By the time that the predictor gives each of them."""
    one = workload(*usual)
    predictor = predictor_of(one)
    splits = all_splits(one.model.num_layers, one.parallelism.pp)
    least_s = min(predictor.fastest_s(with_split(one, split)) for split in splits)
    found = next(searched(one, one.gpu.memory_gib), one)
    assert min(predictor.fastest_s(found), predictor.fastest_s(one)) == pytest.approx(least_s, rel=1e-3)


@pytest.mark.parametrize("usual", [(2, 8, PipelineSchedule.INTERLEAVED, 2), (2, 8, PipelineSchedule.ZERO_BUBBLE_V, 2)])
def test_chunks_get_other_blocks_too(usual: tuple[Any, ...]) -> None:
    one = workload(*usual)
    predictor = predictor_of(one)
    found = list(searched(one, one.gpu.memory_gib))
    assert [each for each in found if len(each.parallelism.placed) == 4] != []
    assert {sum(each.parallelism.split) for each in found} == {16}
    assert predictor.fastest_s(found[0]) < predictor.fastest_s(one)


def test_what_is_gained_is_what_predict_says() -> None:
    one = workload(4, 4)
    found, words = with_searched_split(one)
    gain = 100 * (1 - predict_time_s(found) / predict_time_s(one))
    assert gain > 0.3
    assert f"{gain:.1f} % less time" in words


def test_stages_stay_within_the_memory() -> None:
    """The first ones have more microbatches in flight; what they hold bounds their blocks."""
    one = workload(4, 4)
    limit_gib = 0.97 * estimate_memory(one).total_gib
    free, tight = (list(searched(one, gib)) for gib in (one.gpu.memory_gib, limit_gib))
    assert tight
    assert all(estimate_memory(found).total_gib <= limit_gib for found in tight)
    assert tight[0] != free[0]
    assert not list(searched(one, 1.0))


def test_blocks_that_fit_are_searched_where_the_usual_ones_do_not() -> None:
    """The fastest of all that fit, whose words say what both need; refused as before where none fits."""
    usual = workload(4, 4)
    one = replace(usual, gpu=replace(usual.gpu, memory_gib=0.93 * estimate_memory(usual).total_gib))
    found, words = with_searched_split(one)
    predictor, splits = predictor_of(one), all_splits(one.model.num_layers, one.parallelism.pp)
    near = [split for split in splits if min(split) > 1 and max(split) < 7]
    fitting = [each for each in (with_split(one, split) for split in near) if memory_gib(each) <= one.gpu.memory_gib]
    assert memory_gib(found) <= one.gpu.memory_gib
    assert predictor.fastest_s(found) == pytest.approx(min(map(predictor.fastest_s, fitting)), rel=1e-3)
    assert f"{memory_gib(found):.1f} of {one.gpu.memory_gib:.1f} GiB" in words
    with pytest.raises(RefusedWorkloadError, match="out of memory"):
        with_searched_split(replace(one, gpu=replace(one.gpu, memory_gib=8.0)))


def test_a_trainer_that_cannot_be_told_blocks_keeps_its_own() -> None:
    one = workload(4, 4)
    candidate, predictor = candidate_of(one), predictor_of(one)
    prediction = predictor.predict(candidate, predictor.bound(one))
    found = better_split(predictor, prediction, trainer_of("megatron-core"))
    assert not isinstance(found, Unsplit)
    assert found.candidate.layout.workload(one).parallelism == found.candidate.workload.parallelism
    nanotron = replace(one, software=replace(one.software, name="nanotron"))
    other = replace(prediction, candidate=replace(candidate, workload=nanotron))
    assert better_split(predictor, other, trainer_of("nanotron")) is Unsplit.NO_SETTING
    assert with_searched_split(nanotron)[1].endswith("; nanotron takes no others here")


def test_a_split_is_worth_it_beyond_noise() -> None:
    usual = [LayoutCost(time_s=1.0, energy_j=100.0), LayoutCost(time_s=1.1, energy_j=90.0)]
    assert not is_worth(usual, usual)
    assert not is_worth(usual, [LayoutCost(time_s=0.998, energy_j=99.9)])
    assert is_worth(usual, [LayoutCost(time_s=0.99, energy_j=101.0)])
    assert is_worth(usual, [LayoutCost(time_s=1.0, energy_j=99.0)])
    assert not is_worth(usual, [LayoutCost(time_s=1.1, energy_j=80.0)])  # slower
