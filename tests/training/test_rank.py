"""NCCL connects every group before anything is timed; what a CPU can show of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.trainings import tiny_workload

from kareus.launch.mesh import MeshCoordinate
from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import Mesh
from kareus.model.communicators.nccl import NcclCommunicator
from kareus.training.rank import _connect

DEFAULT = tiny_workload().testbed.default_collective_sm_count


class Prepared(NcclCommunicator):
    def __init__(self, axis: str, log: list[tuple[str, Any]]) -> None:
        self.axis, self.log = axis, log

    def prepare(self, sm_counts: Any) -> None:
        self.log.append((self.axis, set(sm_counts)))


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
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: log.append((group, str(tensor.device))))
    setup = SimpleNamespace(
        job=SimpleNamespace(plan=plan, workload=tiny_workload()),
        device=torch.device("meta"),
        coordinate=MeshCoordinate(stage=1, replica=0, cp=0, tp=0),
        groups=ProcessGroups(
            mesh=Mesh(tp, cp),
            data=dp,
            pipeline="stages",
            tensor="tensor",
            tied_embeddings=ends,
            optimizer_shards="sharers",
        ),
    )
    _connect(setup)
    on_operators = own | {DEFAULT, None}
    assert log == [
        ("tp", on_operators),
        ("cp", on_operators),
        ("dp", {None}),
        ("ends", {None}),
        ("stages", "meta"),
        ("tensor", "meta"),
        ("sharers", "meta"),
    ]
