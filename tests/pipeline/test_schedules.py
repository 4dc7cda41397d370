"""The orders that schedules generate: against small ones written by hand, and what must hold of any size."""

import graphlib
from types import SimpleNamespace

import pytest
from helpers.pipelines import BI, BW, B, F, order_text, parsed
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import ScheduleDualPipeV, ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import _Action, _ComputationType

from kareus.errors import ScheduleError
from kareus.graph.instruction import InstructionKey, place_in_line
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.deadlock import order_of_dependency
from kareus.pipeline.instructions import Instruction, instructions_in, pipeline_instructions
from kareus.pipeline.solver.dag import build_dag, earliest_starts, makespan
from kareus.workload.pipelining import in_flight_and_delayed, most_delayed, most_in_flight

ONE_F_ONE_B, GPIPE, INTERLEAVED, ZB_H1, ZB_V, DUALPIPE_V = PipelineSchedule
IN_A_V = {ZB_V: ScheduleZBVZeroBubble, DUALPIPE_V: ScheduleDualPipeV}
"""PyTorch's orders of the same schedules."""


def generated(schedule: PipelineSchedule, stages: int, microbatches: int, chunks: int = 1) -> list[str]:
    return order_text(pipeline_instructions(schedule, stages, microbatches, chunks=chunks))


def test_gpipe_by_hand():
    assert generated(GPIPE, 2, 3) == ["F0 F1 F2 B0 B1 B2"] * 2


def test_zero_bubble_of_two_stages_by_hand():
    assert generated(ZB_H1, 2, 3) == [
        "F0 F1 I0 W0 F2 I1 W1 I2 W2",
        "F0 I0 F1 I1 W0 F2 I2 W1 W2",
    ]


def test_zero_bubble_of_three_stages_by_hand():
    assert generated(ZB_H1, 3, 4) == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


def test_interleaving_of_two_chunks_on_two_stages_by_hand():
    """As Megatron-LM orders it; the chunk stands after the dot."""
    assert generated(INTERLEAVED, 2, 4, 2) == [
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0",
    ]


def sized(schedule: PipelineSchedule, stages: int, microbatches: int, chunks: int) -> SimpleNamespace:
    """As much of a workload as decides what is in flight."""
    return SimpleNamespace(
        pipeline=SimpleNamespace(schedule=schedule),
        parallelism=SimpleNamespace(pp=stages),
        num_microbatches=microbatches,
        chunks=chunks,
        split_backward=schedule.splits_backward,
    )


unhurried = settings(max_examples=50)
quarters = st.integers(1, 12).map(lambda n: n / 4)


@st.composite
def pipelines(draw, schedules=tuple(PipelineSchedule)):
    """A schedule, stages, microbatches and chunks that resolving accepts."""
    schedule = draw(st.sampled_from(schedules))
    stages = draw(st.integers(2 if schedule is INTERLEAVED or schedule.folds else 1, 5))
    if schedule.folds:
        return schedule, stages, draw(st.integers(1 if schedule is ZB_V else 2 * stages, 14)), 2
    if schedule is INTERLEAVED:
        return schedule, stages, stages * draw(st.integers(1, 4)), draw(st.integers(2, 4))
    return schedule, stages, draw(st.integers(stages if schedule is ZB_H1 else 1, 12)), 1


def instructions_of(drawn) -> tuple[Instruction, ...]:
    schedule, stages, microbatches, chunks = drawn
    return pipeline_instructions(schedule, stages, microbatches, chunks=chunks)


@unhurried
@given(pipelines())
def test_every_chunk_runs_each_microbatch_once_each_way(drawn):
    schedule, stages, microbatches, chunks = drawn
    done = [i.key for i in instructions_of(drawn)]
    directions = (F, BI, BW) if schedule.splits_backward else (F, B)
    assert len(done) == len(set(done)) == stages * chunks * microbatches * len(directions)
    assert set(done) == {
        (s, c, m, d) for s in range(stages) for c in range(chunks) for m in range(microbatches) for d in directions
    }


@unhurried
@given(pipelines())
def test_a_microbatch_runs_forward_then_backward_then_weights(drawn):
    """Simulated, since an instruction starts only when everything that it waits for has ended."""
    schedule, stages, microbatches, chunks = drawn
    instructions = instructions_of(drawn)
    dag = build_dag(instructions, [0.0] * stages)
    place = {number: n for n, number in enumerate(dag.order)}
    back = [(s, 1) for s in reversed(range(stages))]
    looped = [(s, c) for c in range(chunks) for s in range(stages)]
    up = looped[:stages] + back if schedule.folds else looped
    for m in range(microbatches):
        own = [(i.key, place[n]) for n, i in enumerate(instructions) if i.key.microbatch == m]
        at = {(key.direction, key.stage, key.chunk): n for key, n in own}
        down = B if (B, 0, 0) in at else BI
        way = [at[F, s, c] for s, c in up] + [at[down, s, c] for s, c in reversed(up)]
        assert way == sorted(way)
        if down is BI:
            assert all(at[BI, s, c] < at[BW, s, c] for s, c in up)


def held(instructions, stages, opening, closing) -> list[int]:
    """By stage, the most passes that have begun `opening` and not ended any of `closing`."""
    now, most = [0] * stages, [0] * stages
    for i in instructions:
        now[i.key.stage] += i.key.direction is opening
        most[i.key.stage] = max(most[i.key.stage], now[i.key.stage])
        now[i.key.stage] -= i.key.direction in closing
    return most


@unhurried
@given(pipelines())
def test_what_is_in_flight_is_what_the_memory_estimate_counts(drawn):
    schedule, stages, microbatches, _ = drawn
    most = held(instructions_of(drawn), stages, F, (B, BI))
    assert most == [most_in_flight(sized(*drawn), stage) for stage in range(stages)]
    if schedule in (ONE_F_ONE_B, ZB_H1):
        assert all(n <= stages - stage for stage, n in enumerate(most))
    elif schedule is GPIPE:
        assert most == [microbatches] * stages


@unhurried
@given(pipelines((ZB_H1,)))
def test_zero_bubble_holds_no_more_than_the_first_stage_of_1f1b(drawn):
    _, stages, microbatches, _ = drawn
    instructions = instructions_of(drawn)
    assert max(held(instructions, stages, F, (BW,))) <= min(stages, microbatches)
    for stage in range(stages):
        delayed, most = 0, 0
        for i in (i for i in instructions if i.key.stage == stage):
            most = max(most, delayed * (i.key.direction is BI))
            delayed += (i.key.direction is BI) - (i.key.direction is BW)
        assert most == most_delayed(sized(*drawn), stage)


@unhurried
@given(pipelines(tuple(IN_A_V)))
def test_orders_in_a_v_are_those_of_pytorch(drawn):
    """Whole backwards are input and weight gradients here, and what PyTorch overlaps follows one another."""
    schedule, stages, microbatches, _ = drawn
    size = SimpleNamespace(pp_group_size=stages, num_stages=2 * stages, _n_microbatches=microbatches)
    instructions = instructions_of(drawn)
    for stage in range(stages):
        theirs = IN_A_V[schedule]._calculate_single_rank_operations(size, stage)
        ours = [i.key for i in instructions if i.key.stage == stage]
        lines = [(place_in_line(stage, key.chunk, stages, folded=True), key.direction, key.microbatch) for key in ours]
        assert lines == [single for action in theirs if action is not None for single in single_actions(action)]


def single_actions(action: _Action):
    """What an action of PyTorch does, one after the other: place in line, direction and microbatch."""
    split = {
        _ComputationType.FORWARD: (F,),
        _ComputationType.FULL_BACKWARD: (BI, BW),
        _ComputationType.BACKWARD_INPUT: (BI,),
        _ComputationType.BACKWARD_WEIGHT: (BW,),
    }
    for own in action.sub_actions or (action,):
        yield from ((own.stage_index, direction, own.microbatch_index) for direction in split[own.computation_type])


@unhurried
@given(pipelines((ZB_V,)), quarters)
def test_stages_of_zb_v_never_wait_where_all_takes_equally_long(drawn, time_s):
    """The property that gives it its name (Qi et al., section 6), with enough microbatches to fill the pipeline."""
    _, stages, microbatches, _ = drawn
    assume(microbatches >= 2 * stages - 1)
    instructions = instructions_of(drawn)
    starts_s = earliest_starts(build_dag(instructions, [0.0] * stages), [time_s] * len(instructions))
    for stage in range(stages):
        own = [start_s for start_s, i in zip(starts_s, instructions, strict=True) if i.key.stage == stage]
        assert [start_s - own[0] for start_s in own] == pytest.approx([n * time_s for n in range(len(own))])


@unhurried
@given(pipelines((DUALPIPE_V,)), quarters)
def test_dualpipe_v_leaves_half_the_bubble_that_its_authors_give(drawn, time_s):
    """Half of (p - 1) (tF&B + tB - 3 tW) of a chunk (DualPipe's table of bubbles), where all takes equally long.

    There a forward and the backward beside it end together; here what the forward gives is sent before the backward.
    """
    _, stages, _, chunks = drawn
    left_s = bubble_s(drawn, forward=time_s, input_gradient=time_s, weight_gradient=time_s)
    assert left_s == pytest.approx((stages - 1) * (3 * time_s + 2 * time_s - 3 * time_s) / chunks / 2)


@unhurried
@given(pipelines(tuple(IN_A_V)))
def test_pairs_in_a_v_are_what_a_stage_holds_at_some_time(drawn):
    """Passes in flight and those delayed, of which the memory estimate takes the costliest."""
    _, stages, _, _ = drawn
    for stage in range(stages):
        in_flight, delayed, seen = 0, 0, set()
        for i in (i for i in instructions_of(drawn) if i.key.stage == stage):
            in_flight += i.key.direction is F
            if i.key.direction is not BW:
                seen.add((in_flight, delayed))
            in_flight -= i.key.direction is BI
            delayed += (i.key.direction is BI) - (i.key.direction is BW)
        pairs = in_flight_and_delayed(sized(*drawn), stage)
        assert set(pairs) <= seen
        assert all(any(a <= n and b <= d for n, d in pairs) for a, b in seen)


def bubble_s(drawn, **seconds: float) -> float:
    """Iteration time less the work of a stage, for these seconds of a direction over all chunks of a stage."""
    _, stages, _, chunks = drawn
    instructions = instructions_of(drawn)
    times_s = [seconds[i.key.direction.replace("-", "_")] / chunks for i in instructions]
    return makespan(build_dag(instructions, [0.0] * stages), times_s) - sum(times_s) / stages


@unhurried
@given(pipelines((ONE_F_ONE_B, GPIPE)), quarters, quarters)
def test_the_bubble_of_1f1b_and_gpipe_follows_the_formula(drawn, forward, backward):
    """(p - 1) (tF + tB): of m (tF + tB) of work, a share of (p - 1) / m (Narayanan et al., section 2.2)."""
    _, stages, _, _ = drawn
    assert bubble_s(drawn, forward=forward, backward=backward) == pytest.approx((stages - 1) * (forward + backward))


@unhurried
@given(pipelines((INTERLEAVED,)), quarters)
def test_interleaving_divides_the_bubble_by_the_chunks(drawn, time_s):
    _, stages, _, chunks = drawn
    assert bubble_s(drawn, forward=time_s, backward=time_s) == pytest.approx((stages - 1) * 2 * time_s / chunks)
    assert bubble_s(drawn, forward=time_s, backward=2 * time_s) == pytest.approx((stages - 1) * 3 * time_s / chunks)


@unhurried
@given(pipelines((ZB_H1,)), quarters)
def test_zero_bubble_leaves_a_third_of_the_bubble_of_1f1b(drawn, time_s):
    """(p - 1) (tF + tB - tW) instead of (p - 1) (tF + tB + tW) (Qi et al., table 2)."""
    _, stages, microbatches, _ = drawn
    left_s = bubble_s(drawn, forward=time_s, input_gradient=time_s, weight_gradient=time_s)
    assert left_s == pytest.approx((stages - 1) * time_s)
    usual_s = bubble_s((ONE_F_ONE_B, stages, microbatches, 1), forward=time_s, backward=2 * time_s)
    assert usual_s == pytest.approx(3 * left_s)


@unhurried
@given(pipelines((ZB_H1,)), quarters, quarters, quarters)
def test_the_bubble_of_zero_bubble_follows_from_its_costs(drawn, forward, inputs, weights):
    """(p - 1) (tF + tB - tW), as long as weight gradients are the shortest: what is delayed then holds nothing up."""
    _, stages, _, _ = drawn
    assume(weights <= min(inputs, forward))
    left_s = bubble_s(drawn, forward=forward, input_gradient=inputs, weight_gradient=weights)
    assert left_s == pytest.approx((stages - 1) * (forward + inputs - weights))


def test_instructions_that_wait_in_a_circle_have_no_dag():
    circle = Instruction(InstructionKey(0, 0, 0, F), 0, (1,)), Instruction(InstructionKey(0, 0, 0, B), 1, (0,))
    with pytest.raises(ScheduleError, match="forward of microbatch 0 on stage 0, which waits for backward of microb"):
        build_dag(circle, ())


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (["F0 F0 B0"], "the pipeline's order has forward of microbatch 0 on stage 0 twice; keep one of them."),
        (
            ["F0 B0", "B0"],
            "backward of microbatch 0 on stage 1 waits for forward of microbatch 0 on stage 1, which the pipeline's "
            "order lacks; add it.",
        ),
    ],
)
def test_an_order_that_is_not_whole_is_refused(orders, message):
    with pytest.raises(ScheduleError) as raised:
        instructions_in(parsed(orders))
    assert str(raised.value) == message


def test_an_order_by_hand_runs_as_the_generated_one():
    by_hand = instructions_in(parsed(["F0 F1 B0 B1", "F0 B0 F1 B1"]))
    assert by_hand == pipeline_instructions(ONE_F_ONE_B, 2, 2)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (
            ["F0 B0 F1 B1", "F0 F1 B0 B1"],
            "the pipeline's order can never run: backward of microbatch 0 on stage 0, which waits for backward of "
            "microbatch 0 on stage 1, which waits for forward of microbatch 1 on stage 1, which waits for forward of "
            "microbatch 1 on stage 0, which waits for backward of microbatch 0 on stage 0; put one of them elsewhere.",
        ),
        (["F1 B0 F0 B1"], "forward of microbatch 0 on stage 0, which waits for backward of microbatch 0 on stage 0"),
        (["F0 W0 I0"], "weight-gradient of microbatch 0 on stage 0, which waits for input-gradient of microbatch 0"),
    ],
)
def test_a_deadlocked_order_is_refused_with_its_cycle(orders, message):
    with pytest.raises(ScheduleError) as raised:
        instructions_in(parsed(orders))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("interleaved", 3), ("zb-v", 2)]
)
def test_instructions_are_in_the_order_of_the_standard_library(schedule, chunks):
    instructions = pipeline_instructions(PipelineSchedule(schedule), 4, 12, chunks=chunks)
    waits = [instruction.depends_on for instruction in instructions]
    sorter = graphlib.TopologicalSorter(dict(enumerate(waits)))
    assert order_of_dependency(waits, str) == tuple(sorter.static_order())
