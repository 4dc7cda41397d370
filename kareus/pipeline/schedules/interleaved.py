"""The interleaved 1F1B schedule: several chunks of layers on each stage (Narayanan et al., SC '21, section 2.2).

Chunk c of all stages comes before chunk c + 1 of the first, so that a microbatch passes the stages once for each chunk.
Microbatches go through the chunks in groups of as many as there are stages: a group through one chunk after the other,
then the next group. Backwards go through the chunks from the last to the first.
"""

from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.schedules.extent import Extent


def stage_order(stage: int, extent: Extent) -> list[InstructionKey]:
    """Instructions of `stage`, in order of execution.

    A stage runs ahead by all chunks but the last of one group, and by two forwards for each stage after it.

    Args:
        stage: from 0.
        extent: whose microbatches are a multiple of its stages.
    """
    stages, chunks = extent.stages, extent.chunks
    passes = extent.microbatches * chunks
    warmup = min(2 * (stages - stage - 1) + (chunks - 1) * stages, passes)

    def nth(direction: Direction, number: int) -> InstructionKey:
        group, within = divmod(number, stages * chunks)
        chunk, place = divmod(within, stages)
        own = chunk if direction is Direction.FORWARD else chunks - 1 - chunk
        return InstructionKey(stage, own, group * stages + place, direction)

    order = [nth(Direction.FORWARD, n) for n in range(warmup)]
    for n in range(passes - warmup):
        order += [nth(Direction.FORWARD, warmup + n), nth(Direction.BACKWARD, n)]
    return order + [nth(Direction.BACKWARD, n) for n in range(passes - warmup, passes)]
