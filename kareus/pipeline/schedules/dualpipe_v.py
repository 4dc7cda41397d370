"""The DualPipe-V schedule: a forward of one chunk beside a backward of the other (DeepSeek-V3, section 3.2.1).

Its order is that of github.com/deepseek-ai/DualPipe. Two chunks are on each stage as in ZB-V. Here a forward and the
backward beside it are two instructions one after the other; whole backwards are input and weight gradients one right
after the other.
"""

from collections import deque

from kareus.graph.instruction import InstructionKey
from kareus.pipeline.schedules.extent import Extent
from kareus.pipeline.schedules.zero_bubble_v import FORWARDS, INPUTS, WEIGHTS, Slot, numbered


def stage_order(stage: int, extent: Extent) -> list[InstructionKey]:
    """Instructions of `stage`, in order of execution, of two microbatches a stage or more.

    Weight gradients wait while the pipeline fills, and again once a stage has half of its last backwards behind it.
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
