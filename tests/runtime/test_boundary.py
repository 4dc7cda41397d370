"""Messages between stages are those that a plan counts, byte by byte, on every rank of a tensor-parallel group."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from helpers.cpu_pipelines import make_pipeline, run_iteration
from helpers.pipelines import pipeline_slice
from helpers.trainings import FOUR_LAYERS, tiny_workload
from helpers.worlds import gloo_groups, spawn
from torch import Tensor

from kareus.frontiers.config import IterationConfig
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.pipeline.transfers import boundary_message, gathered_parts
from kareus.runtime import boundary
from kareus.workload.config import Workload
from kareus.workload.slices import cut

INTERLEAVED = PipelineConfig(schedule=PipelineSchedule.INTERLEAVED, chunks=2, deadlines=2)
WITHOUT_UPDATE = IterationConfig(include_update=False)


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


def sent_and_gathered(rank: int, workload: Workload) -> tuple[list[int], list[int]]:
    """Run one iteration; return the bytes of every message sent, and of every whole gathered on arrival."""
    whole_of = boundary._whole
    gathered: list[int] = []

    def note_whole(*arguments: Any) -> Tensor:
        whole = whole_of(*arguments)
        gathered.append(whole.nbytes)
        return whole

    with noted_sends() as sent, mock.patch.object(boundary, "_whole", note_whole):
        run_iteration(make_pipeline(rank, workload, gloo_groups(rank, workload.parallelism)), workload, rank)
    return sent, gathered


def check_cases(rank: int) -> None:
    for shared in (False, True):
        for options, messages in (({}, 1), ({"pipeline": INTERLEAVED}, 3)):
            workload = tiny_workload(
                tp=2,
                pp=2,
                model=FOUR_LAYERS,
                sequence_parallel=shared,
                num_microbatches=4,
                iteration=WITHOUT_UPDATE,
                **options,
            )
            message = boundary_message(cut(workload, "pipeline"), value_bytes=torch.float32.itemsize)
            hidden = 2 * 16 * workload.model.hidden_size * torch.float32.itemsize
            assert message.sent_bytes == hidden // 2, "each rank of the group sends its half"
            sent, gathered = sent_and_gathered(rank, workload)
            assert sent == [message.sent_bytes] * 4 * messages
            expected = [] if shared else [message.sent_bytes + message.gathered_bytes] * 4 * messages
            assert gathered == expected, "what arrives is gathered where it is not what the stage needs"


def test_ranks_send_the_bytes_that_plans_count(tmp_path: Path) -> None:
    spawn(4, check_cases, tmp_path)


@pytest.mark.parametrize(("tp", "shared", "parts"), [(1, False, 1), (4, False, 4), (4, True, 1), (5, False, 1)])
def test_hidden_states_are_sent_in_parts_if_they_divide(tp: int, shared: bool, parts: int) -> None:
    own = pipeline_slice(tp=tp)
    parallelism = dataclasses.replace(own.parallelism, sequence_parallel=shared)
    assert gathered_parts(4096, parallelism) == parts


def test_sequence_parallelism_gathers_nothing_on_arrival() -> None:
    own = pipeline_slice(tp=8)
    shared = dataclasses.replace(own, parallelism=dataclasses.replace(own.parallelism, sequence_parallel=True))
    whole = dataclasses.replace(own, parallelism=dataclasses.replace(own.parallelism, sequence_parallel=False))
    assert boundary_message(shared).sent_bytes == boundary_message(whole).sent_bytes
    assert (boundary_message(shared).gathered_bytes, boundary_message(whole).gathered_bytes) == (
        0,
        7 * boundary_message(whole).sent_bytes,
    )
