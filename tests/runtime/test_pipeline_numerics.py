"""Loss and gradients of a pipeline, divided in any way and run by any plan, are those of transformers' whole model."""

import time
from pathlib import Path

import pytest
import torch
from helpers.examples import drawn
from helpers.numerics import (
    FIVE_LAYERS,
    FOUR_LAYERS,
    GPIPE,
    INTERLEAVED,
    QWEN2,
    TIED,
    TIED_LAYERS,
    TOLERANCE,
    ZERO_BUBBLE,
    Case,
    PipelineRank,
    Planned,
    Reference,
    activations,
    case,
    in_a_v,
    overlapped,
    plans,
    uneven,
    with_references,
)
from helpers.trainings import tiny_workload
from helpers.worlds import departure, spawn
from hypothesis import example, given

from kareus.device.controller import DryClocks
from kareus.errors import EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.runtime.follower import PlanFollower, PlannedStep, planned_steps
from kareus.runtime.schedules import MicrobatchSchedule
from kareus.workload.config import Workload

LETTING_GO_S = 20.0
EXAMPLES = 4
"""Plans drawn for each case, run one after the other by one pipeline, whose buffers that receive are used again."""


def left_behind(workload: Workload, before: list[torch.Tensor]) -> list[torch.Tensor]:
    """Activations that were not there before, once gloo's threads, which hold what they sent a little longer, let go.

    A collective has ended for the one that waits for it before the thread that ran it gives its tensors back.
    """
    until_s = time.monotonic() + LETTING_GO_S
    while left := [t for t in activations(workload) if not any(t is other for other in before)]:
        if time.monotonic() > until_s:
            break
        time.sleep(0.01)
    return left


def check_case(rank: int, of: Case, reference: Reference) -> None:
    workload = of.workload
    running = PipelineRank(rank, of, reference)
    expected = running.expected(reference.gradients)
    one_of_each = {(0, 0): MicrobatchSchedule(), (workload.chunks - 1, 1): overlapped(of)}

    @drawn(EXAMPLES)
    @given(planned=plans(of))
    @example(planned=(one_of_each,) * workload.parallelism.pp)
    def check(planned: Planned) -> None:
        before = activations(workload)
        assert departure(running.ran(planned), expected) <= TOLERANCE
        assert not left_behind(workload, before), "memory that messages were received in is given back"
        assert running.follower.most_bytes <= torch.float32.itemsize, "and so is that which they were sent from"

    check()


def check_cases(rank: int, cases: list[tuple[Case, Reference]]) -> None:
    for of, reference in cases:
        check_case(rank, of, reference)


def check_against_transformers(ranks: int, cases: list[Case], folder: Path) -> None:
    spawn(ranks, check_cases, folder, with_references(cases, folder))


def test_two_ranks_compute_loss_and_gradients_of_one(tmp_path: Path) -> None:
    cases = [
        case(pp=2, microbatch_size=3),
        case(pp=2, model=TIED, recomputation=Recomputation.NONE),
        case(pp=2, microbatch_size=3, recomputation=Recomputation.NONE),
        case(pp=2, pipeline=GPIPE, num_microbatches=2),
        case(pp=2, num_microbatches=1, recomputation=Recomputation.FULL),
        case(pp=2, microbatch_size=3, recomputation=Recomputation.SELECTIVE),
        case(pp=2, model=FOUR_LAYERS, recomputation=Recomputation.FULL, **INTERLEAVED),
        case(pp=2, pipeline=ZERO_BUBBLE, model=TIED, recomputation=Recomputation.SELECTIVE),
        case(pp=2, pipeline=ZERO_BUBBLE, microbatch_size=3, model=FOUR_LAYERS, recomputation=Recomputation.FULL),
        case(pp=2, model=FOUR_LAYERS, **INTERLEAVED),
        case(pp=2, model=TIED_LAYERS, recomputation=Recomputation.NONE, **INTERLEAVED),
        case(pp=2, pipeline=ZERO_BUBBLE, microbatch_size=3),
        uneven(case(pp=2, model=FIVE_LAYERS, **in_a_v(PipelineSchedule.ZERO_BUBBLE_V))),
        case(pp=2, model=FOUR_LAYERS, recomputation=Recomputation.NONE, **in_a_v(PipelineSchedule.DUALPIPE_V)),
        case(pp=2, pipeline=ZERO_BUBBLE, model=TIED, recomputation=Recomputation.NONE),
        case(dp=2, microbatch_size=3),
        case(dp=2, recomputation=Recomputation.NONE),
        case(tp=2),
        case(tp=2, microbatch_size=3, recomputation=Recomputation.FULL),
        case(tp=2, model=QWEN2, recomputation=Recomputation.SELECTIVE),
        case(cp=2, model=TIED),
        case(cp=2, recomputation=Recomputation.SELECTIVE),
    ]
    check_against_transformers(2, cases, tmp_path)


def test_two_ranks_that_share_tokens_compute_what_one_does(tmp_path: Path) -> None:
    cases = [
        case(tp=2, sequence_parallel=True, microbatch_size=3),
        case(tp=2, sequence_parallel=True, model=TIED, recomputation=Recomputation.NONE),
        case(tp=2, sequence_parallel=True, microbatch_size=3, recomputation=Recomputation.SELECTIVE),
        case(tp=2, sequence_parallel=True, recomputation=Recomputation.FULL),
    ]
    check_against_transformers(2, cases, tmp_path)


@pytest.mark.slow
def test_four_ranks_that_share_tokens_compute_what_one_does(tmp_path: Path) -> None:
    cases = [
        case(tp=2, pp=2, sequence_parallel=True, microbatch_size=3),
        case(tp=2, pp=2, sequence_parallel=True, model=TIED, recomputation=Recomputation.NONE),
        case(tp=2, cp=2, sequence_parallel=True),
        case(tp=2, cp=2, sequence_parallel=True, model=TIED, recomputation=Recomputation.NONE),
        case(tp=2, cp=2, sequence_parallel=True, recomputation=Recomputation.SELECTIVE),
        case(tp=2, cp=2, sequence_parallel=True, microbatch_size=3, recomputation=Recomputation.FULL),
        case(tp=2, dp=2, sequence_parallel=True, microbatch_size=3),
        case(tp=2, pp=2, sequence_parallel=True, pipeline=ZERO_BUBBLE, model=TIED, microbatch_size=3),
        case(tp=2, pp=2, sequence_parallel=True, pipeline=ZERO_BUBBLE, recomputation=Recomputation.NONE),
        case(tp=2, pp=2, sequence_parallel=True, model=FOUR_LAYERS, **INTERLEAVED),
    ]
    check_against_transformers(4, cases, tmp_path)


@pytest.mark.slow
def test_four_ranks_compute_loss_and_gradients_of_one(tmp_path: Path) -> None:
    cases = [
        case(tp=2, pp=2),
        case(tp=2, pp=2, model=TIED, microbatch_size=3, recomputation=Recomputation.NONE),
        case(dp=2, pp=2, model=TIED),
        case(tp=2, pp=2, pipeline=ZERO_BUBBLE),
        case(tp=2, pp=2, model=TIED, pipeline=ZERO_BUBBLE, microbatch_size=3, recomputation=Recomputation.NONE),
        case(cp=2, pp=2, pipeline=ZERO_BUBBLE),
        case(cp=2, pp=2, pipeline=ZERO_BUBBLE, recomputation=Recomputation.NONE),
        case(tp=2, pp=2, model=FOUR_LAYERS, **INTERLEAVED),
        case(tp=2, pp=2, model=TIED_LAYERS, microbatch_size=3, recomputation=Recomputation.NONE, **INTERLEAVED),
    ]
    check_against_transformers(4, cases, tmp_path)


def test_an_instruction_out_of_the_planned_order_stops_the_run() -> None:
    workload = tiny_workload(num_microbatches=2)
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    follower = PlanFollower(planned_steps(workload, None, 0), DryClocks(), lambda: None)
    follower.begin(InstructionKey(0, 0, 0, forward))
    with pytest.raises(EngineError, match="the plan has backward of microbatch 0"):
        follower.begin(InstructionKey(0, 0, 1, forward))
    follower.begin(InstructionKey(0, 0, 0, backward))
    with pytest.raises(EngineError, match="planned and did not run"):
        follower.end_iteration()


def test_a_clock_is_set_after_previously_launched_work_has_run() -> None:
    workload = tiny_workload(num_microbatches=2)
    happened: list[str] = []
    steps = tuple(
        PlannedStep(step.key, 1410 if step.key.direction is Direction.FORWARD else 1200)
        for step in planned_steps(workload, None, 0)
    )
    follower = PlanFollower(steps, DryClocks(happened.append), lambda: happened.append("wait"))
    for _ in range(2):
        for step in steps:
            follower.begin(step.key)
        follower.end_iteration()
    said = ["wait", "would lock the SM clock to 1410 MHz", "wait", "would lock the SM clock to 1200 MHz"]
    assert happened == said * 4
