"""Checkpoints in other layouts than those that wrote them: other stages, chunks, replicas and tensor parallelism."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import polars as pl
import pytest
import torch
from helpers.builders import small_model
from helpers.trainings import TEXT, here, losses, tiny_workload, train_in_ranks

from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.tables import read_table
from kareus.graph.recomputation import Recomputation
from kareus.launch.mesh import coordinate_of
from kareus.model.communication import Communicator, Mesh
from kareus.model.parallelism import Sharding
from kareus.model.shards import shard_of
from kareus.model.weights import draw_weights
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.profile.programs import chunk_shapes
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import StageModel
from kareus.training.batches import DataPosition
from kareus.training.checkpoint import Checkpoint, RankCheckpoints, load, random_state, save
from kareus.training.checkpoint_files import header_file, read_header
from kareus.training.optimizer import MOMENTS, Optimizer
from kareus.training.optimizer_sharding import OptimizerSharding
from kareus.training.settings import OptimizerSettings
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload

MODEL = small_model(name="tiny", vocab_size=264, num_layers=4, tie_embeddings=True, qkv_bias=True, qk_norm=True)
SEQUENCES = 8
"""Of an iteration, in any layout."""


class Layout(NamedTuple):
    dp: int = 1
    pp: int = 1
    tp: int = 1
    chunks: int = 1
    sharding: Sharding = Sharding.NONE

    @property
    def workload(self) -> Workload:
        schedule = PipelineSchedule.INTERLEAVED if self.chunks > 1 else PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
        bare = tiny_workload(
            dp=self.dp,
            pp=self.pp,
            tp=self.tp,
            model=MODEL,
            num_microbatches=SEQUENCES // 2 // self.dp,
            pipeline=PipelineConfig(schedule=schedule, chunks=self.chunks, deadlines=2),
        )
        parallelism = dataclasses.replace(bare.parallelism, sharding=self.sharding)
        return dataclasses.replace(bare, parallelism=parallelism)


LAYOUTS = [
    Layout(),
    Layout(dp=2, pp=2),
    Layout(tp=2),
    Layout(dp=3, sharding=Sharding.OPTIMIZER),
    Layout(dp=2, pp=2, chunks=2, sharding=Sharding.OPTIMIZER),
    Layout(pp=2, tp=2),
    Layout(dp=2, tp=2, sharding=Sharding.OPTIMIZER),
]


def optimizer_of(layout: Layout, rank: int) -> tuple[Optimizer, Mesh]:
    """A rank's optimizer, whose weights are those that every layout begins with, and its mesh."""
    workload = layout.workload
    parallelism, place = workload.parallelism, coordinate_of(rank, workload.parallelism, workload.parallelism.gpus)
    mesh = Mesh(tp=cast("Communicator", SimpleNamespace(rank=place.tp, size=parallelism.tp)))
    shapes = chunk_shapes(parallelism.split, layout.chunks)
    shard, recomputation = shard_of(MODEL, parallelism, 16), Recomputation.STAGE
    models = [
        StageModel(MODEL, shard, Mesh(), shapes[place.stage, n], torch.float32, recomputation=recomputation)
        for n in range(layout.chunks)
    ]
    stage = StageChunks(models, first_layers(shapes, place.stage))
    draw_weights(stage, MODEL, 0, 0, mesh)
    whole = layout.sharding is Sharding.NONE
    replicas = None if whole else SimpleNamespace(size=lambda: layout.dp, rank=lambda: place.replica)
    optimizer = Optimizer(OptimizerSharding(stage, replicas), OptimizerSettings())
    optimizer.resume(steps=1)
    for name, weight in optimizer.weights().items():
        for number, moment in enumerate(MOMENTS):
            optimizer.states()[moment][name].copy_(weight * (number + 2))
    return optimizer, mesh


def files_of(folder: Path, rank: int, ranks: int) -> RankCheckpoints:
    return RankCheckpoints(folder=folder, rank=rank, ranks=ranks, run="a", subject="model")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[Layout, Path]:
    """A checkpoint of the first weights, as each layout writes it."""
    folders = {}
    for number, layout in enumerate(LAYOUTS):
        folders[layout] = tmp_path_factory.mktemp(f"layout-{number}")
        ranks = layout.workload.parallelism.gpus
        for rank in range(ranks):
            optimizer, mesh = optimizer_of(layout, rank)
            state = Checkpoint(
                iteration=1,
                tensors={each: tensor.clone() for each, tensor in optimizer.slices(MODEL, mesh).items()},
                random=random_state(),
                data=DataPosition(samples=0, source="none"),
            )
            save(files_of(folders[layout], rank, ranks), state)
    return folders


@pytest.mark.parametrize("reader", LAYOUTS, ids=str)
def test_any_layout_reads_the_same_state_from_any_other(written: dict[Layout, Path], reader: Layout) -> None:
    ranks = reader.workload.parallelism.gpus
    for rank in range(ranks):
        optimizer, mesh = optimizer_of(reader, rank)
        targets = optimizer.slices(MODEL, mesh)
        expected = {each: tensor.clone() for each, tensor in targets.items()}
        for folder in written.values():
            for tensor in targets.values():
                tensor.fill_(torch.nan)
            load(files_of(folder, rank, ranks), read_header(header_file(folder, 1, 0)), targets)
            assert all(torch.equal(tensor, expected[each]) for each, tensor in targets.items())


def test_losses_stay_the_same_through_changes_of_layout(tmp_path: Path) -> None:
    """From two replicas of two stages to tensor parallelism, to one rank and back, in fp32."""
    options = ("--data", TEXT, "--learning-rate", 0.01, "--final-rate", 0.01, "--checkpoint-every", 1)
    for number, layout in enumerate(
        (
            Layout(dp=2, pp=2),
            Layout(tp=2),
            Layout(),
            Layout(dp=2, pp=2, chunks=2, sharding=Sharding.OPTIMIZER),
        )
    ):
        path = tmp_path / f"{number}.yaml"
        path.write_text(to_yaml(layout.workload))
        iterations = ("--workload", path, *options, "--output", tmp_path / "run", "--iterations", 2 * number + 2)
        train_in_ranks(layout.workload.parallelism.gpus, *iterations)
    undisturbed = tmp_path / "undisturbed"
    assert here("--workload", tmp_path / "2.yaml", *options, "--iterations", 8, "--output", undisturbed) == 0
    expected = losses(undisturbed)
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0] - 0.1
    rows = pl.concat([read_table(tmp_path / f"run/rank-{rank:05d}.parquet", ITERATIONS) for rank in range(4)])
    assert rows.group_by("iteration").len().sort("iteration")["len"].to_list() == [4, 4, 2, 2, 1, 1, 4, 4]
