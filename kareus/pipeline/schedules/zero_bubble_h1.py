"""The ZB-H1 schedule: weight gradients where 1F1B would wait (Qi et al., ICLR 2024, section 2.2)."""

from kareus.graph.records import Direction
from kareus.pipeline.schedules.work import Extent, Work


def stage_order(stage: int, extent: Extent) -> list[Work]:
    """Instructions of `stage`, in order of execution.

    Forwards and input gradients go as in 1F1B. Every stage delays its weight gradients by one microbatch for each stage
    before it, so that it has work left when the pipeline drains; together with those between forward and backward, no
    stage then holds more microbatches than the first one of 1F1B does.
    """
    microbatches = extent.microbatches
    warmup = min(extent.stages - stage - 1, microbatches)
    order = [Work(Direction.FORWARD, m) for m in range(warmup)]
    for m in range(microbatches):
        if warmup + m < microbatches:
            order.append(Work(Direction.FORWARD, warmup + m))
        order.append(Work(Direction.INPUT_GRADIENT, m))
        if m >= stage:
            order.append(Work(Direction.WEIGHT_GRADIENT, m - stage))
    return order + [Work(Direction.WEIGHT_GRADIENT, m) for m in range(max(microbatches - stage, 0), microbatches)]
