"""Whatever an iteration computes with is on the device of its stage, and nothing within it waits for that device.

The device is `meta`, which has shapes and no memory: as on a GPU an operation on tensors of it and of the CPU is a
mistake, reading a value back is one too, and a graph of autograd works. So this needs no GPU, and cannot tell a wrong
result.
"""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from helpers.worlds import LAYERS, LLAMA, QWEN, degrees, graph_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kareus.graph.recomputation import Recomputation
from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import Mesh
from kareus.model.communicators import loopback
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.config import Model
from kareus.model.shards import shard_of
from kareus.partition.detect import detect_partitions
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import SEQUENTIAL, StageModel
from kareus.schedule.records import Choice
from kareus.training.bucket_reduction import BucketReduction
from kareus.training.optimizer import Optimizer, clip, whole_norm
from kareus.training.optimizer_sharding import OptimizerSharding, weight_gradients
from kareus.training.settings import OptimizerSettings

DEVICE = torch.device("meta")
CPU = torch.device("cpu")
GROUPS = degrees(tp=2, cp=2)
ALONE: Any = None
"""A line of one rank."""


class Placed(TorchDispatchMode):
    """Refuses operations that are no good on a GPU; scalars on the CPU are, as a kernel takes them along."""

    def __torch_dispatch__(self, operation: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        result = operation(*given, **(options or {}))
        taken = {t.device for t in tensors(given, options) if t.dim() or t.device != CPU}
        made = {t.device for t in tensors(result) if t.numel()}
        assert len(taken | made) < 2, f"{operation} of {taken} makes {made}"
        assert operation is not torch.ops.aten._local_scalar_dense.default, "waits for the device"
        assert CPU not in made, f"{operation} makes a tensor on the CPU"
        return result


class SameStream:
    """Moves in the place of a GPU's kernel, with what that asks for."""

    def start(self, moves: Any, sm_count: int, *, adds: bool) -> Any:
        assert all(t.is_contiguous() for move in moves for t in move)
        assert all(source.dtype is target.dtype for source, target in moves)
        loopback._copy_all(moves, adds=adds)
        return self

    def wait(self) -> None:
        """Nothing was put off."""


@pytest.fixture(autouse=True)
def _on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_CpuEngine", SameStream)


@pytest.fixture(autouse=True)
def _without_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors have no memory that Triton's kernels could work on; what is allocated for them is seen."""
    if find_spec("triton") is not None:
        from triton.runtime.jit import JITFunction  # noqa: PLC0415 - where Triton is installed

        monkeypatch.setattr(JITFunction, "run", lambda *_, **__: None)


def tensors(*values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def stage_of(model: Model, *, recomputation: Recomputation = Recomputation.STAGE) -> tuple[StageModel, Mesh]:
    mesh = Mesh(tp=LoopbackCommunicator("tp", GROUPS.tp), cp=LoopbackCommunicator("cp", GROUPS.cp))
    stage = StageModel(
        model,
        shard_of(model, GROUPS, 32),
        mesh,
        StageShape(layers=LAYERS, first=True, last=True),
        torch.bfloat16,
        recomputation=recomputation,
        graph=graph_of(model, GROUPS),
        default_sm_count=20,
    )
    return stage.to(DEVICE), mesh


def overlapped(model: Model, *, recomputation: Recomputation) -> MicrobatchSchedule:
    partitions = detect_partitions(graph_of(model, GROUPS), recomputation=recomputation)
    choices = tuple(Choice(partition=p.name, sm_count=4, launch=p.operators[-1].name) for p in partitions)
    return MicrobatchSchedule(*[Schedule(Execution.OVERLAP, choices)] * 2)


@pytest.mark.parametrize("recomputation", list(Recomputation))
@pytest.mark.parametrize("model", [QWEN, LLAMA], ids=lambda model: model.name)
def test_microbatches_stay_on_the_device_without_a_wait_for_it(model: Model, recomputation: Recomputation) -> None:
    stage, _ = stage_of(model, recomputation=recomputation)
    ids = torch.zeros(3, 16, dtype=torch.long, device=DEVICE)
    for schedule in (SEQUENTIAL, overlapped(model, recomputation=recomputation)):
        with Placed():
            loss = stage(ids, ids, schedule)
            loss.backward()
        assert (loss.device, loss.dtype) == (DEVICE, torch.float32)
    assert {gradient.dtype for _, gradient in weight_gradients(stage)} == {torch.float32}


def test_between_iterations_only_the_norm_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, mesh = stage_of(QWEN)
    sharding = OptimizerSharding(stage, ALONE)
    optimizer = Optimizer(sharding, OptimizerSettings(weight_decay=0.1, largest_norm=1.0))
    groups = ProcessGroups(
        mesh=mesh,
        data=LoopbackCommunicator("dp", 2),
        pipeline=ALONE,
        pipeline_backward=ALONE,
        tensor=ALONE,
        tied_embeddings=None,
        optimizer_shards=ALONE,
    )
    with Placed():
        BucketReduction(stage, sharding, groups).finish()
        norm = whole_norm(sharding, QWEN, groups, counts_head=True)
        with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"):
            clip([norm], norm, 1.0)
        monkeypatch.setattr(torch, "isfinite", lambda norm: True)
        clip([gradient for _, gradient in weight_gradients(stage)], norm, 1.0)
    optimizer.step(norm, 1e-3)  # which counts its steps on the CPU
    assert {t.device for t in tensors(optimizer.weights())} == {DEVICE}
    assert {t.dtype for t in tensors(optimizer.weights())} == {torch.float32}


@pytest.mark.parametrize(
    "mistake",
    [
        lambda on_device: on_device + torch.ones(2),
        lambda on_device: on_device.new_ones(2, device=CPU),
        lambda on_device: torch.ones(2).to(DEVICE),
        lambda on_device: on_device.sum().item(),
    ],
    ids=["mixes", "makes", "copies", "waits"],
)
def test_a_mistake_would_be_seen(mistake: Any) -> None:
    on_device = torch.ones(2, device=DEVICE)
    with Placed(), pytest.raises((AssertionError, RuntimeError)):
        mistake(on_device)
