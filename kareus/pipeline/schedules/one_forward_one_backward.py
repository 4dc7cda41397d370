"""The 1F1B schedule: warm up with forwards, then alternate, then drain (Narayanan et al., SC '21, section 2.2)."""

from kareus.graph.records import Direction
from kareus.pipeline.schedules.work import Extent, Work


def stage_order(stage: int, extent: Extent) -> list[Work]:
    """Instructions of `stage`, in order of execution.

    A stage runs ahead by one forward for each stage after it, so that it never holds the activations of more
    than `stages - stage` microbatches.
    """
    microbatches = extent.microbatches
    warmup = min(extent.stages - stage - 1, microbatches)
    order = [Work(Direction.FORWARD, m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        order += [Work(Direction.FORWARD, warmup + m), Work(Direction.BACKWARD, m)]
    return order + [Work(Direction.BACKWARD, m) for m in range(microbatches - warmup, microbatches)]
