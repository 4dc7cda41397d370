"""One rank of a training, from finding the others to the last checkpoint."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from kareus.artifacts.files import lock_until_exit
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.device.protocol import Device
from kareus.errors import ConfigError, EngineError
from kareus.launch.watch import Patience, watched
from kareus.launch.world import World, join, meet, world_of
from kareus.model.communicators.choice import Library
from kareus.model.communicators.nccl import NcclCommunicator
from kareus.partition.config import subject_of
from kareus.training.checkpoint import Place
from kareus.training.clocks import device_and_clocks
from kareus.training.data.samples import FileSamples, Samples, SyntheticSamples
from kareus.training.data.text import tokenised
from kareus.training.data.tokens import open_tokens
from kareus.training.job import Job, Training
from kareus.training.recorder import Recorder, identity
from kareus.training.settings import TrainingSettings
from kareus.training.setup import Setup
from kareus.training.trainer import Trainer
from kareus.workload.config import Workload


def train(make_training: Callable[[], Training], communicator: str, patience: Patience) -> None:
    """Train as one rank; all ranks call this with the same arguments.

    Args:
        make_training: reads what is asked for. Ranks watch each other by then, so that one says what is wrong with it.
        communicator: a `Library`.
        patience: how long a rank may give no sign.

    Raises:
        KareusError: it cannot start, or go on. With several ranks, rank 0 says it and all end.
    """
    met = meet()
    try:
        with watched(met.store, met.rank, met.size, "kareus train", patience) as watch, _fitting(met.rank):
            world = world_of(met, Library(communicator), watch.run)
            training = make_training()
            job, settings = training.job, training.settings
            standing = join(world, job.workload)
            if world.rank == 0:
                lock_until_exit(settings.output / "lock")
            with device_and_clocks(job, world, standing.place, watch, training.clocks) as (device, sent_to):
                setup = Setup(
                    job=job,
                    settings=settings,
                    optimizer=training.optimizer,
                    learning_rate=training.learning_rate,
                    world=world,
                    standing=standing,
                    samples=_samples(job.workload, settings),
                    clocks=sent_to,
                    device=device,
                    recorder=_recorder(job, settings, world, device),
                    checkpoints=_checkpoints(job, settings, world, watch.run),
                    progress=watch.progress,
                    keep=watch.keep,
                )
                _connect(setup)
                Trainer(setup).run()
    finally:
        if met.size == 1 and dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _fitting(rank: int) -> Iterator[None]:
    """Say in one line that the training does not fit."""
    try:
        yield
    except RuntimeError as error:  # PyTorch's pipelines wrap what a forward raises
        if not any(isinstance(each, torch.OutOfMemoryError) for each in (error, error.__cause__)):
            raise
        raise EngineError(
            f"rank {rank}: the training does not fit into the memory of its GPU; end what else runs on it, or plan a "
            "smaller microbatch."
        ) from error


def _samples(workload: Workload, settings: TrainingSettings) -> Samples:
    vocab_size, seed = workload.model.vocab_size, _seed(workload, settings)
    if settings.data == "synthetic":
        return SyntheticSamples(vocab_size, workload.sequence_length, seed)
    path = Path(settings.data)
    checks = os.environ.get("LOCAL_RANK", "0") == "0"  # one rank of a machine; no other trains before it has
    if path.suffix == ".bin":
        file = open_tokens(path, check_content=checks)
    else:
        file = tokenised([path], settings.tokenizer, settings.output / "tokens", check_content=checks)
    if file.header.vocab_size > vocab_size:
        raise ConfigError(
            f"--data {settings.data}: has a vocabulary of {file.header.vocab_size} ({file.header.tokenizer}), "
            f"{workload.model.name} one of {vocab_size}; take the model's own tokenizer."
        )
    return FileSamples(file, workload.sequence_length, seed)


def _recorder(job: Job, settings: TrainingSettings, world: World, device: Device | None) -> Recorder:
    provenance = Provenance(
        config_hash=content_hash(job.workload),
        testbed=identity(device),
        seed=_seed(job.workload, settings),
        subject=subject_of(job.workload),
    )
    return Recorder(settings.output / f"rank-{world.rank:05d}.parquet", provenance)


def _checkpoints(job: Job, settings: TrainingSettings, world: World, run: str) -> Place:
    return Place(
        folder=settings.output / "checkpoints",
        rank=world.rank,
        ranks=world.size,
        run=run,
        subject=job.checkpoint_subject(_seed(job.workload, settings)),
    )


def _connect(setup: Setup) -> None:
    """Have NCCL connect all groups, for all numbers of SMs, before anything is timed: it takes seconds.

    All ranks go through the groups in this order, so that none waits for another in a circle.
    """
    if setup.world.device.type == "cpu":
        return
    groups, lines = setup.standing.groups, setup.standing.lines
    for communicator, sm_counts in (
        (groups.mesh.tp, _sm_counts(setup)),
        (groups.mesh.cp, _sm_counts(setup)),
        (groups.replicas, {None}),
        (lines.ends, {None}),
    ):
        if isinstance(communicator, NcclCommunicator):
            communicator.prepare(sm_counts)
    for line in (lines.stages, lines.tensor, lines.sharers):
        if line is not None:
            dist.all_reduce(torch.zeros(1, device=setup.world.device), group=line)


def _sm_counts(setup: Setup) -> set[int | None]:
    """What this rank's plan asks for, what a collective gets where no plan speaks of it, and NCCL's own choice."""
    plan = setup.job.plan
    own = plan.stages[setup.standing.place.stage].instructions if plan else ()
    planned = {choice.sm_count for instruction in own for choice in instruction.partitions}
    return {*planned, setup.job.workload.testbed.default_collective_sm_count, None}


def _seed(workload: Workload, settings: TrainingSettings) -> int:
    return workload.seed if settings.seed is None else settings.seed
