"""On real GPUs every method's plan is trained, and what its ranks took becomes one table."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from helpers import trainings
from helpers.fake_device import FakeDevice
from helpers.trainings import here, planned, tiny_workload

from kareus.artifacts.tables import read_table
from kareus.cli import main
from kareus.device.claims import FOLDER_VARIABLE
from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool, TestbedKind
from kareus.training import clocks, end_to_end_stage
from kareus.training.tables import ITERATIONS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workload of one GPU that was measured on a real one."""
    cuda = CudaConfig(collectives=CudaCollectives.LOOPBACK, clocks=ClockPolicy.DEFAULT, pool=GpuPool.SAME)
    testbed = dataclasses.replace(tiny_workload().testbed, kind=TestbedKind.CUDA, cuda=cuda)
    monkeypatch.setattr(trainings, "TESTBED", dataclasses.replace(trainings.TESTBED, kind="cuda"))
    planned(tmp_path / "real", tiny_workload(testbed=testbed))
    return tmp_path / "real"


def test_ranks_of_all_plans_are_in_one_table_at_default_clocks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    device = FakeDevice(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.setattr(clocks, "gpu_of", lambda cpu: device)

    def launch(arguments: Sequence[str], ranks: int) -> None:
        started.append(ranks)
        assert here(*arguments[1:]) == 0

    monkeypatch.setattr(end_to_end_stage, "launch", launch)
    monkeypatch.setattr(end_to_end_stage, "check_machine", lambda workload, communicator: None)
    monkeypatch.setattr(end_to_end_stage, "ITERATIONS_OF_A_RUN", 4)
    output = folder / "engine/end-to-end/iterations.parquet"
    assert main(["stage", "end-to-end", str(folder), "--output", str(output), "--force"]) == 0
    assert started == [1, 1]
    rows = read_table(output, ITERATIONS)
    assert rows.group_by("method", maintain_order=True).agg(pl.len()).rows() == [("sequential", 4), ("kareus", 4)]
    assert rows["loss"].is_finite().all()
    assert rows["energy_j"].null_count() == 0
    assert device.calls() == []


def test_training_by_a_plan_of_real_gpus_asks_for_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "99")  # no machine has so many GPUs
    assert main(["train", str(folder / "plan/fastest.json"), "--iterations", "1", "--output", str(tmp_path)]) == 2
    assert "--communicator nccl: needs a GPU for each rank" in capsys.readouterr().err
