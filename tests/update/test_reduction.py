"""What gradient reduction adds to a backward: against a simulation in small steps of time, and at its limits."""

import pytest
from helpers.builders import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.graph.interleave import block_segments
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, Direction, Scope
from kareus.profile.programs import StageShape, outer_segments
from kareus.update.reduction import Slowdown, added_time_s, buckets_of

STEP_S = 1e-3
ALONE = Slowdown(1.0, 1.0)


def stepped_s(backward_s, ready_s, reduction_s, slowdown):
    """Seconds until backward and buckets are done less those of the backward, both moved on step by step."""
    now_s = done_s = 0.0
    left = list(zip(ready_s, reduction_s, strict=True))
    while done_s < backward_s or left:
        computes = done_s < backward_s
        reduces = bool(left) and (left[0][0] <= done_s + 1e-12 or not computes)
        both = computes and reduces
        if reduces:
            at_s, rest_s = left[0]
            rest_s -= STEP_S / (slowdown.reduction if both else 1.0)
            left[:1] = [(at_s, rest_s)] if rest_s > 1e-12 else []
        if computes:
            done_s += STEP_S / (slowdown.backward if both else 1.0)
        now_s += STEP_S
    return now_s - backward_s


seconds = st.floats(0.01, 0.6)


@settings(max_examples=40, deadline=None)
@given(
    seconds,
    st.lists(st.tuples(st.floats(0.0, 1.0), seconds), min_size=1, max_size=5),
    st.floats(1.0, 2.0),
    st.floats(1.0, 3.0),
)
def test_added_time_is_that_of_a_simulation(backward_s, buckets, slower, longer):
    ready_s = sorted(share * backward_s for share, _ in buckets)
    reduction_s, slowdown = [own for _, own in buckets], Slowdown(slower, longer)
    added_s = added_time_s(backward_s, ready_s, reduction_s, slowdown)
    stepped = stepped_s(backward_s, ready_s, reduction_s, slowdown)
    assert added_s == pytest.approx(stepped, abs=(4 + 4 * len(buckets)) * STEP_S * slower)


def test_buckets_that_are_ready_early_are_hidden():
    assert added_time_s(1.0, [0.2, 0.5, 1.0], [0.1, 0.4, 0.03], ALONE) == pytest.approx(0.03)


def test_a_long_reduction_ends_after_what_is_ready_first():
    """Links are never idle from 0.2 s on, so that the last bucket ends at 0.2 + 3."""
    assert added_time_s(1.0, [0.2, 0.5, 1.0], [1.0, 1.0, 1.0], ALONE) == pytest.approx(2.2)


def test_nothing_is_hidden_behind_gradients_that_are_late():
    assert added_time_s(1.0, [1.0, 1.0], [0.3, 0.2], Slowdown(2.0, 2.0)) == pytest.approx(0.5)


def test_contention_is_part_of_what_is_added():
    """0.2 s of reduction take 0.3 s beside the backward, which does 0.15 s of its work meanwhile."""
    assert added_time_s(1.0, [0.5], [0.2], Slowdown(2.0, 1.5)) == pytest.approx(0.15)


@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.FULL, Recomputation.STAGE])
def test_buckets_are_ready_in_the_order_of_the_backward(recomputation):
    graph = graphs()[Batch.MICROBATCH]
    shape = StageShape(layers=3, first=True, last=True)
    segments = [
        *outer_segments(graph, shape, Direction.BACKWARD, recomputation=Recomputation.NONE),
        *block_segments(graph, 1, Direction.BACKWARD, recomputation=recomputation),
    ]
    buckets = buckets_of(graph, shape, dict.fromkeys(segments, 1.0), recomputation=recomputation)
    assert [b.scope for b in buckets] == [Scope.HEAD, Scope.BLOCK, Scope.BLOCK, Scope.BLOCK, Scope.EMBEDDING]
    assert [b.ready for b in buckets] == sorted(b.ready for b in buckets)
    assert buckets[-1].ready == 1.0


def test_no_bucket_of_blocks_is_ready_while_a_forward_is_recomputed():
    graph = graphs()[Batch.MICROBATCH]
    shape = StageShape(layers=2, first=False, last=False)
    segments = block_segments(graph, 1, Direction.BACKWARD, recomputation=Recomputation.STAGE)
    first, last = buckets_of(graph, shape, dict.fromkeys(segments, 1.0), recomputation=Recomputation.STAGE)
    forward, backward = len(graph.forward), len(graph.backward)
    assert first.ready == pytest.approx((2 * forward + backward) / (2 * (forward + backward)))
    assert last.ready == 1.0


def test_a_block_that_is_recomputed_by_itself_is_ready_sooner():
    graph = graphs()[Batch.MICROBATCH]
    shape = StageShape(layers=2, first=False, last=False)
    segments = block_segments(graph, 1, Direction.BACKWARD, recomputation=Recomputation.FULL)
    first, last = buckets_of(graph, shape, dict.fromkeys(segments, 1.0), recomputation=Recomputation.FULL)
    assert (first.ready, last.ready) == (0.5, 1.0)
