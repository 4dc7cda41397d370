"""Choices of a configuration that exclude one another, each of which is possible by itself."""

from kareus.errors import RefusedWorkloadError
from kareus.graph.recomputation import Recomputation
from kareus.model.trainable import unmeasured
from kareus.workload.config import Workload


def check_combinations(workload: Workload) -> None:
    """Check that the choices of a workload can be had together.

    Raises:
        RefusedWorkloadError: two of them cannot; with the reason, and what to change.
    """
    parallelism = workload.parallelism
    most = workload.model.max_positions
    if most is not None and workload.sequence_length > most:
        raise RefusedWorkloadError(
            f"sequence_length={workload.sequence_length}: must be at most model.max_positions ({most}), the positions "
            "that the model learns."
        )
    if workload.testbed.cuda is not None and (features := unmeasured(workload.model, workload.sequence_length)):
        raise RefusedWorkloadError(
            f"testbed: operators of {', '.join(features)} are not measured on GPUs, since the profiler has none of "
            "them; plan with testbed=simulated, or profile a job of another trainer in place (docs/howto/inplace.md)."
        )
    if workload.recomputation is Recomputation.FULL and parallelism.cp > 1 and parallelism.tp == 1:
        raise RefusedWorkloadError(
            f"recomputation=full: with context parallelism alone (parallelism.cp={parallelism.cp}, tp=1) every segment "
            "between two collectives spans two blocks, so that a block cannot be recomputed by itself; use "
            "recomputation=selective or stage."
        )
    if parallelism.shards_gradients and parallelism.cp > 1:
        raise RefusedWorkloadError(
            f"parallelism.sharding={parallelism.sharding}: gradients are reduce-scattered over replicas alone, and "
            f"context parallelism (parallelism.cp={parallelism.cp}) would have to sum them, too; use cp=1, or "
            "parallelism.sharding=optimizer."
        )
    if parallelism.shards_gradients and workload.testbed.cuda is not None:
        raise RefusedWorkloadError(
            f"parallelism.sharding={parallelism.sharding}: a profiler has the GPUs of one replica, and cannot measure "
            "collectives of several; use parallelism.sharding=optimizer, or plan with testbed=simulated and train by "
            "that plan with --communicator nccl."
        )
