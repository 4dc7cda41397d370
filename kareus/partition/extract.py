"""Extraction: from a model and its parallelism to the operator graph of its block."""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from kareus.errors import KareusError, RefusedWorkloadError
from kareus.graph.number_formats import Precision
from kareus.graph.records import Batch, BlockGraph, Partition
from kareus.model.config import AttentionKernel, Model
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import Replicated
from kareus.partition.detect import detect_partitions, graph_of
from kareus.partition.experts import routed_sizes, with_experts
from kareus.partition.latent import with_latent_attention
from kareus.partition.mean_block import as_mean_block
from kareus.partition.mtp import with_further_tokens
from kareus.partition.names import Extracted, expected_partitions
from kareus.partition.options import with_training_options
from kareus.partition.place import ExchangedCopies, placed
from kareus.partition.structure import Dimensions, Structure, dimensions_of, structure_of
from kareus.partition.trace_cache import cached_template
from kareus.software.kernels import of_software
from kareus.software.record import Dispatcher, Software
from kareus.software.trainers import ENGINE

CUT_OUT = 64
"""Width on a GPU of an MLP that is traced and cut out, where a block has nothing but experts."""


class GraphConfig(Replicated, Protocol):
    """Settings that operator graphs depend on: those of a workload, or of a slice of it."""

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
    def linked_gpus(self) -> int:
        """Consecutive ranks that NVLink connects."""


def operator_graphs(config: GraphConfig) -> dict[Batch, BlockGraph]:
    """Return the operator graphs of a workload as its software launches them; errors as of `extract`."""
    model, parallelism, software = config.model, config.parallelism, config.software
    sizes = batch_sizes(model, parallelism, config.microbatch_size)
    graphs = extract(
        model,
        parallelism,
        config.microbatch_size,
        config.sequence_length,
        software.attention_kernel,
        software,
    )
    copies = exchanged_copies(model, software)

    def launched(graph: BlockGraph, size: int) -> BlockGraph:
        by_software = of_software(graph, software, config.precision, model, parallelism, size)
        with_nodes = placed(by_software, parallelism, config.linked_gpus, copies)
        sequence, tokens = config.sequence_length, size * config.sequence_length // parallelism.cp
        with_options = with_training_options(with_nodes, config.training, model, parallelism, software, sequence)
        return with_further_tokens(with_options, model, parallelism, tokens)

    return {batch: launched(graph, sizes[batch]) for batch, graph in graphs.items()}


def exchanged_copies(model: Model, software: Software) -> ExchangedCopies | None:
    """Return what of a token's copies travels between nodes; None where each copy does."""
    experts = model.experts
    if experts is None or software.dispatcher is not Dispatcher.FLEX:
        return None
    return ExchangedCopies(experts.per_token, Fraction(experts.groups_per_token, experts.groups))


def extract(
    model: Model,
    parallelism: Parallelism,
    microbatch_size: int,
    sequence_length: int,
    attention_kernel: AttentionKernel | None = None,
    software: Software | None = None,
) -> dict[Batch, BlockGraph]:
    """Extract the graphs of a microbatch and, where it can be halved, of a nanobatch; torch only traces new structures.

    `attention_kernel` is that of other software; None is the engine's, as in `structure_of`. `software` runs experts,
    where there are any.

    Raises:
        RefusedWorkloadError: the model or the sequence does not divide over `parallelism`, or attention that is not
            fused cannot share sequences.
    """
    if attention_kernel not in (None, AttentionKernel.FUSED) and parallelism.cp > 1:
        raise RefusedWorkloadError(
            f"parallelism.cp={parallelism.cp}: attention that is not fused (attention_kernel={attention_kernel}) needs "
            "whole sequences; use cp=1, or fused attention."
        )

    def block(size: int, width: int) -> BlockGraph:
        plain = _with_mlp(model, width)
        dimensions = dimensions_of(plain, parallelism, size, sequence_length)
        structure = structure_of(plain, parallelism, dimensions, attention_kernel)
        graph = _traced_graph(structure, dimensions, parallelism.tp, parallelism.cp)
        if model.latent_attention is not None:
            whole, tokens = software is not None and software.name == ENGINE, size * sequence_length // parallelism.cp
            graph = with_latent_attention(graph, model, parallelism, tokens, whole=whole)
        return as_mean_block(graph, plain, parallelism, sequence_length)

    def graph(size: int) -> BlockGraph:
        experts = model.experts
        if experts is None:
            return block(size, model.intermediate_size)
        assert software is not None, "experts are run by some software"
        tokens = size * sequence_length // (parallelism.cp * parallelism.token_shards)
        dense = block(size, model.intermediate_size) if experts.dense_layers else None
        sizes = routed_sizes(model, parallelism, tokens, software)
        return with_experts(block(size, experts.shared_width or CUT_OUT * parallelism.tp), dense, sizes)

    return {batch: graph(size) for batch, size in batch_sizes(model, parallelism, microbatch_size).items()}


def batch_sizes(model: Model, parallelism: Parallelism, microbatch_size: int) -> dict[Batch, int]:
    """Return the sequences of a microbatch and, where it can be halved, of a nanobatch."""
    sizes = {Batch.MICROBATCH: microbatch_size}
    if parallelism.halves(microbatch_size):
        sizes[Batch.NANOBATCH] = microbatch_size // 2
    return sizes


def _with_mlp(model: Model, width: int) -> Model:
    """Return the model with an MLP of a width in each block, and heads of the width of values."""
    if model.experts is None and model.latent_attention is None:
        return model
    return replace(model, experts=None, latent_attention=None, intermediate_size=width, head_dim=model.value_head_dim)


def partitions_of(graphs: dict[Batch, BlockGraph], workload: Extracted) -> dict[Partition, int]:
    """Partitions of a workload's graphs, and how often a block has each; none where a microbatch cannot be halved.

    Raises:
        KareusError: they are not those that the workflow made jobs for.
    """
    partitions: dict[Partition, int] = {}
    if Batch.NANOBATCH in graphs:
        partitions = detect_partitions(
            graphs[Batch.NANOBATCH],
            recomputation=workload.recomputation,
            split_backward=workload.split_backward,
        )
    names, expected = {partition.name for partition in partitions}, set(expected_partitions(workload))
    if names != expected:
        raise KareusError(
            f"partitions: the operator graph has {', '.join(sorted(names)) or 'none'}, "
            f"kareus/partition/names.py predicts {', '.join(sorted(expected)) or 'none'}; correct the prediction."
        )
    return partitions


@lru_cache(maxsize=256)  # the nanobatch of one layout is the microbatch of another
def _traced_graph(structure: Structure, dimensions: Dimensions, tp: int, cp: int) -> BlockGraph:
    return graph_of(cached_template(structure).trace(dimensions, {"tp": tp, "cp": cp}))
