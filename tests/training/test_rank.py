"""NCCL connects every group before anything is timed; what a CPU can show of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.trainings import tiny_workload

from kareus.graph.records import Scope
from kareus.launch.mesh import MeshCoordinate
from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import Mesh
from kareus.model.communicators.nccl import NcclCommunicator
from kareus.model.parameters import scope_parameters
from kareus.training import rank
from kareus.training.rank import _connect

DEFAULT = tiny_workload().testbed.default_collective_sm_count


class Prepared(NcclCommunicator):
    def __init__(self, axis: str, log: list[tuple[str, Any]]) -> None:
        self.axis, self.log, self.size = axis, log, 2

    def all_reduce(self, tensors: Any, sm_count: int | None = None, operation: Any = None) -> Any:
        return self._note("allreduce", tensors, 1, sm_count)

    def all_gather(self, tensors: Any, sm_count: int | None = None) -> Any:
        return self._note("allgather", tensors, self.size, sm_count)

    def reduce_scatter(self, tensors: Any, sm_count: int | None = None) -> Any:
        return self._note("reducescatter", tensors, 1, sm_count)

    def _note(self, kind: str, tensors: Any, parts: int, sm_count: int | None) -> Any:
        self.log.append((self.axis, kind, [parts * t.nbytes for t in tensors], sm_count))
        return SimpleNamespace(wait=lambda: None)


def planned(*sm_counts: int) -> SimpleNamespace:
    choices = tuple(SimpleNamespace(sm_count=n) for n in sm_counts)
    other = SimpleNamespace(instructions=(SimpleNamespace(partitions=(SimpleNamespace(sm_count=29),)),))
    return SimpleNamespace(stages=(other, SimpleNamespace(instructions=(SimpleNamespace(partitions=choices),))))


@pytest.mark.parametrize(("plan", "own"), [(None, set()), (planned(3, 12, 3), {3, 12})])
def test_all_groups_are_connected_in_order_for_all_sm_counts(
    plan: Any, own: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[str, Any]] = []
    tp, cp, dp, ends = (Prepared(axis, log) for axis in ("tp", "cp", "dp", "ends"))
    monkeypatch.setattr(rank, "ProcessGroupCommunicator", lambda axis, group: Prepared(axis, log))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: log.append((group, str(tensor.device))))
    setup = SimpleNamespace(
        job=SimpleNamespace(plan=plan, workload=tiny_workload()),
        device=torch.device("meta"),
        coordinate=MeshCoordinate(stage=1, replica=0, cp=0, tp=0),
        groups=ProcessGroups(
            mesh=Mesh(tp, cp),
            data=dp,
            pipeline="stages",
            pipeline_backward="stages backward",
            tensor="tensor",
            tied_embeddings=ends,
            optimizer_shards="sharers",
        ),
    )
    _connect(setup)
    on_operators = [None, *sorted(own | {DEFAULT})]
    sequences = (2, 1)  # of a microbatch and of a nanobatch, 16 tokens each, in bf16
    hidden, keys = 16 * 32 * 2, 16 * 2 * 16 * 2  # values are as large as keys
    kinds = ("allgather", "reducescatter")
    workload = tiny_workload()
    block = scope_parameters(workload.model, workload.parallelism)[Scope.BLOCK]
    assert log == [
        *(("tp", "allreduce", [n * hidden], count) for count in on_operators for n in sequences),
        *(("cp", kind, [n * keys] * 2, count) for count in on_operators for kind in kinds for n in sequences),
        ("dp", "allreduce", [4 * block], None),  # gradients of a block in fp32; this stage has neither end
        ("ends", "allreduce", [4 * 264 * 32], None),
        ("stages", "meta"),
        ("tensor", "meta"),
        ("shards", "reducescatter", [4 * block], None),
        ("shards", "allgather", [2 * block], None),
    ]
