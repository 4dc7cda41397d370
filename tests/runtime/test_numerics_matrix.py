"""Loss and every gradient against transformers: every pair of parallelisms, recomputation and sharding; bf16, too."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.hugging_face import LOSS
from helpers.numerics import QWEN2, TIED, Case, PipelineRank, Reference, case, overlapped, with_references
from helpers.worlds import LLAMA, spawn
from runtime.test_pipeline_numerics import check_against_transformers

from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.runtime.schedules import MicrobatchSchedule

DEGREES = ("tp", "cp", "pp", "dp")
LAYOUTS = [(degree,) for degree in DEGREES] + list(itertools.combinations(DEGREES, 2))
MODELS = (LLAMA, QWEN2, TIED)


def matrix(layout: tuple[str, ...]) -> Iterator[Case]:
    """Every recomputation, sharding and sequence parallelism that runs, of microbatches of three sequences."""
    models = itertools.cycle(MODELS)
    shardings = (Sharding.NONE, Sharding.OPTIMIZER) if "dp" in layout else (Sharding.NONE,)
    shared = (False, True) if "tp" in layout else (False,)
    for recomputation, sharding, sequence_parallel in itertools.product(Recomputation, shardings, shared):
        if recomputation is Recomputation.FULL and "cp" in layout and "tp" not in layout:
            continue  # refused: a segment of context parallelism alone spans two blocks
        yield case(
            **dict.fromkeys(layout, 2),
            model=next(models),
            microbatch_size=3,
            recomputation=recomputation,
            sharding=sharding,
            sequence_parallel=sequence_parallel,
        )


@pytest.mark.acceptance
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_everything_that_runs_computes_what_transformers_does(layout: tuple[str, ...], tmp_path: Path) -> None:
    check_against_transformers(2 ** len(layout), list(matrix(layout)), tmp_path)


def check_bf16(rank: int, cases: list[tuple[Case, Reference]]) -> None:
    """The mean square over tensors of errors, each relative to its tensor, and the error of the loss."""
    for of, reference in cases:
        running = PipelineRank(rank, of, reference, torch.bfloat16)
        exact, theirs = (running.expected(path) for path in (reference.gradients, reference.bf16_gradients))
        for schedule in (MicrobatchSchedule(), overlapped(of)):
            passes = itertools.product(range(of.workload.chunks), range(of.workload.num_microbatches))
            ours = running.ran((dict.fromkeys(passes, schedule),) * of.workload.parallelism.pp)
            own, other = (squared_errors(found, exact) for found in (ours, theirs))
            assert own[0] <= other[0], f"gradients: {own[0].sqrt()} for {other[0].sqrt()}"
            assert abs(ours[LOSS] - exact[LOSS]) <= 2**-8 * exact[LOSS]


def squared_errors(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean over tensors and ranks of the squared relative errors of gradients, [1]."""
    squares = [
        (found[name] - e).square().sum() / e.square().sum() for name, e in exact.items() if name != LOSS and e.any()
    ]
    summed = torch.tensor([float(sum(squares)), float(len(squares))])
    if dist.is_initialized():
        dist.all_reduce(summed)
    return summed[:1] / summed[1:]


def bf16_cases() -> list[Case]:
    """Each parallelism alone, and tensor parallelism with shared tokens."""
    alone = [case(**{degree: 2}, model=model) for degree, model in zip(DEGREES, itertools.cycle(MODELS), strict=False)]
    return [*alone, case(tp=2, sequence_parallel=True, model=TIED, microbatch_size=3)]


@pytest.mark.acceptance
def test_bf16_is_no_worse_than_that_of_transformers(tmp_path: Path) -> None:
    spawn(2, check_bf16, tmp_path, with_references(bf16_cases(), tmp_path, bf16=True))


def test_bf16_of_two_nanobatches_is_no_worse_than_theirs(tmp_path: Path) -> None:
    cases = [case(pp=2, model=TIED, microbatch_size=3)]
    spawn(2, check_bf16, tmp_path, with_references(cases, tmp_path, bf16=True))
