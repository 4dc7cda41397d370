"""The ZB-V schedule: two chunks on each stage, the second on the way back (Qi et al., arXiv 2401.10241, section 6).

Where forwards, input gradients and weight gradients take equally long, no stage waits between its first and its last
instruction, and none holds more than the first one of 1F1B does.
"""

from collections import Counter
from collections.abc import Iterable

from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.schedules.extent import Extent

Slot = tuple[int, Direction]
"""Chunk and direction of an instruction, which is of the next microbatch."""
FORWARDS: tuple[Slot, Slot] = ((0, Direction.FORWARD), (1, Direction.FORWARD))
INPUTS: tuple[Slot, Slot] = ((0, Direction.INPUT_GRADIENT), (1, Direction.INPUT_GRADIENT))
WEIGHTS: tuple[Slot, Slot] = ((0, Direction.WEIGHT_GRADIENT), (1, Direction.WEIGHT_GRADIENT))
"""By chunk."""


def stage_order(stage: int, extent: Extent) -> list[InstructionKey]:
    """Instructions of `stage`, in order of execution.

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
