"""The 1F1B schedule: warm up with forwards, then alternate, then drain (Narayanan et al., SC '21, section 2.2)."""

from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.schedules.extent import Extent


def stage_order(stage: int, extent: Extent) -> list[InstructionKey]:
    """Instructions of `stage`, in order of execution.

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
