"""Inputs of the training on one rank, and the model and pipeline built from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kareus.device.controller import ClockControl
from kareus.device.protocol import Device
from kareus.launch.compute_device import compute_dtype, synchronize_computation
from kareus.launch.mesh import MeshCoordinate
from kareus.launch.monitor import RankMonitor
from kareus.launch.process_groups import ProcessGroups
from kareus.launch.rendezvous import Rendezvous
from kareus.model.layers import rotary_table
from kareus.model.shards import Shard, shard_of
from kareus.profile.programs import laid_out_shapes
from kareus.runtime.actions import actions_of
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.chunk_stage import StagePlace
from kareus.runtime.engine_checks import check_captures, check_runs, check_trains
from kareus.runtime.follower import PlanFollower, planned_steps
from kareus.runtime.fully_sharded import FillWeights, FullyShardedModel
from kareus.runtime.pipeline import Pipeline, balances_of
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import GradientsReady, StageModel
from kareus.training.checkpoint import RankCheckpoints
from kareus.training.job import TrainingJob
from kareus.training.recorder import IterationRecorder
from kareus.training.samples import Samples
from kareus.training.settings import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSetup:
    """All that one rank trains with."""

    job: TrainingJob
    settings: TrainingSettings
    communicator: str
    """Library of the operators' collectives."""
    rendezvous: Rendezvous
    coordinate: MeshCoordinate
    groups: ProcessGroups
    device: torch.device
    gpu: Device | None
    """GPU whose energy is read; None where nothing measures it."""
    clocks: ClockControl
    monitor: RankMonitor
    samples: Samples
    recorder: IterationRecorder
    checkpoints: RankCheckpoints

    @property
    def seed(self) -> int:
        """Seed of weights and of the order of the data."""
        return training_seed(self.job, self.settings)


def training_seed(job: TrainingJob, settings: TrainingSettings) -> int:
    """Return the seed of `settings`, or else that of the job's workload."""
    return job.workload.seed if settings.seed is None else settings.seed


def make_chunks(setup: RankSetup) -> StageChunks:
    """Return this rank's part of the model, with uninitialised weights; without any where replicas share them out."""
    job, stage = setup.job, setup.coordinate.stage
    workload = job.workload
    check_runs(workload)
    check_trains(workload.model, workload.sequence_length, setup.device.type)
    if setup.settings.cuda_graphs:
        check_captures(workload, setup.communicator)
    shapes = laid_out_shapes(workload)
    shared_out = workload.parallelism.shards_gradients
    with torch.device("meta" if shared_out else "cpu"):
        models = [
            StageModel(
                workload.model,
                _shard(setup),
                setup.groups.mesh,
                shapes[stage, chunk],
                torch.float32 if shared_out else compute_dtype(setup.device),
                recomputation=workload.recomputation,
                graph=job.graph,
                default_sm_count=workload.testbed.default_collective_sm_count,
            )
            for chunk in range(workload.chunks)
        ]
    whole = models if shared_out else [model.to(setup.device) for model in models]
    return StageChunks(whole, first_layers(shapes, stage, folded=workload.parallelism.folded))


def stage_place(setup: RankSetup) -> StagePlace:
    """Return the place of this rank's stage in its pipeline."""
    return StagePlace(
        stage=setup.coordinate.stage,
        stages=setup.job.workload.parallelism.pp,
        group=setup.groups.pipeline,
        backward_group=setup.groups.pipeline_backward,
        device=setup.device,
        tensor=setup.groups.mesh.tp,
        folded=setup.job.workload.parallelism.folded,
    )


def make_fully_sharded(setup: RankSetup, stage: StageChunks, fill: FillWeights) -> FullyShardedModel:
    """Fill the weights of `stage` and share them out over the replicas, block by block."""
    workload, (model,) = setup.job.workload, stage.chunks
    assert setup.groups.optimizer_shards is not None
    cosine, sine = rotary_table(workload.model, _shard(setup).tokens, setup.groups.mesh.cp)
    return FullyShardedModel(
        model,
        (cosine.to(setup.device), sine.to(setup.device)),
        setup.groups.optimizer_shards,
        workload.parallelism.sharding,
        compute_dtype(setup.device),
        fill,
        workload.parallelism.fsdp,
    )


def make_pipeline(
    setup: RankSetup, models: Sequence[StageModel | FullyShardedModel], gradients_ready: GradientsReady
) -> Pipeline:
    """Return the pipeline that the chunks `models` of this rank are a part of; `gradients_ready` as of `Pipeline`."""
    job, stage, device = setup.job, setup.coordinate.stage, setup.device
    workload = job.workload
    return Pipeline(
        models,
        stage_place(setup),
        boundary_shapes(workload, compute_dtype(device)),
        actions_of(workload, job.plan),
        job.schedules(stage),
        PlanFollower(
            planned_steps(workload, job.plan, stage),
            setup.clocks,
            lambda: synchronize_computation(device),
            setup.monitor.progress,
        ),
        gradients_ready,
        balances_of(workload, setup.groups.balance),
    )


def _shard(setup: RankSetup) -> Shard:
    workload = setup.job.workload
    return shard_of(workload.model, workload.parallelism, workload.sequence_length)
