"""What a rank trains with, and the stage and pipeline that are made of it."""

from collections.abc import Callable
from dataclasses import dataclass

from kareus.device.controller import Clocks
from kareus.device.protocol import Device
from kareus.launch.world import Standing, World
from kareus.model.shards import shard_of
from kareus.profile.programs import chunk_shapes
from kareus.runtime.actions import actions_of
from kareus.runtime.chunk_stage import Shapes, StagePlace
from kareus.runtime.follower import PlanFollower, planned_steps
from kareus.runtime.pipeline import Pipeline
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import StageModel
from kareus.training import checkpoint
from kareus.training.data.samples import Samples
from kareus.training.job import Job
from kareus.training.learning_rate import LearningRateSchedule
from kareus.training.recorder import Recorder
from kareus.training.settings import OptimizerSettings, TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a rank trains with."""

    job: Job
    settings: TrainingSettings
    optimizer: OptimizerSettings
    learning_rate: LearningRateSchedule
    world: World
    standing: Standing
    samples: Samples
    clocks: Clocks
    device: Device | None
    """Whose energy is read; None where nothing measures it."""
    recorder: Recorder
    checkpoints: checkpoint.Place
    progress: Callable[[str], None]
    """Called with what the rank begins to do, so that others see whether it hangs."""
    keep: Callable[[], None]
    """Called when the training has a checkpoint of all ranks."""

    @property
    def seed(self) -> int:
        """Of weights and of the order of the data."""
        seed = self.settings.seed
        return self.job.workload.seed if seed is None else seed


def make_chunks(setup: Setup) -> StageChunks:
    """This rank's part of the model, with weights that mean nothing yet."""
    job, standing, world = setup.job, setup.standing, setup.world
    workload, stage = job.workload, standing.place.stage
    split, chunks = workload.parallelism.split, workload.chunks
    shapes = chunk_shapes(split, chunks)
    models = [
        StageModel(
            workload.model,
            shard_of(workload.model, workload.parallelism, workload.sequence_length),
            standing.groups.mesh,
            shapes[stage, chunk],
            world.dtype,
            recompute=workload.activation_checkpointing,
            graph=job.graph,
            default_sm_count=workload.testbed.default_collective_sm_count,
        )
        for chunk in range(chunks)
    ]
    return StageChunks([model.to(world.device) for model in models], first_layers(split, chunks, stage))


def make_pipeline(setup: Setup, stage: StageChunks) -> Pipeline:
    """The pipeline that `stage` is a part of."""
    job, standing, world = setup.job, setup.standing, setup.world
    workload, place = job.workload, standing.place
    return Pipeline(
        stage.chunks,
        StagePlace(
            stage=place.stage,
            stages=workload.parallelism.pp,
            group=standing.lines.stages,
            device=world.device,
        ),
        Shapes(
            num_microbatches=workload.num_microbatches,
            microbatch_size=workload.microbatch_size,
            tokens=workload.sequence_length // workload.parallelism.cp,
            hidden_size=workload.model.hidden_size,
            dtype=world.dtype,
        ),
        actions_of(workload, job.plan),
        job.schedules(place.stage),
        PlanFollower(
            planned_steps(workload, job.plan, place.stage),
            setup.clocks,
            world.wait_for_computation,
            setup.progress,
        ),
    )
