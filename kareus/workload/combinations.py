"""Choices of a configuration that exclude one another, each of which is possible by itself."""

from kareus.errors import RefusedWorkloadError
from kareus.graph.recomputation import Recomputation
from kareus.model.config import ActivationKind, Model, NormKind, PositionKind
from kareus.workload.config import Workload


def check_combinations(workload: Workload) -> None:
    """Check that the choices of a workload can be had together.

    Raises:
        RefusedWorkloadError: two of them cannot; with the reason, and what to change.
    """
    parallelism = workload.parallelism
    _check_architecture(workload.model)
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
            "collectives of several; plan with testbed=simulated, or use parallelism.sharding=optimizer."
        )


def _check_architecture(model: Model) -> None:
    """Check that there are operators for every part of a block.

    Raises:
        RefusedWorkloadError: one has none yet.
    """
    built = {"norm": NormKind.RMSNORM, "activation": ActivationKind.SWIGLU, "positions": PositionKind.ROPE}
    for key, kind in {**built, "biases": False}.items():
        if getattr(model, key) != kind:
            raise RefusedWorkloadError(f"model.{key}={getattr(model, key)}: not supported yet; use {kind}.")
