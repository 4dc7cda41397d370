"""Requirements of a pipeline schedule on a workload, and the number of microbatches in flight at once.

The counts are closed forms of the orders that `kareus.pipeline` generates, where there are such; its tests hold both
together.
"""

from collections.abc import Sequence

from kareus.errors import RefusedWorkloadError
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import SCHEDULES
from kareus.pipeline.orders import Extent
from kareus.workload.config import Workload


def check_pipeline(workload: Workload) -> None:
    """Check that the schedule can run with the stages and microbatches of a workload.

    Raises:
        RefusedWorkloadError: it cannot, or could not do what it is for.
    """
    schedule, stages, microbatches = workload.pipeline.schedule, workload.parallelism.pp, workload.num_microbatches
    if schedule is PipelineSchedule.INTERLEAVED:
        if stages == 1:
            raise RefusedWorkloadError("parallelism.pp=1: must be 2 or more with pipeline.schedule=interleaved.")
        if microbatches % stages:
            raise RefusedWorkloadError(
                f"num_microbatches={microbatches}: must be a multiple of parallelism.pp ({stages}) with "
                "pipeline.schedule=interleaved, which takes them through its chunks in groups of that many."
            )
    if schedule.folds and stages == 1:
        raise RefusedWorkloadError(f"parallelism.pp=1: must be 2 or more with pipeline.schedule={schedule}.")
    if schedule is PipelineSchedule.DUALPIPE_V and microbatches < 2 * stages:
        raise RefusedWorkloadError(
            f"num_microbatches={microbatches}: must be at least twice parallelism.pp ({stages}) with "
            "pipeline.schedule=dualpipe-v, which runs forwards beside backwards; use more, or pipeline=zb-v."
        )
    if schedule is PipelineSchedule.ZERO_BUBBLE_H1 and microbatches < stages:
        raise RefusedWorkloadError(
            f"num_microbatches={microbatches}: must be at least parallelism.pp ({stages}) with "
            "pipeline.schedule=zb-h1, which fills the drain with as many weight gradients; use more, or pipeline=1f1b."
        )


def in_flight_and_delayed(workload: Workload, stage: int) -> tuple[tuple[int, int], ...]:
    """Microbatches in flight, and those that wait for weight gradients meanwhile, where a stage holds most.

    Meanwhile is while a forward runs or input gradients do, which hold more than weight gradients.

    Of a stage with several chunks, their passes through single ones. In a V the two are largest at different times,
    so that there are several pairs; else it is one, of the most of each.
    """
    if not workload.pipeline.schedule.folds:
        return ((most_in_flight(workload, stage), most_delayed(workload, stage)),)
    pairs, in_flight, delayed = set[tuple[int, int]](), 0, 0
    for key in _order(workload, stage):
        in_flight += key.direction is Direction.FORWARD
        if key.direction is Direction.WEIGHT_GRADIENT:
            delayed -= 1
            continue
        pairs.add((in_flight, delayed))
        ends = key.direction is Direction.INPUT_GRADIENT
        in_flight, delayed = in_flight - ends, delayed + ends
    return tuple(pair for pair in pairs if not any(_exceeds(other, pair) for other in pairs))


def _order(workload: Workload, stage: int) -> Sequence[InstructionKey]:
    extent = Extent(stages=workload.parallelism.pp, microbatches=workload.num_microbatches, chunks=workload.chunks)
    return SCHEDULES[workload.pipeline.schedule](stage, extent)


def _exceeds(other: tuple[int, int], pair: tuple[int, int]) -> bool:
    return other != pair and other[0] >= pair[0] and other[1] >= pair[1]


def most_in_flight(workload: Workload, stage: int) -> int:
    """Most microbatches of a stage between the start of their forward and the end of their (input-gradient) backward.

    Of an interleaved stage, most of their passes through single chunks.
    """
    schedule, stages, microbatches = workload.pipeline.schedule, workload.parallelism.pp, workload.num_microbatches
    if schedule is PipelineSchedule.GPIPE:
        return microbatches
    if schedule.folds:
        return max(in_flight for in_flight, _ in in_flight_and_delayed(workload, stage))
    if schedule is PipelineSchedule.INTERLEAVED:
        warmup = 2 * (stages - stage - 1) + (workload.chunks - 1) * stages
        return min(warmup + 1, microbatches * workload.chunks)
    return min(stages - stage, microbatches)


def most_received_ahead(workload: Workload, stage: int) -> int:
    """Most tensors that a stage has received and not yet used, and the most that it has in flight.

    Messages go as `kareus.runtime.actions` orders them: a tensor is received as soon as it is sent, on an interleaved
    stage for several chunks. Without chunks a stage in the middle may have two, but less in flight than the first.
    """
    if workload.pipeline.schedule.folds:
        return workload.chunks
    if workload.pipeline.schedule is not PipelineSchedule.INTERLEAVED:
        return 1
    return 2 if stage == 0 else 4


def most_delayed(workload: Workload, stage: int) -> int:
    """Most microbatches of a stage that wait for their weight gradients while another's input gradients are computed.

    As many as there are stages before it: what it holds less than the first stage of microbatches in flight. In a V
    see `in_flight_and_delayed`.
    """
    if workload.pipeline.schedule.folds:
        return max(delayed for _, delayed in in_flight_and_delayed(workload, stage))
    return min(stage, workload.num_microbatches - 1) if workload.split_backward else 0
