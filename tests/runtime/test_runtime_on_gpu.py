"""The engine on one GPU, whose other ranks a loopback stands for."""

import dataclasses

import pytest
import torch
from helpers.worlds import LAYERS, QWEN, degrees, departure, gradients_of, graph_of

from kareus.graph.recomputation import Recomputation
from kareus.model.communication import Mesh
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.shards import shard_of
from kareus.partition.detect import detect_partitions
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import SEQUENTIAL, StageModel
from kareus.schedule.records import Choice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

TOKENS = 256
BF16_TOLERANCE = 0.03


def test_partitioned_overlap_equals_sequential_within_bf16() -> None:
    model = dataclasses.replace(QWEN, hidden_size=512, intermediate_size=1024, head_dim=64)
    parallelism = degrees(tp=2, cp=2)
    graph = graph_of(model, parallelism)
    choices = tuple(
        Choice(partition=p.name, sm_count=4 + n, launch=p.operators[n % len(p.operators)].name)
        for n, p in enumerate(detect_partitions(graph, recomputation=Recomputation.STAGE))
    )
    shard = shard_of(model, parallelism, 2 * TOKENS)
    mesh = Mesh(tp=LoopbackCommunicator("tp", 2), cp=LoopbackCommunicator("cp", 2))
    middle = StageShape(layers=LAYERS, first=False, last=False)
    stage = StageModel(
        model, shard, mesh, middle, torch.bfloat16, recomputation=Recomputation.STAGE, graph=graph, default_sm_count=20
    )
    stage = stage.cuda()
    hidden = torch.randn(3, shard.tokens, shard.hidden_size, dtype=torch.bfloat16, device="cuda")
    overlap = Schedule(Execution.OVERLAP, choices)
    results = []
    for schedule in (SEQUENTIAL, MicrobatchSchedule(overlap, overlap)):
        entered = hidden.clone().requires_grad_()
        out = stage(entered, None, schedule)
        out.backward(torch.ones_like(out))
        results.append({"out": out.detach(), "hidden": entered.grad, **gradients_of(stage)})
    assert departure(results[1], results[0]) <= BF16_TOLERANCE
