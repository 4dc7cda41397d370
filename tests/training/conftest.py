"""Planned workloads that trainings share: tiny ones, whose plans take a moment to make."""

from pathlib import Path

import pytest
from helpers.trainings import FOUR_LAYERS, planned, tiny_workload

from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.workload.config import Workload


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of one rank."""
    return planned_in(tmp_path_factory, "alone", tiny_workload())


@pytest.fixture(scope="session")
def two_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of two stages."""
    return planned_in(tmp_path_factory, "two-stages", tiny_workload(pp=2))


@pytest.fixture(scope="session")
def interleaved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of two stages of two chunks of a layer each, whose embeddings are tied."""
    return planned_in(tmp_path_factory, "interleaved", of_four_layers(PipelineSchedule.INTERLEAVED, chunks=2))


@pytest.fixture(scope="session")
def zero_bubble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model and batch, two layers on each stage, and weight gradients as instructions of their own."""
    return planned_in(tmp_path_factory, "zero-bubble", of_four_layers(PipelineSchedule.ZERO_BUBBLE_H1, chunks=1))


def planned_in(factory: pytest.TempPathFactory, name: str, workload: Workload) -> Path:
    """A new folder that has a plan of `workload`."""
    folder = factory.mktemp("planned") / name
    planned(folder, workload)
    return folder


def of_four_layers(schedule: PipelineSchedule, chunks: int) -> Workload:
    pipeline = PipelineConfig(schedule=schedule, chunks=chunks, deadlines=2)
    return tiny_workload(pp=2, model=FOUR_LAYERS, pipeline=pipeline, num_microbatches=4)
