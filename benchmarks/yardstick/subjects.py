"""The partitions that are searched: all of two models, tensor parallel, and context and tensor parallel."""

from dataclasses import dataclass

from kareus.graph.records import Partition
from kareus.partition.extract import extract, partitions_of
from kareus.schedule.records import SearchSpace
from kareus.schedule.space import search_space
from kareus.search.config import SearchConfig
from kareus.search.features import Features, features_of
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

WORKLOADS = ("model=llama3.2-3b,qwen3-1.7b", "parallelism=tp8,cp2tp4")
"""A sweep of four workloads, on 16 A100 each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One partition of one workload, with its candidates."""

    name: str
    """Name of the workload."""
    workload: Workload
    partition: Partition
    space: SearchSpace
    """Its candidates."""

    @property
    def features(self) -> Features:
        """Features of the candidates."""
        return features_of(self.partition, self.space)


def all_subjects() -> list[Subject]:
    """Every partition of every workload."""
    return [
        Subject(
            name=name,
            workload=workload,
            partition=partition,
            space=search_space(partition, workload.gpu, workload.space),
        )
        for name, workload in resolve_accepted(WORKLOADS).items()
        for partition in _partitions(workload)
    ]


def search_config(strategy: str) -> SearchConfig:
    """The configuration with which planning runs a strategy."""
    (workload,) = resolve_accepted([f"search={strategy}"]).values()
    return workload.search


def _partitions(workload: Workload) -> list[Partition]:
    graphs = extract(workload.model, workload.parallelism, workload.microbatch_size, workload.sequence_length)
    return list(partitions_of(graphs, cut(workload, "partition")))
