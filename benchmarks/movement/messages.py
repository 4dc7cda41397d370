"""Bytes of the messages that the engine sends between stages, beside those that a plan counts.

Ranks of gloo run one iteration of a workload in its own layout, whose model and batches are scaled down to what a CPU
computes in seconds, in fp32; every tensor that a rank begins to send is counted. The plan's count is that of
`kareus.pipeline.transfers` for the same scaled workload: a message for every microbatch and neighbouring stage.
"""

import datetime
import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from kareus.launch.mesh import coordinate_of
from kareus.launch.process_groups import make_process_groups
from kareus.model.communicators.choice import Library
from kareus.pipeline.transfers import boundary_message
from kareus.update.config import IterationConfig
from kareus.workload.config import Workload
from kareus.workload.slices import cut
from movement.pipelines import make_pipeline, run_iteration

HEADS, HEAD_DIM, VOCABULARY = 8, 8, 64
MICROBATCH_SIZE, SEQUENCE_LENGTH = 2, 64
TIMEOUT = datetime.timedelta(minutes=10)


def scaled(workload: Workload) -> Workload:
    """Return the workload in its layout, a block on each stage, with few values and without the update of weights."""
    parallelism = workload.parallelism
    model = replace(
        workload.model,
        hidden_size=HEADS * HEAD_DIM,
        intermediate_size=HEADS * HEAD_DIM,
        num_layers=parallelism.pp,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCABULARY,
        layers_per_stage={},
    )
    return replace(
        workload,
        model=model,
        parallelism=replace(parallelism, layers_per_stage=(1,) * parallelism.pp),
        iteration=IterationConfig(include_update=False),
        microbatch_size=MICROBATCH_SIZE,
        sequence_length=SEQUENCE_LENGTH,
    )


def message_ratios(workload: Workload) -> list[float]:
    """Return what each rank sends in an iteration over what the plan counts.

    Args:
        workload: with at least two stages, one chunk on each, and few enough GPUs for processes of this machine.
    """
    multiprocessing.set_forkserver_preload(["__main__", __name__])
    ranks, parallelism = workload.parallelism.gpus, workload.parallelism
    message = boundary_message(cut(workload, "pipeline"), value_bytes=torch.float32.itemsize)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _run_rank, (workload, Path(folder)), nprocs=ranks, start_method="forkserver"
        )
        sent = [int((Path(folder) / f"rank-{rank}").read_text()) for rank in range(ranks)]
    ratios = []
    for rank, sent_bytes in enumerate(sent):
        stage = coordinate_of(rank, parallelism, ranks).stage
        neighbours = (stage > 0) + (stage < parallelism.pp - 1)
        ratios.append(sent_bytes / (message.sent_bytes * workload.num_microbatches * neighbours))
    return ratios


@contextmanager
def noted_sends() -> Iterator[list[int]]:
    """Note the bytes of every tensor that this process begins to send."""
    begin = dist.P2POp.__init__
    sent: list[int] = []

    def note(self: dist.P2POp, op: object, tensor: Tensor, *arguments: object, **options: object) -> None:
        begin(self, op, tensor, *arguments, **options)
        if op is dist.isend:
            sent.append(tensor.nbytes)

    with mock.patch.object(dist.P2POp, "__init__", note):
        yield sent


def _run_rank(rank: int, workload: Workload, folder: Path) -> None:
    """Run an iteration over gloo, and write how many bytes were sent."""
    torch.set_num_threads(1)
    ranks = workload.parallelism.gpus
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    coordinate = coordinate_of(rank, workload.parallelism, ranks)
    groups = make_process_groups(
        coordinate, workload.parallelism, Library.GLOO, scratch_bytes=0, tie_embeddings=workload.model.tie_embeddings
    )
    with noted_sends() as sent:
        run_iteration(make_pipeline(rank, workload, groups), workload, rank)
    (folder / f"rank-{rank}").write_text(str(sum(sent)))
    dist.destroy_process_group()
