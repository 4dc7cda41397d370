"""Pipelines of a few ranks on CPUs, over gloo and in fp32, that run without a plan."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from kareus.device.controller import DryClocks
from kareus.launch.mesh import coordinate_of
from kareus.launch.process_groups import ProcessGroups
from kareus.model.shards import shard_of
from kareus.model.weights import draw_weights
from kareus.profile.programs import chunk_shapes
from kareus.runtime.actions import actions_of
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.chunk_stage import StagePlace
from kareus.runtime.follower import PlanFollower, planned_steps
from kareus.runtime.pipeline import Pipeline
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import StageModel
from kareus.training.batches import Batches, DataShare
from kareus.training.samples import SyntheticSamples
from kareus.workload.config import Workload

MakeFollower = Callable[..., PlanFollower]
"""A class of plan followers, which takes the arguments of `PlanFollower`."""


def stage_on_cpu(stage: int, stages: int, groups: ProcessGroups, *, folded: bool = False) -> StagePlace:
    """Return the place of a stage whose messages go over `groups`, of gloo."""
    return StagePlace(
        stage=stage,
        stages=stages,
        group=groups.pipeline,
        backward_group=groups.pipeline_backward,
        device=torch.device("cpu"),
        tensor=groups.mesh.tp,
        folded=folded,
    )


def make_pipeline(
    rank: int, workload: Workload, groups: ProcessGroups, make_follower: MakeFollower = PlanFollower
) -> Pipeline:
    """Return the pipeline of a rank with drawn weights, which `make_follower` follows."""
    parallelism = workload.parallelism
    stage = coordinate_of(rank, parallelism, dist.get_world_size()).stage
    shard = shard_of(workload.model, parallelism, workload.sequence_length)
    shapes = chunk_shapes(parallelism.split, workload.chunks)
    models = [
        StageModel(
            workload.model,
            shard,
            groups.mesh,
            shapes[stage, chunk],
            torch.float32,
            recomputation=workload.recomputation,
        )
        for chunk in range(workload.chunks)
    ]
    chunks = StageChunks(models, first_layers(shapes, stage))
    draw_weights(chunks, workload.model, 0, 0, groups.mesh)
    return Pipeline(
        models,
        stage_on_cpu(stage, parallelism.pp, groups),
        boundary_shapes(workload, torch.float32),
        actions_of(workload, None),
        {},
        make_follower(planned_steps(workload, None, stage), DryClocks(), lambda: None),
    )


def run_iteration(pipeline: Pipeline, workload: Workload, rank: int) -> None:
    """Run one iteration of a rank on drawn tokens; every rank calls this."""
    parallelism = workload.parallelism
    share = DataShare(
        microbatch_size=workload.microbatch_size,
        num_microbatches=workload.num_microbatches,
        cp_rank=coordinate_of(rank, parallelism, dist.get_world_size()).cp,
        cp=parallelism.cp,
    )
    samples = SyntheticSamples(workload.model.vocab_size, workload.sequence_length, seed=1)
    pipeline.run(Batches(samples, share).next_iteration(), 1 / workload.num_microbatches)
