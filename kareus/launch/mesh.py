"""The mesh of ranks: where each of them is along the axes of parallelism (`Parallelism.rank` has their order)."""

from dataclasses import dataclass

from kareus.errors import EngineError
from kareus.model.parallelism import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshCoordinate:
    """Index of one rank along each axis of parallelism."""

    stage: int
    """Pipeline stage."""
    replica: int
    """Index along the data-parallel axis."""
    cp: int
    """Index along the context-parallel axis."""
    tp: int
    """Index along the tensor-parallel axis."""


def coordinate_of(rank: int, parallelism: Parallelism, world_size: int) -> MeshCoordinate:
    """Return the coordinate of `rank`.

    Raises:
        EngineError: the job has another number of ranks than the workload has GPUs.
    """
    if world_size != parallelism.gpus:
        raise EngineError(
            f"world size {world_size}: the workload runs on {parallelism.gpus} ranks (dp {parallelism.dp} x pp "
            f"{parallelism.pp} x cp {parallelism.cp} x tp {parallelism.tp}); start as many."
        )
    rest, tp = divmod(rank, parallelism.tp)
    rest, cp = divmod(rest, parallelism.cp)
    stage, replica = divmod(rest, parallelism.dp)
    return MeshCoordinate(stage=stage, replica=replica, cp=cp, tp=tp)


def rank_of(coordinate: MeshCoordinate, parallelism: Parallelism) -> int:
    """Return the rank at `coordinate`."""
    return parallelism.rank(coordinate.stage, coordinate.replica, coordinate.cp, coordinate.tp)
