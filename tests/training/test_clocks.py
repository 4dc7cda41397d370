"""A training locks the clocks of its plan, and whatever ends it leaves the GPU as it found it."""

import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from helpers.fake_device import FakeDevice, kill
from helpers.trainings import here, planned, tiny_workload

from kareus.artifacts.tables import read_table
from kareus.device import nvml
from kareus.device.actuators import Actuator, ActuatorKind
from kareus.device.claims import FOLDER_VARIABLE, claim, setting_of
from kareus.launch.mesh import coordinate_of
from kareus.launch.monitor import RankMonitor
from kareus.plans.file import read_plan
from kareus.runtime.follower import PlanFollower, planned_steps
from kareus.training import clocks
from kareus.training.clocks import device_and_clocks, gpu_of
from kareus.training.job import TrainingJob
from kareus.training.tables import ITERATIONS


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of one rank."""
    return planned(tmp_path_factory.mktemp("planned") / "alone", tiny_workload())


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """The GPU of the training, which runs on a CPU."""
    device = FakeDevice(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.setattr(clocks, "gpu_of", lambda cpu: device)
    return device


def check_free(device: FakeDevice) -> None:
    """Nothing is set, and nobody has the GPU."""
    assert not device.locked.exists()
    assert setting_of(device.uuid) is None
    with claim(device.uuid):
        pass


def test_a_training_locks_planned_clocks_and_frees_the_gpu(plan: Path, device: FakeDevice, tmp_path: Path) -> None:
    assert here(plan, "--iterations", 2, "--output", tmp_path / "run") == 0
    assert set(device.calls()) == {"lock 1410", "lock 1200", "lock 900", "reset"}  # the update at 900
    assert device.calls()[-1] == "reset"
    check_free(device)
    rows = read_table(tmp_path / "run/rank-00000.parquet", ITERATIONS)
    recorded = {change["frequency_mhz"] for row in rows["clocks"] for change in row}
    assert recorded | {900} == {1410, 1200, 900}  # an iteration may end before its last change has come
    assert rows["energy_j"].min() > 0


def test_a_training_at_default_clocks_locks_none_and_has_its_profiles(plan: Path, device: FakeDevice) -> None:
    lasting = Actuator(kind=ActuatorKind.PROFILE, profiles=("max-q",))
    cpu, workload = torch.device("cpu"), tiny_workload()
    coordinate, monitor = coordinate_of(0, workload.parallelism, 1), RankMonitor(0, "program")
    job = TrainingJob(workload=workload, plan=replace(read_plan(plan), actuator=lasting))
    settings, store = SimpleNamespace(clocks=None, strict_clocks=False), dist.HashStore()
    with device_and_clocks(job, cpu, coordinate, monitor, settings, store) as (_, left):
        follower = PlanFollower(planned_steps(workload, job.plan, 0), left, lambda: None)
        for step in planned_steps(workload, job.plan, 0):
            follower.begin(step.key)
        follower.end_iteration()
    assert device.calls() == ["request max-q", "clear max-q"]
    check_free(device)


def test_a_loss_that_is_not_a_number_frees_the_gpu(plan: Path, device: FakeDevice, tmp_path: Path) -> None:
    options = ("--iterations", 50, "--learning-rate", 100, "--weight-decay", 100, "--clip", 1e30)
    assert here(plan, *options, "--output", tmp_path / "run") == 2
    assert device.calls()[-1] == "reset"
    check_free(device)


@pytest.mark.parametrize("strict", [False, True])
def test_a_refused_clock_ends_only_a_strict_training(
    plan: Path, device: FakeDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    device.allowed = False
    options = ("--strict-clocks",) * strict
    assert here(plan, "--iterations", 3, *options, "--output", tmp_path / "run") == 2 * strict
    assert ("goes on at the driver's" in caplog.text) is not strict
    assert "lock" not in "".join(device.calls())
    if not strict:
        rows = read_table(tmp_path / "run/rank-00000.parquet", ITERATIONS)
        assert rows["clocks"].list.len().to_list() == [0, 0, 0]


def test_a_plan_of_clocks_that_the_gpu_has_not_sets_none(
    plan: Path, device: FakeDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.clocks_mhz = (900, 1200)
    assert here(plan, "--iterations", 1, "--output", tmp_path / "run") == 2
    assert "1410 MHz" in capsys.readouterr().err
    assert device.calls() == []


def test_a_signal_frees_the_gpu(plan: Path, device: FakeDevice, tmp_path: Path) -> None:
    def end() -> None:
        while not device.locked.exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    with pytest.raises(SystemExit) as ended:
        here(plan, "--iterations", 10_000, "--output", tmp_path / "run")
    ending.join()
    assert ended.value.code == 128 + signal.SIGTERM
    assert device.calls()[-1] == "reset"
    check_free(device)


@pytest.mark.parametrize("options", [("--clocks", "dry"), ("--clocks", "default"), ("--workload",)])
def test_a_run_after_a_kill_restores_the_clock_and_sets_none(
    plan: Path, device: FakeDevice, tmp_path: Path, options: tuple[str, ...]
) -> None:
    kill(device)
    assert device.clock_mhz() == 1200
    what = (*options, plan.parents[1] / "config/workload.yaml") if options == ("--workload",) else (plan, *options)
    assert here(*what, "--iterations", 1, "--output", tmp_path / "run") == 0
    assert device.calls() == ["lock 1200", "reset"]
    check_free(device)


def test_a_gpu_that_another_run_controls_is_not_trained_on(
    plan: Path, device: FakeDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with claim(device.uuid):
        assert here(plan, "--clocks", "default", "--iterations", 1, "--output", tmp_path / "run") == 2
    assert capsys.readouterr().err.startswith("kareus train: GPU-fake: in use")


def test_the_computing_gpu_is_controlled_however_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = ("fast", "slow")  # in CUDA's order
    devices = tuple(FakeDevice(tmp_path, uuid=f"GPU-{uuid}") for uuid in reversed(uuids))
    monkeypatch.setattr(nvml, "open_devices", lambda: devices)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuids[device.index]))
    for rank, uuid in enumerate(uuids):
        found = gpu_of(torch.device("cuda", rank))
        assert found is not None
        assert found.uuid == f"GPU-{uuid}"


def test_one_rank_of_every_stage_says_what_would_be_set(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    workload, cpu = tiny_workload(dp=2, pp=2), torch.device("cpu")
    for rank in range(4):
        coordinate, monitor = coordinate_of(rank, workload.parallelism, 4), RankMonitor(rank, "program")
        job, settings, store = TrainingJob(workload=workload), SimpleNamespace(clocks="dry"), dist.HashStore()
        with device_and_clocks(job, cpu, coordinate, monitor, settings, store) as (_, dry):
            dry.request(900 + rank)
    assert caplog.messages == [
        "stage 0: would lock the SM clock to 900 MHz",
        "stage 1: would lock the SM clock to 902 MHz",
    ]
