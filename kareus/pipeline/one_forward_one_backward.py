"""The 1F1B schedule: warm up with forwards, then alternate, then drain (Narayanan et al., SC '21, section 2.2)."""

from kareus.partition.graph import Direction


def stage_order(stage: int, stages: int, microbatches: int) -> list[tuple[Direction, int]]:
    """Direction and microbatch of each instruction of `stage`, in order of execution.

    A stage runs ahead by one forward for each stage after it, so that it never holds the activations of more
    than `stages - stage` microbatches.
    """
    warmup = min(stages - stage - 1, microbatches)
    order = [(Direction.FORWARD, m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        order += [(Direction.FORWARD, warmup + m), (Direction.BACKWARD, m)]
    return order + [(Direction.BACKWARD, m) for m in range(microbatches - warmup, microbatches)]
