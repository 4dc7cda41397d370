"""One rank of a training: it joins the process group, runs all iterations, and writes the last checkpoint."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from kareus.artifacts.locks import lock_until_exit
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.device.protocol import Device
from kareus.errors import ConfigError, EngineError
from kareus.launch.compute_device import compute_dtype, select_device, synchronize
from kareus.launch.heartbeats import Patience
from kareus.launch.mesh import coordinate_of
from kareus.launch.process_groups import init_process_groups
from kareus.launch.rendezvous import Rendezvous, find_ranks
from kareus.launch.watch import watched
from kareus.model.communicators.choice import Library
from kareus.model.communicators.process_group import ProcessGroupCommunicator
from kareus.partition.config import subject_of
from kareus.runtime.boundary import boundary_shapes
from kareus.training.checkpoint import RankCheckpoints
from kareus.training.clocks import device_and_clocks
from kareus.training.connecting import block_messages, connect_group, connect_stages, weight_messages
from kareus.training.job import TrainingJob
from kareus.training.recorder import IterationRecorder, identity, recorded_in
from kareus.training.samples import FileSamples, Samples, SyntheticSamples
from kareus.training.settings import TrainingSettings
from kareus.training.setup import RankSetup, stage_place, training_seed
from kareus.training.text import tokenised
from kareus.training.tokens import open_tokens
from kareus.training.trainer import Trainer

logger = logging.getLogger(__name__)


def train(
    read_job: Callable[[], tuple[TrainingJob, TrainingSettings]], communicator: str | None, patience: Patience
) -> None:
    """Train as one rank; all ranks call this with the same arguments.

    Args:
        read_job: reads what is trained and how. It is called once ranks are watched, so that its error is printed once.
        communicator: a `Library`; None takes the one of the job.
        patience: timeouts of ranks.

    Raises:
        KareusError: the training cannot start, or go on. With several ranks, rank 0 prints it and all end.
    """
    started = find_ranks()
    try:
        with (
            watched(started.store, started.rank, started.world_size, "kareus train", patience) as monitor,
            _one_line_out_of_memory(started.rank),
        ):
            rendezvous = started.for_start(monitor.run)
            job, settings = read_job()
            library = Library(communicator or job.communicator)
            device = select_device(library)
            coordinate = coordinate_of(rendezvous.rank, job.workload.parallelism, rendezvous.world_size)
            groups = init_process_groups(rendezvous, coordinate, device, library, job.workload)
            if rendezvous.rank == 0:
                lock_until_exit(settings.output / "lock")
                if device.type == "cpu":
                    graphs = " --cuda-graphs is for GPUs." if settings.cuda_graphs else ""
                    logger.info("CPU: memory-bound operators run one PyTorch operation at a time, not fused.%s", graphs)
            with device_and_clocks(job, device, coordinate, monitor, settings, rendezvous.store) as (gpu, clocks):
                setup = RankSetup(
                    job=job,
                    settings=settings,
                    communicator=library,
                    rendezvous=rendezvous,
                    coordinate=coordinate,
                    groups=groups,
                    device=device,
                    gpu=gpu,
                    clocks=clocks,
                    monitor=monitor,
                    samples=_samples(job, settings),
                    recorder=_recorder(job, settings, rendezvous.rank, gpu),
                    checkpoints=_checkpoints(job, settings, rendezvous, monitor.run),
                )
                _connect(setup)
                Trainer(setup).run()
    finally:
        if started.world_size == 1 and dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _one_line_out_of_memory(rank: int) -> Iterator[None]:
    """Replace PyTorch's error where the training does not fit by one of one line."""
    try:
        yield
    except RuntimeError as error:  # PyTorch's pipelines wrap what a forward raises
        if not any(isinstance(each, torch.OutOfMemoryError) for each in (error, error.__cause__)):
            raise
        raise EngineError(
            f"rank {rank}: the training does not fit into the memory of its GPU; end what else runs on it, or plan a "
            "smaller microbatch."
        ) from error


def _samples(job: TrainingJob, settings: TrainingSettings) -> Samples:
    workload, seed = job.workload, training_seed(job, settings)
    vocab_size = workload.model.vocab_size
    if settings.data == "synthetic":
        return SyntheticSamples(vocab_size, workload.sequence_length, seed)
    path = Path(settings.data)
    checks = os.environ.get("LOCAL_RANK", "0") == "0"  # once a machine; no other rank trains before it is done
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


def _recorder(job: TrainingJob, settings: TrainingSettings, rank: int, gpu: Device | None) -> IterationRecorder:
    provenance = Provenance(
        config_hash=content_hash(job.workload),
        testbed=identity(gpu),
        seed=training_seed(job, settings),
        subject=subject_of(job.workload),
    )
    return IterationRecorder(recorded_in(settings.output, rank), provenance)


def _checkpoints(job: TrainingJob, settings: TrainingSettings, rendezvous: Rendezvous, run: str) -> RankCheckpoints:
    return RankCheckpoints(
        folder=settings.output / "checkpoints",
        rank=rendezvous.rank,
        ranks=rendezvous.world_size,
        run=run,
        subject=job.checkpoint_subject(training_seed(job, settings)),
    )


def _connect(setup: RankSetup) -> None:
    """Have NCCL connect all groups, for all numbers of SMs, before anything is timed: it takes seconds.

    All ranks go through the groups in this order, so that none waits for another in a circle.
    """
    if setup.device.type == "cpu":
        return
    groups, workload = setup.groups, setup.job.workload
    messages = block_messages(workload)
    for communicator in (groups.mesh.tp, groups.mesh.cp, groups.mesh.ep):
        if communicator is not None:
            connect_group(communicator, messages[communicator.axis], _sm_counts(setup), setup.device)
    if groups.mesh.counts is not None:
        groups.mesh.counts.all_gather((torch.zeros(1, device=setup.device),)).wait()
    _connect_weights(setup)
    connect_stages(stage_place(setup), boundary_shapes(workload, compute_dtype(setup.device)), workload.chunks)
    synchronize(setup.device)


def _connect_weights(setup: RankSetup) -> None:
    """Connect the groups that sum gradients and gather weights."""
    groups, workload = setup.groups, setup.job.workload
    of_weights = weight_messages(workload, setup.coordinate.stage)
    own_groups = {
        "data": groups.data,
        "expert-data": groups.expert_data,
        "ends": groups.tied_embeddings,
        "cp": groups.mesh.cp,
        "tp": groups.mesh.tp,
    }
    for name, of_axis in own_groups.items():
        if of_axis is not None:
            connect_group(of_axis, of_weights[name], {None}, setup.device)
    for group in (groups.pipeline, groups.tensor, groups.experts):
        if group is not None:
            dist.all_reduce(torch.zeros(1, device=setup.device), group=group)
    for name, sharers in (("shards", groups.optimizer_shards), ("expert-shards", groups.expert_shards)):
        if sharers is not None:
            shards = ProcessGroupCommunicator(name, sharers)
            connect_group(shards, of_weights[name], {None}, setup.device)


def _sm_counts(setup: RankSetup) -> set[int | None]:
    """Return the SM counts of this rank's plan, the default one of collectives outside of it, and NCCL's own choice."""
    plan = setup.job.plan
    of_stage = plan.stages[setup.coordinate.stage].instructions if plan else ()
    planned = {choice.sm_count for instruction in of_stage for choice in instruction.partitions}
    return {*planned, setup.job.workload.testbed.default_collective_sm_count, None}
