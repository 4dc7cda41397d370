"""A backward in two passes, as zero-bubble pipelines run it (Qi et al., ICLR 2024, "Zero Bubble Pipeline Parallelism").

The input-gradient pass computes what the stage before waits for: all of a backward but the gradients of its weight
matrices, and with it every collective, none of which has a weight gradient beside it any more. The weight-gradient pass
computes the rest whenever the schedule likes, one product after the other, without collectives and so without
nanobatches.

Operators stay as they were extracted: the two gradients of a matrix product are two operators, each of which reads the
output gradient from HBM. Gradients of the norms' weights come out of the same kernels as those of their inputs and stay
with these. The backward of the embedding is a weight gradient as a whole.

With recomputation of the stage the input-gradient pass recomputes the forward of all its blocks, as a whole backward
does, and then keeps, until the weight-gradient pass of the microbatch, the input and the output gradient of every
matrix product (and of the LM head). The weight-gradient pass recomputes nothing. Programs are built and memory is
estimated (`kareus.workload.memory`) after this one model.
"""

from collections.abc import Sequence
from dataclasses import replace

from kareus.graph.records import Direction, Scope, Segment


def pass_segments(forward: Sequence[Segment], backward: Sequence[Segment], direction: Direction) -> tuple[Segment, ...]:
    """Return the segments that a pass of `direction` runs, cut from those of a part of the model as extracted."""
    if direction is Direction.FORWARD:
        return tuple(forward)
    if direction is Direction.BACKWARD:
        return tuple(backward)
    cuts = [_cut(segment, direction) for segment in backward]
    return tuple(cut for cut in cuts if cut.operators or cut.collective)


def _cut(segment: Segment, direction: Direction) -> Segment:
    """The part of a segment of a whole backward that one of the two passes runs."""
    later = [o for o in segment.operators if o.is_weight_gradient or segment.scope is Scope.EMBEDDING]
    if direction is Direction.WEIGHT_GRADIENT:
        return replace(segment, direction=direction, operators=tuple(later), collective=None, independent_tail=0)
    sooner = tuple(o for o in segment.operators if o not in later)
    return replace(segment, direction=direction, operators=sooner, independent_tail=0)
