"""The partitions that are searched: all of two models, tensor parallel, and context and tensor parallel."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.graph.records import Partition
from kareus.partition.extract import extract, partitions_of
from kareus.schedule.space import search_space
from kareus.search.config import SearchConfig
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

WORKLOADS = ("model=llama3.2-3b,qwen3-1.7b", "parallelism=tp8,cp2tp4")
"""A sweep of four workloads, on 16 A100 each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One partition of one workload, and its candidates."""

    name: str
    """Name of the workload."""
    workload: Workload
    partition: Partition
    features: NDArray[np.float64]
    """Of every candidate: frequency, SM count, launch operator; shape (candidates, 3)."""


def all_subjects() -> list[Subject]:
    """Every partition of every workload."""
    return [
        Subject(name=name, workload=workload, partition=partition, features=features(partition, workload))
        for name, workload in resolve_accepted(WORKLOADS).items()
        for partition in _partitions(workload)
    ]


def search_config(strategy: str) -> SearchConfig:
    """The configuration with which planning runs a strategy."""
    (workload,) = resolve_accepted([f"search={strategy}"]).values()
    return workload.search


def features(partition: Partition, workload: Workload) -> NDArray[np.float64]:
    """Features of a partition's candidates, in the order of its search space."""
    candidates = search_space(partition, workload.gpu, workload.space)
    return np.array([(c.frequency_mhz, c.sm_count, c.launch) for c in candidates], dtype=np.float64)


def _partitions(workload: Workload) -> list[Partition]:
    graphs = extract(workload.model, workload.parallelism, workload.microbatch_size, workload.sequence_length)
    return list(partitions_of(graphs, cut(workload, "partition")))
