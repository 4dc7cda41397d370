"""Extraction: from a model and its parallelism to the operator graph of its block."""

from kareus.errors import KareusError
from kareus.graph.records import Batch, BlockGraph, Direction, Partition, Scope
from kareus.model.config import Model, Parallelism
from kareus.partition.detect import detect_partitions, segments_of
from kareus.partition.names import Extracted, expected_partitions
from kareus.partition.trace import Trace, trace


def extract(
    model: Model, parallelism: Parallelism, microbatch_size: int, sequence_length: int
) -> dict[Batch, BlockGraph]:
    """Trace a microbatch and, where it can be halved, a nanobatch.

    Raises:
        RefusedWorkloadError: the model or the sequence does not divide over `parallelism`.
    """
    sizes = {Batch.MICROBATCH: microbatch_size}
    if microbatch_size % 2 == 0:
        sizes[Batch.NANOBATCH] = microbatch_size // 2
    return {batch: _graph(trace(model, parallelism, size, sequence_length)) for batch, size in sizes.items()}


def partitions_of(graphs: dict[Batch, BlockGraph], workload: Extracted) -> dict[Partition, int]:
    """Partitions of a workload's graphs, and how often a block has each; none where a microbatch cannot be halved.

    Raises:
        KareusError: they are not those that the workflow made jobs for.
    """
    found: dict[Partition, int] = {}
    if Batch.NANOBATCH in graphs:
        found = detect_partitions(
            graphs[Batch.NANOBATCH],
            recompute=workload.activation_checkpointing,
            split_backward=workload.split_backward,
        )
    names, expected = {partition.name for partition in found}, set(expected_partitions(workload))
    if names != expected:
        raise KareusError(
            f"partitions: the operator graph has {', '.join(sorted(names)) or 'none'}, "
            f"kareus/partition/names.py predicts {', '.join(sorted(expected)) or 'none'}; correct the prediction."
        )
    return found


def _graph(traced: Trace) -> BlockGraph:
    return BlockGraph(
        forward=segments_of(traced, Scope.BLOCK, Direction.FORWARD),
        backward=segments_of(traced, Scope.BLOCK, Direction.BACKWARD),
        embedding_forward=segments_of(traced, Scope.EMBEDDING, Direction.FORWARD),
        embedding_backward=segments_of(traced, Scope.EMBEDDING, Direction.BACKWARD),
        head_forward=segments_of(traced, Scope.HEAD, Direction.FORWARD),
        head_backward=segments_of(traced, Scope.HEAD, Direction.BACKWARD),
    )
