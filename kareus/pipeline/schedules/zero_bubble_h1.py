"""The ZB-H1 schedule: weight gradients where 1F1B would wait (Qi et al., ICLR 2024, section 2.2)."""

from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.schedules.extent import Extent


def stage_order(stage: int, extent: Extent) -> list[InstructionKey]:
    """Instructions of `stage`, in order of execution.

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
