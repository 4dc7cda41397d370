"""Orders of the instructions of a stage: one function for each schedule, and the size of the pipeline that it needs.

A function takes a stage, from 0, and an `Extent`, and returns the instructions of that stage in order of execution.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction

Slot = tuple[int, Direction]
"""Chunk and direction of an instruction, which is of the next microbatch."""
FORWARDS: tuple[Slot, Slot] = ((0, Direction.FORWARD), (1, Direction.FORWARD))
INPUTS: tuple[Slot, Slot] = ((0, Direction.INPUT_GRADIENT), (1, Direction.INPUT_GRADIENT))
WEIGHTS: tuple[Slot, Slot] = ((0, Direction.WEIGHT_GRADIENT), (1, Direction.WEIGHT_GRADIENT))
"""By chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Size of a pipeline."""

    stages: int
    """Number of stages, 1 or more."""
    microbatches: int
    """Number of microbatches of one iteration, 1 or more; fewer than stages where the schedule allows it."""
    chunks: int = 1
    """Number of chunks into which the layers of every stage are cut."""


def gpipe(stage: int, extent: Extent) -> list[InstructionKey]:
    """All forwards, then all backwards (Huang et al., NeurIPS 2019, section 2.3).

    A stage holds the activations of all microbatches at once.
    """
    return [
        InstructionKey(stage, 0, m, direction)
        for direction in (Direction.FORWARD, Direction.BACKWARD)
        for m in range(extent.microbatches)
    ]


def one_forward_one_backward(stage: int, extent: Extent) -> list[InstructionKey]:
    """Warm up with forwards, then alternate, then drain (Narayanan et al., SC '21, section 2.2).

    A stage runs ahead by one forward for each stage after it, so that it never holds the activations of more
    than `stages - stage` microbatches.
    """
    microbatches = extent.microbatches
    warmup = min(extent.stages - stage - 1, microbatches)
    order = [InstructionKey(stage, 0, m, Direction.FORWARD) for m in range(warmup)]
    for m in range(microbatches - warmup):
        order.append(InstructionKey(stage, 0, warmup + m, Direction.FORWARD))
        order.append(InstructionKey(stage, 0, m, Direction.BACKWARD))
    return order + [InstructionKey(stage, 0, m, Direction.BACKWARD) for m in range(microbatches - warmup, microbatches)]


def interleaved(stage: int, extent: Extent) -> list[InstructionKey]:
    """1F1B with several chunks of layers on each stage (Narayanan et al., SC '21, section 2.2).

    Chunk c of all stages comes before chunk c + 1 of the first, so that a microbatch passes the stages once for each
    chunk. Microbatches, a multiple of the stages, go through the chunks in groups of as many as there are stages: a
    group through one chunk after the other, then the next group. Backwards go through the chunks from the last to the
    first. A stage runs ahead by all chunks but the last of one group, and by two forwards for each stage after it.
    """
    stages, chunks = extent.stages, extent.chunks
    passes = extent.microbatches * chunks
    warmup = min(2 * (stages - stage - 1) + (chunks - 1) * stages, passes)

    def nth(direction: Direction, number: int) -> InstructionKey:
        group, within = divmod(number, stages * chunks)
        chunk, place = divmod(within, stages)
        passed = chunk if direction is Direction.FORWARD else chunks - 1 - chunk
        return InstructionKey(stage, passed, group * stages + place, direction)

    order = [nth(Direction.FORWARD, n) for n in range(warmup)]
    for n in range(passes - warmup):
        order += [nth(Direction.FORWARD, warmup + n), nth(Direction.BACKWARD, n)]
    return order + [nth(Direction.BACKWARD, n) for n in range(passes - warmup, passes)]


def zero_bubble_h1(stage: int, extent: Extent) -> list[InstructionKey]:
    """ZB-H1: weight gradients where 1F1B would wait (Qi et al., ICLR 2024, section 2.2).

    Forwards and input gradients go as in 1F1B. Every stage delays its weight gradients by one microbatch for each stage
    before it, so that it has work left when the pipeline drains; together with those between forward and backward, no
    stage then holds more microbatches than the first one of 1F1B does.
    """
    microbatches = extent.microbatches
    warmup = min(extent.stages - stage - 1, microbatches)
    order = [InstructionKey(stage, 0, m, Direction.FORWARD) for m in range(warmup)]
    for m in range(microbatches):
        if warmup + m < microbatches:
            order.append(InstructionKey(stage, 0, warmup + m, Direction.FORWARD))
        order.append(InstructionKey(stage, 0, m, Direction.INPUT_GRADIENT))
        if m >= stage:
            order.append(InstructionKey(stage, 0, m - stage, Direction.WEIGHT_GRADIENT))
    delayed = range(max(microbatches - stage, 0), microbatches)
    return order + [InstructionKey(stage, 0, m, Direction.WEIGHT_GRADIENT) for m in delayed]


def zero_bubble_v(stage: int, extent: Extent) -> list[InstructionKey]:
    """ZB-V: two chunks on each stage, the second on the way back (Qi et al., arXiv 2401.10241, section 6).

    Where forwards, input gradients and weight gradients take equally long, no stage waits between its first and its
    last instruction, and none holds more than the first one of 1F1B does.

    A stage runs ahead in its first chunk until the first microbatch is back from the last stage, alternates chunks
    until its gradient comes, and then runs each direction of both chunks in turn. As it drains, stages delay weight
    gradients until no input gradient is left. The order is made for `2 stages - 1` microbatches or more, and left out
    is what is beyond those there are.
    """
    behind, most = extent.stages - stage, max(2 * extent.stages - 1, extent.microbatches)
    first, second = ((FORWARDS[chunk], INPUTS[chunk], WEIGHTS[chunk]) for chunk in (0, 1))
    ahead = [FORWARDS[0]] * (2 * behind - 1) + [FORWARDS[1], FORWARDS[0]] * stage + [*second] * behind
    rounds = most - extent.stages
    last = [*first[1:], *second] * (rounds - (most - 2 * extent.stages + 1 + stage))
    steady = [*first, *second] * (rounds - len(last) // len((*first[1:], *second))) + last
    draining = [INPUTS[0], INPUTS[1]] * stage + [INPUTS[0], WEIGHTS[0]] * behind
    order = ahead + steady + draining
    left = [turn for chunk in (1, 0) for turn in [WEIGHTS[chunk]] * (most - order.count(WEIGHTS[chunk]))]
    return numbered(stage, order + left, extent.microbatches)


def numbered(stage: int, turns: Iterable[Slot], microbatches: int) -> list[InstructionKey]:
    """Return instructions of microbatches in their order, without those beyond the last."""
    begun: Counter[Slot] = Counter()
    keys = []
    for turn in turns:
        chunk, direction = turn
        keys.append(InstructionKey(stage, chunk, begun[turn], direction))
        begun[turn] += 1
    return [key for key in keys if key.microbatch < microbatches]


def dualpipe_v(stage: int, extent: Extent) -> list[InstructionKey]:
    """A forward of one chunk beside a backward of the other (DeepSeek-V3, section 3.2.1), chunks as in ZB-V.

    The order is that of github.com/deepseek-ai/DualPipe, of two microbatches a stage or more. Here a forward and the
    backward beside it are two instructions one after the other; whole backwards are input and weight gradients one
    right after the other. Weight gradients wait while the pipeline fills, and again once a stage has half of its last
    backwards behind it.
    """
    after, before = extent.stages - stage - 1, stage + 1
    turns = [FORWARDS[0]] * (2 * after) + [*FORWARDS] * before
    turns += [INPUTS[1], WEIGHTS[1], FORWARDS[1]] * after
    rounds = extent.microbatches - 2 * extent.stages + before
    turns += [FORWARDS[0], INPUTS[1], WEIGHTS[1], FORWARDS[1], INPUTS[0], WEIGHTS[0]] * rounds
    turns += [INPUTS[1], WEIGHTS[1], FORWARDS[1], INPUTS[0], WEIGHTS[0]] * after
    backwards = [chunk for _ in range(before) for chunk in (1, 0)]
    waiting: deque[Slot] = deque()
    for number, chunk in enumerate(backwards):
        turns.append(INPUTS[chunk])
        (waiting if number > stage else turns).append(WEIGHTS[chunk])
    for _ in range(after):
        turns += [*([waiting.popleft()] if waiting else []), INPUTS[0]]
        waiting.append(WEIGHTS[0])
    return numbered(stage, [*turns, *waiting], extent.microbatches)
