"""Requirements of a pipeline schedule on a workload, and the number of microbatches in flight at once.

The counts are closed forms of the orders that `kareus.pipeline` generates; its tests hold both together.
"""

from kareus.errors import RefusedWorkloadError
from kareus.pipeline.config import PipelineSchedule
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
    if schedule is PipelineSchedule.ZERO_BUBBLE_H1 and microbatches < stages:
        raise RefusedWorkloadError(
            f"num_microbatches={microbatches}: must be at least parallelism.pp ({stages}) with "
            "pipeline.schedule=zb-h1, which fills the drain with as many weight gradients; use more, or pipeline=1f1b."
        )


def most_in_flight(workload: Workload, stage: int) -> int:
    """Most microbatches of a stage between the start of their forward and the end of their (input-gradient) backward.

    Of an interleaved stage, most of their passes through single chunks.
    """
    schedule, stages, microbatches = workload.pipeline.schedule, workload.parallelism.pp, workload.num_microbatches
    if schedule is PipelineSchedule.GPIPE:
        return microbatches
    if schedule is PipelineSchedule.INTERLEAVED:
        warmup = 2 * (stages - stage - 1) + (workload.chunks - 1) * stages
        return min(warmup + 1, microbatches * workload.chunks)
    return min(stages - stage, microbatches)


def most_received_ahead(workload: Workload, stage: int) -> int:
    """Most tensors that a stage has received and not yet used, and the most that it has in flight.

    Messages go as `kareus.runtime.actions` orders them: a tensor is received as soon as it is sent, on an interleaved
    stage for several chunks. Without chunks a stage in the middle may have two, but less in flight than the first.
    """
    if workload.pipeline.schedule is not PipelineSchedule.INTERLEAVED:
        return 1
    return 2 if stage == 0 else 4


def most_delayed(workload: Workload, stage: int) -> int:
    """Most microbatches of a stage that wait for their weight gradients while another's input gradients are computed.

    As many as there are stages before it: what it holds less than the first stage of microbatches in flight.
    """
    return min(stage, workload.num_microbatches - 1) if workload.split_backward else 0
