"""Extraction: from a model and its parallelism to the operator graph of its block."""

from typing import Protocol

from kareus.errors import KareusError, RefusedWorkloadError
from kareus.graph.records import Batch, BlockGraph, Partition
from kareus.model.config import AttentionKernel, Model, Parallelism
from kareus.model.precision import Precision
from kareus.partition.detect import detect_partitions, graph_of
from kareus.partition.events import Trace
from kareus.partition.layers import with_layers
from kareus.partition.names import Extracted, expected_partitions
from kareus.partition.place import placed
from kareus.partition.structure import dimensions_of, structure_of
from kareus.partition.trace_cache import cached_template
from kareus.software.kernels import of_software
from kareus.software.record import Software


class GraphConfig(Protocol):
    """What decides the operator graphs of a workload: the workload, or a slice of it."""

    @property
    def model(self) -> Model:
        """The network."""

    @property
    def parallelism(self) -> Parallelism:
        """Its layout."""

    @property
    def microbatch_size(self) -> int:
        """Sequences of a microbatch."""

    @property
    def sequence_length(self) -> int:
        """Tokens of a sequence."""

    @property
    def software(self) -> Software:
        """Software that launches it."""

    @property
    def precision(self) -> Precision:
        """Of the products of its blocks."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs that links connect."""


def operator_graphs(config: GraphConfig) -> dict[Batch, BlockGraph]:
    """Return the operator graphs of a workload as its software launches them; errors as of `extract`."""
    model, parallelism, software = config.model, config.parallelism, config.software
    sizes = batch_sizes(parallelism, config.microbatch_size)
    graphs = extract(model, parallelism, config.microbatch_size, config.sequence_length, software.attention_kernel)
    return {
        batch: placed(
            of_software(graph, software, config.precision, model, parallelism, sizes[batch]),
            parallelism,
            config.gpus_per_node,
        )
        for batch, graph in graphs.items()
    }


def extract(
    model: Model,
    parallelism: Parallelism,
    microbatch_size: int,
    sequence_length: int,
    attention_kernel: AttentionKernel | None = None,
) -> dict[Batch, BlockGraph]:
    """Extract the graphs of a microbatch and, where it can be halved, of a nanobatch; torch only traces new structures.

    `attention_kernel` is that of other software; None is the engine's, as in `structure_of`.

    Raises:
        RefusedWorkloadError: the model or the sequence does not divide over `parallelism`, or attention that is not
            fused cannot share sequences.
    """
    if attention_kernel not in (None, AttentionKernel.FUSED) and parallelism.cp > 1:
        raise RefusedWorkloadError(
            f"parallelism.cp={parallelism.cp}: attention that is not fused (attention_kernel={attention_kernel}) needs "
            "whole sequences; use cp=1, or fused attention."
        )
    return {
        batch: with_layers(
            graph_of(_trace(model, parallelism, size, sequence_length, attention_kernel)),
            model,
            parallelism,
            sequence_length,
        )
        for batch, size in batch_sizes(parallelism, microbatch_size).items()
    }


def batch_sizes(parallelism: Parallelism, microbatch_size: int) -> dict[Batch, int]:
    """Return the sequences of a microbatch and, where it can be halved, of a nanobatch."""
    sizes = {Batch.MICROBATCH: microbatch_size}
    if parallelism.halves(microbatch_size):
        sizes[Batch.NANOBATCH] = microbatch_size // 2
    return sizes


def partitions_of(graphs: dict[Batch, BlockGraph], workload: Extracted) -> dict[Partition, int]:
    """Partitions of a workload's graphs, and how often a block has each; none where a microbatch cannot be halved.

    Raises:
        KareusError: they are not those that the workflow made jobs for.
    """
    found: dict[Partition, int] = {}
    if Batch.NANOBATCH in graphs:
        found = detect_partitions(
            graphs[Batch.NANOBATCH],
            recomputation=workload.recomputation,
            split_backward=workload.split_backward,
        )
    names, expected = {partition.name for partition in found}, set(expected_partitions(workload))
    if names != expected:
        raise KareusError(
            f"partitions: the operator graph has {', '.join(sorted(names)) or 'none'}, "
            f"kareus/partition/names.py predicts {', '.join(sorted(expected)) or 'none'}; correct the prediction."
        )
    return found


def _trace(
    model: Model, parallelism: Parallelism, batch: int, sequence_length: int, attention_kernel: AttentionKernel | None
) -> Trace:
    dimensions = dimensions_of(model, parallelism, batch, sequence_length)
    template = cached_template(structure_of(model, parallelism, dimensions, attention_kernel))
    return template.trace(dimensions, {"tp": parallelism.tp, "cp": parallelism.cp})
