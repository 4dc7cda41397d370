"""What every adapter rests on: order, clocks and records of one rank, told instruction by instruction."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.driving import drive, driven_plan, layout_of, opened
from helpers.fake_device import FakeDevice, wait_until

from kareus.adapters import driver as driver_module
from kareus.adapters import recorder
from kareus.adapters.agreement import Alone
from kareus.adapters.driver import drive_by_plan
from kareus.adapters.recorder import table_path
from kareus.adapters.records import DRIVER
from kareus.adapters.tables import MICROBATCHES, STEPS
from kareus.artifacts.tables import read_table
from kareus.device import claims, yielding
from kareus.device.actuators import Actuator, ActuatorKind
from kareus.device.claims import FOLDER_VARIABLE, claim, setting_of
from kareus.errors import ConfigError, DeviceError, EngineError
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.plans.document import Plan
from kareus.plans.file import write_plan
from kareus.profile.programs import Execution

PLAN = driven_plan()
UPDATED = driven_plan(update=True)


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """The GPU of the rank, which computes on a CPU."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    return FakeDevice(tmp_path)


def check_free(gpu: FakeDevice) -> None:
    """Nothing is set, and nobody has the GPU."""
    assert gpu.calls()[-1] == "reset"
    assert not gpu.locked.exists()
    assert setting_of(gpu.uuid) is None
    with claim(gpu.uuid):
        pass


def test_an_instruction_out_of_order_is_named(gpu: FakeDevice) -> None:
    driver = opened(PLAN, gpu)
    first, second = (key for key, _ in PLAN.stages[0].keyed[1:3])
    with pytest.raises(EngineError) as refused:
        driver.begin(second)
    driver.close()
    assert str(refused.value).startswith(f"{second}: the plan has forward of microbatch 0 on stage 0 here;")
    assert str(first) != str(second)
    assert "lock" not in "".join(gpu.calls())


def test_an_iteration_that_ends_early_is_refused(gpu: FakeDevice) -> None:
    driver = opened(PLAN, gpu)
    key = PLAN.stages[0].keyed[0][0]
    driver.begin(key)
    driver.end(key)
    with pytest.raises(EngineError, match="microbatch 1 on stage 0: planned and "):
        driver.end_iteration()
    driver.close()
    check_free(gpu)


def test_an_iteration_that_failed_is_run_again(
    gpu: FakeDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = opened(UPDATED, gpu, tmp_path / "out")
    drive(driver, UPDATED)
    for key, _ in UPDATED.stages[0].keyed[:3]:
        driver.begin(key)
    driver.abandon_iteration()
    driver.abandon_iteration()  # no other one runs
    drive(driver, UPDATED)
    driver.close()
    assert caplog.messages == ["iteration 1 did not end; what was recorded of it is left out."]
    rows = read_table(table_path(tmp_path / "out", MICROBATCHES, 0), MICROBATCHES)
    assert rows["iteration"].to_list() == [n for n in range(2) for _ in UPDATED.stages[0].instructions]


def test_tables_have_every_instruction_and_its_clock(gpu: FakeDevice, tmp_path: Path) -> None:
    for _ in range(2):  # two starts of one training
        driver = opened(UPDATED, gpu, tmp_path / "out")
        drive(driver, UPDATED, iterations=3)
        driver.close()
    steps = read_table(table_path(tmp_path / "out", STEPS, 0), STEPS)
    assert steps["iteration"].to_list() == list(range(6))
    assert set(steps["tokens"]) == {1024}
    rows = read_table(table_path(tmp_path / "out", MICROBATCHES, 0), MICROBATCHES)
    planned = [(key.microbatch, key.direction, i.frequency_mhz) for key, i in UPDATED.stages[0].keyed]
    assert rows.select("microbatch", "direction", "frequency_mhz").rows() == planned * 6
    assert rows.filter(iteration=0)["start_s"].is_sorted()
    power_w = rows["energy_j"] / rows["time_s"]
    assert power_w.median() == pytest.approx(100.0, rel=0.2)  # of the made-up GPU
    assert rows["time_s"].sum() < steps["time_s"].sum()


def test_tables_are_written_while_a_training_runs(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "WRITE_EVERY_S", 0.0)
    monkeypatch.setattr(recorder, "MOST_ROWS", 3)
    monkeypatch.setattr(recorder, "MOST_ITERATIONS", 2)
    path = table_path(tmp_path / "out", STEPS, 0)
    driver = opened(PLAN, gpu, tmp_path / "out")
    while not path.exists():
        drive(driver, PLAN)
    assert read_table(path, STEPS)["iteration"][0] == 0
    driver.close()
    assert len(read_table(path, STEPS)) == driver.iteration
    rows = read_table(table_path(tmp_path / "out", MICROBATCHES, 0), MICROBATCHES)
    assert set(rows["iteration"]) == {driver.iteration - 2, driver.iteration - 1}


def test_a_plan_of_nanobatches_is_said_to_lose_them(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_module, "gpu_of", lambda cpu: gpu)
    split = driven_plan(execution=Execution.NANOBATCHING)
    keys = [key for key, _ in split.stages[0].keyed]
    drive_by_plan(written(split, tmp_path), layout_of(split), torch.device("cpu"), keys).close()
    (message,) = caplog.messages
    assert message.startswith("plan 'fastest' of made-up: 16 of 16 instructions are planned as two nanobatches")


def test_a_gpu_without_an_energy_counter_is_driven(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(gpu: FakeDevice) -> float:
        raise DeviceError("GPU 0: get_total_energy_consumption failed; see `nvidia-smi -q`.")

    monkeypatch.setattr(FakeDevice, "energy_j", refuse)
    driver = opened(PLAN, gpu, tmp_path / "out")
    drive(driver, PLAN)
    driver.close()
    check_free(gpu)
    assert read_table(table_path(tmp_path / "out", STEPS, 0), STEPS)["energy_j"].to_list() == [None]
    assert caplog.messages[0].endswith("not recorded.")


@pytest.mark.parametrize("refused", ["driver", "claim"])
def test_a_refused_clock_leaves_the_training_to_the_driver(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    """Also of a plan of one clock, of which nothing else is requested after it; in the end it is set again."""
    plan, output = at_one_clock(PLAN, 1200), tmp_path / "out"
    driver = opened(plan, gpu, output)
    drive(driver, plan)
    wait_until(gpu.locked.exists)
    with monkeypatch.context() as patched:
        if refused == "claim":
            shutil.rmtree(tmp_path / "claims")
            patched.setattr(claims, "_open_folder", refuse)
        else:
            driver._follower._frequency_mhz = None  # so that the clock is asked for again
            driver._clocks._controller._last = None  # type: ignore[attr-defined]
            gpu.allowed = False
        wait_until(lambda: drive(driver, plan) or driver._clocks.rests)
        at_the_drivers = driver.iteration
        drive(driver, plan)
        gpu.allowed = True
    drive(driver, plan)
    assert len(caplog.messages) == 1, "it is said once"
    monkeypatch.setattr(yielding, "RETRY_S", 0.0)
    driver._clocks._look_s = 0.0  # type: ignore[attr-defined]  # as after `RETRY_S`
    drive(driver, plan)
    wait_until(lambda: drive(driver, plan) or len(caplog.messages) == 2)
    drive(driver, plan)
    driver.close()
    steps = read_table(table_path(output, STEPS, 0), STEPS)
    assert steps.rows(named=True)[at_the_drivers]["selector"] == DRIVER
    assert steps.rows(named=True)[at_the_drivers]["frequency_mhz"] is None
    assert steps.rows(named=True)[0]["frequency_mhz"] == 1200
    assert steps.rows(named=True)[-1]["selector"] == plan.selector
    assert steps.rows(named=True)[-1]["frequency_mhz"] == 1200
    check_free(gpu)


def refuse(*arguments: object, **named: object) -> int:
    raise OSError(errno.EACCES, "Permission denied")


def test_a_reset_that_is_refused_in_the_end_is_said(gpu: FakeDevice, caplog: pytest.LogCaptureFixture) -> None:
    driver = opened(PLAN, gpu)
    drive(driver, PLAN)
    wait_until(gpu.locked.exists)
    gpu.allowed = False
    driver.close()
    assert caplog.messages[-1].endswith("run `kareus clocks reset`.")
    assert setting_of(gpu.uuid) is not None


def test_results_of_requests_do_not_add_up(gpu: FakeDevice) -> None:
    driver = opened(PLAN, gpu)
    drive(driver, PLAN, iterations=20)
    assert len(driver._clocks._controller._changes) <= 2 * len(PLAN.stages[0].instructions)  # type: ignore[attr-defined]
    driver.close()


def at_one_clock(plan: Plan, frequency_mhz: int) -> Plan:
    """The plan with the same clock for all instructions."""
    stages = (
        replace(stage, instructions=tuple(replace(i, frequency_mhz=frequency_mhz) for i in stage.instructions))
        for stage in plan.stages
    )
    return replace(plan, stages=tuple(stages))


def test_dry_clocks_are_said_and_not_set(gpu: FakeDevice, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    driver = opened(PLAN, gpu, clocks="dry")
    drive(driver, PLAN)
    driver.close()
    assert gpu.calls() == []
    assert [said.startswith("stage 0: would lock ") for said in caplog.messages[:2]] == [True, True]
    assert [said.split()[-2:] for said in caplog.messages[:2]] == [["1410", "MHz"], ["1200", "MHz"]]


def test_a_plan_of_a_power_limit_sets_it_once_and_says_whether_it_held(
    gpu: FakeDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    plan = replace(PLAN, actuator=Actuator(kind=ActuatorKind.POWER, limit_w=500.0))
    write_plan(tmp_path / "plan.json", plan)
    layout = layout_of(plan)
    running = [key for key, _ in plan.stages[0].keyed]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(driver_module, "gpu_of", lambda device: gpu)
        driven = drive_by_plan(tmp_path / "plan.json", layout, torch.device("cpu"), running)
    drive(driven, plan, iterations=2)
    assert setting_of(gpu.uuid) is not None
    driven.close()
    assert gpu.calls() == ["limit 500", "limit 700"]
    assert caplog.messages[-1].endswith("limit of 500 W, which was kept.")


def test_an_unknown_mode_of_clocks_is_refused(gpu: FakeDevice) -> None:
    with pytest.raises(ConfigError, match="clocks='default': not known; allowed: dry, planned"):
        opened(PLAN, gpu, clocks="default")


def test_another_thread_than_the_main_one_is_refused(gpu: FakeDevice) -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(EngineError, match="only the main thread may ask for"):
        pool.submit(opened, PLAN, gpu).result()
    assert gpu.calls() == []


def test_requests_after_a_signal_set_nothing(gpu: FakeDevice) -> None:
    driver = opened(PLAN, gpu)
    keys = [key for key, _ in PLAN.stages[0].keyed]
    driver.begin(keys[0])
    wait_until(gpu.locked.exists)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # as a trainer that ends its iteration first
    signal.raise_signal(signal.SIGTERM)
    wait_until(lambda: not gpu.locked.exists())
    driver.end(keys[0])
    for key in keys[1:]:
        driver.begin(key)
        driver.end(key)
    driver.end_iteration()
    signal.signal(signal.SIGTERM, before)
    driver.close()
    assert gpu.calls() == ["lock 1410", "reset"]
    check_free(gpu)


OTHERS = {
    "stages": (driven_plan(stages=4, gpus=2), "is of 4 stages, this job has 2"),
    "chunks": (driven_plan(chunks=2, schedule=PipelineSchedule.INTERLEAVED), "is of 2 chunks a stage, this job has 1"),
    "microbatches": (driven_plan(microbatches=8), "is of 8 microbatches, this job has 4"),
    "order": (
        driven_plan(schedule=PipelineSchedule.GPIPE),
        "backward of microbatch 0 on stage 0: the plan has forward of microbatch 2 on stage 0 here",
    ),
    "split": (
        driven_plan(schedule=PipelineSchedule.ZERO_BUBBLE_H1),
        "backward of microbatch 0 on stage 0: the plan has input-gradient of microbatch 0 on stage 0 here",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_plan_of_another_layout_sets_no_clock(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(driver_module, "gpu_of", lambda cpu: gpu)
    plan, reason = OTHERS[other]
    running = [key for key, _ in PLAN.stages[0].keyed]
    with pytest.raises(EngineError) as refused:
        drive_by_plan(written(plan, tmp_path), layout_of(PLAN), torch.device("cpu"), running)
    assert reason in str(refused.value)
    assert gpu.calls() == []


@pytest.mark.parametrize("gpus", [1, 8], ids=["more", "fewer"])
def test_a_job_of_other_replicas_keeps_the_clocks_of_passes(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gpus: int
) -> None:
    monkeypatch.setattr(driver_module, "gpu_of", lambda cpu: gpu)
    plan = driven_plan(gpus=gpus, update=True)
    passes = [(key, i) for key, i in UPDATED.stages[0].keyed if key.direction is not Direction.UPDATE]
    keys = [key for key, _ in passes]
    driver = drive_by_plan(written(plan, tmp_path), layout_of(PLAN), torch.device("cpu"), keys, output=tmp_path / "out")
    for _ in range(2):
        for key in keys:
            driver.begin(key)
            driver.end(key)
        driver.end_passes()
        driver.end_step()
    driver.close()
    check_free(gpu)
    assert caplog.messages[0].startswith(f"plan 'fastest' of made-up: is of {gpus} GPUs, this job has 2.")
    rows = read_table(table_path(tmp_path / "out", MICROBATCHES, 0), MICROBATCHES)
    assert rows["frequency_mhz"].to_list() == [i.frequency_mhz for _, i in passes] * 2


def test_ranks_form_no_group_where_nothing_is_agreed_or_written(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(driver_module, "gpu_of", lambda cpu: gpu)
    monkeypatch.setattr(driver_module, "job_agreement", lambda: made.append("group") or Alone())
    keys = [key for key, _ in PLAN.stages[0].keyed]
    path, here = written(PLAN, tmp_path), (layout_of(PLAN), torch.device("cpu"), keys)
    drive_by_plan(path, *here).close()
    assert made == []
    drive_by_plan(path, *here, output=tmp_path / "out").close()
    assert made == ["group"]


def test_a_full_disk_fails_no_training(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(recorder, "write_table", refuse)
    driver = opened(PLAN, gpu, tmp_path / "out")
    drive(driver, PLAN)
    driver.close()
    check_free(gpu)
    (message,) = caplog.messages
    assert "No space left" in message
    assert message.endswith("The training goes on without its tables. What it recorded last is lost.")


def test_a_damaged_table_bars_no_training_and_is_kept(
    gpu: FakeDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = table_path(tmp_path / "out", STEPS, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1 and no more")
    driver = opened(PLAN, gpu, tmp_path / "out")
    drive(driver, PLAN)
    driver.close()
    assert read_table(path, STEPS)["iteration"].to_list() == [0]
    assert path.with_name(f"{path.name}.damaged").read_bytes() == b"PAR1 and no more"
    (message,) = caplog.messages
    assert message.endswith(f"The training goes on with a new table; kept as {path.name}.damaged.")


def test_a_clock_that_the_gpu_has_not_sets_none(
    gpu: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "gpu_of", lambda cpu: gpu)
    plan = at_one_clock(PLAN, 1000)
    keys = [key for key, _ in plan.stages[0].keyed]
    with pytest.raises(DeviceError, match=r"Fake .* 1000 MHz"):
        drive_by_plan(written(plan, tmp_path), layout_of(plan), torch.device("cpu"), keys)
    assert gpu.calls() == []


def written(plan: Plan, folder: Path) -> Path:
    """The path of a plan file."""
    write_plan(folder / "plan.json", plan)
    return folder / "plan.json"


@pytest.mark.parametrize("ending", ["exit", "TERM", "KILL"])
def test_the_clock_is_restored_however_a_process_ends(gpu: FakeDevice, ending: str) -> None:
    command = [sys.executable, "-c", RUN, str(gpu.folder), str(Path(__file__).parents[1]), ending]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        if ending != "exit":
            process.send_signal(signal.Signals[f"SIG{ending}"])
        code = process.wait(timeout=60)
    assert code == {"exit": 0, "TERM": 128 + signal.SIGTERM, "KILL": -signal.SIGKILL}[ending]
    if ending == "KILL":
        assert gpu.locked.exists()
        opened(PLAN, gpu).close()
    check_free(gpu)


RUN = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from helpers.driving import drive, driven_plan, opened
from helpers.fake_device import FakeDevice
plan, gpu = driven_plan(), FakeDevice(Path(sys.argv[1]))
driver = opened(plan, gpu)
drive(driver, plan)
while not gpu.locked.exists():
    time.sleep(0.01)
print("locked", flush=True)
time.sleep(60 if sys.argv[3] != "exit" else 0)
"""
