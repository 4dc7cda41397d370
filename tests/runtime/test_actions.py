"""What the ranks of a pipeline do: the planned order, with messages in an order that cannot lock up."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.builders import small_model
from helpers.trainings import tiny_workload
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import ScheduleInterleaved1F1B

from kareus.graph.instruction import InstructionKey, place_in_line
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.pipeline.instructions import Instruction, instructions_in, pipeline_instructions
from kareus.pipeline.solver.dag import build_dag, earliest_starts
from kareus.runtime.actions import Actions, actions_in, actions_of
from kareus.workload.pipelining import most_in_flight, most_received_ahead

LETTERS = {
    Direction.FORWARD: "F",
    Direction.BACKWARD: "B",
    Direction.INPUT_GRADIENT: "I",
    Direction.WEIGHT_GRADIENT: "W",
}
IN_ONE_DIRECTION = [schedule for schedule in PipelineSchedule if not schedule.folds]
"""What the engine runs."""
WHEN_SENT = {"SEND_F": ("RECV_F", 1), "SEND_B": ("RECV_B", -1)}
"""What a message is received as, and how many chunks further on."""


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[tuple[Instruction, ...], list[float]]:
    """Any schedule of any size, and any times of its instructions."""
    schedule = draw(st.sampled_from(IN_ONE_DIRECTION))
    stages = draw(st.integers(1, 5))
    interleaves = schedule is PipelineSchedule.INTERLEAVED
    chunks = draw(st.integers(2, 4)) if interleaves and stages > 1 else 1
    microbatches = draw(st.integers(1, 3)) * stages if interleaves else draw(st.integers(1, 8))
    instructions = pipeline_instructions(schedule, stages, microbatches, chunks=chunks)
    times_s = draw(st.lists(st.floats(1e-9, 10.0), min_size=len(instructions), max_size=len(instructions)))
    return instructions, times_s


def texts(actions: Actions) -> dict[int, list[str]]:
    """Such as `0F0` or `1RECV_F0`: the chunk's place in line, what is done, the microbatch."""
    return {stage: [str(action) for action in own] for stage, own in actions.items()}


def instruction_texts(instructions: Sequence[Instruction], stages: int) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {stage: [] for stage in range(stages)}
    for i in instructions:
        place = place_in_line(i.key.stage, i.key.chunk, stages)
        found[i.key.stage].append(f"{place}{LETTERS[i.key.direction]}{i.key.microbatch}")
    return found


def happen_together(actions: Actions) -> None:
    """Run all actions where each waits for those before it on its rank, and sending for the receiver to be there.

    NCCL may do so, and gloo demands that what one rank receives from another is in the order in which that sends.
    """
    waiting = {stage: list(own) for stage, own in actions.items()}
    here: set[tuple[int, str, int]] = set()
    last = max(place for own in actions.values() for place, *_ in own)
    while any(waiting.values()):
        before = sum(map(len, waiting.values()))
        for own in waiting.values():
            while own:
                place, kind, microbatch, _ = own[0]
                if kind in WHEN_SENT:
                    received_as, further = WHEN_SENT[kind]
                    partner = waiting[(place + further) % len(actions)]
                    if not partner or partner[0][:3] != (place + further, received_as, microbatch):
                        break
                    here.add(partner.pop(0)[:3])
                elif kind in ("RECV_F", "RECV_B"):
                    break
                elif kind == "F":
                    assert place == 0 or (place, "RECV_F", microbatch) in here
                elif kind != "W":
                    assert place == last or (place, "RECV_B", microbatch) in here
                own.pop(0)
        assert sum(map(len, waiting.values())) < before, waiting


@given(pipelines())
def test_instructions_run_in_order_without_deadlock_of_messages(
    pipeline: tuple[tuple[Instruction, ...], list[float]],
) -> None:
    instructions, times_s = pipeline
    actions = actions_in(instructions, times_s)
    computed = {stage: [t for t in own if "_" not in t] for stage, own in texts(actions).items()}
    assert computed == instruction_texts(instructions, len(actions))
    happen_together(actions)


@given(pipelines())
def test_a_receive_waits_for_nothing_planned_to_run_when_it_is_sent(
    pipeline: tuple[tuple[Instruction, ...], list[float]],
) -> None:
    """NCCL's receive waits for what its rank had begun before: all of it has ended when the message is sent."""
    instructions, times_s = pipeline
    stages = 1 + max(i.key.stage for i in instructions)
    starts_s = earliest_starts(build_dag(instructions, [0.0] * stages), times_s)
    ends_s = {}
    for i, start_s, time_s in zip(instructions, starts_s, times_s, strict=True):
        place = place_in_line(i.key.stage, i.key.chunk, stages)
        ends_s[place, LETTERS[i.key.direction], i.key.microbatch] = start_s + time_s
    for own in actions_in(instructions, times_s).values():
        begun_s = 0.0  # when the last instruction that was begun ends
        for place, kind, microbatch, _ in own:
            if kind in ("RECV_F", "RECV_B"):
                before, letters = (place - 1, "F") if kind == "RECV_F" else (place + 1, "BI")
                (sent_s,) = (ends_s[key] for letter in letters if (key := (before, letter, microbatch)) in ends_s)
                assert begun_s <= sent_s
            else:
                begun_s = max(begun_s, ends_s.get((place, str(kind), microbatch), 0.0))


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_an_interleaved_pipeline_runs_in_pytorchs_order(stages: int, chunks: int, groups: int) -> None:
    microbatches = groups * stages
    ours = pipeline_instructions(PipelineSchedule.INTERLEAVED, stages, microbatches, chunks=chunks)
    of_pytorch = SimpleNamespace(
        pp_group_size=stages, n_local_stages=chunks, _n_microbatches=microbatches, microbatches_per_round=stages
    )
    theirs = {
        stage: [str(a) for a in ScheduleInterleaved1F1B._calculate_single_rank_operations(of_pytorch, stage) if a]
        for stage in range(stages)
    }
    assert instruction_texts(ours, stages) == theirs


def test_two_stages_of_two_chunks_by_hand() -> None:
    instructions = pipeline_instructions(PipelineSchedule.INTERLEAVED, 2, 2, chunks=2)
    times_s = [1.0 if i.key.direction is Direction.FORWARD else 2.0 for i in instructions]
    first = (
        "0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2SEND_F0 2RECV_F1 2F1 2SEND_F1 "
        "2RECV_B0 2B0 2SEND_B0 2RECV_B1 2B1 2SEND_B1 0RECV_B0 0B0 0RECV_B1 0B1"
    )
    assert " ".join(texts(actions_in(instructions, times_s))[0]) == first


@pytest.mark.parametrize(("backward_s", "order"), [(0.4, "1SEND_B0 1RECV_F1"), (1.5, "1RECV_F1 1B0 1SEND_B0")])
def test_messages_are_sent_in_the_order_of_planned_readiness(backward_s: float, order: str) -> None:
    """The second forward of the first stage ends a second after the first one has."""
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    first = [(0, forward), (1, forward), (0, backward), (1, backward)]
    second = [(0, forward), (0, backward), (1, forward), (1, backward)]
    instructions = instructions_in([InstructionKey(s, 0, *step) for s in range(2) for step in (first, second)[s]])
    times_s = [1.0, 1.0, 1.0, 1.0, 0.1, backward_s, 1.0, 1.0]
    assert order in " ".join(texts(actions_in(instructions, times_s))[1])


@pytest.mark.parametrize("schedule", IN_ONE_DIRECTION)
@pytest.mark.parametrize("stages", [2, 3, 4, 6])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_stage_holds_no_more_received_tensors_than_planned(
    schedule: PipelineSchedule, stages: int, groups: int
) -> None:
    interleaves = schedule is PipelineSchedule.INTERLEAVED
    for chunks in (2, 3, 4) if interleaves else (1,):
        workload = tiny_workload(
            pp=stages,
            model=small_model(num_layers=stages * chunks),
            num_microbatches=groups * stages,
            pipeline=PipelineConfig(schedule=schedule, chunks=chunks, deadlines=2),
        )
        counted = [most_in_flight(workload, s) + most_received_ahead(workload, s) for s in range(stages)]
        held = [most_held(actions) for actions in actions_of(workload, None).values()]
        assert held[0] >= counted[0] - interleaves
        assert all(h <= (c if interleaves else counted[0]) for h, c in zip(held, counted, strict=True))


def most_held(actions: Sequence[Any]) -> int:
    """Inputs of forwards until the microbatch's backward, and inputs of backwards until they begin."""
    inputs, gradients, most = set(), set(), 0
    for place, kind, microbatch, _ in actions:
        if kind in ("RECV_F", "F"):
            inputs.add((place, microbatch))
        elif kind == "RECV_B":
            gradients.add((place, microbatch))
        most = max(most, len(inputs) + len(gradients))
        if kind in ("B", "I"):
            inputs.remove((place, microbatch))
            gradients.discard((place, microbatch))
    return most
