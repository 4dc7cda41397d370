"""The testbed of real GPUs, with workers that are real processes on CPUs and devices that are not real."""

import dataclasses
import os
import sys
from pathlib import Path

import pytest
import torch
from helpers import cuda_worker
from helpers.builders import a100, all_reduce, gemm, memory, protocol, simulated
from zeus.device.gpu import ZeusGPUInitError

from kareus.artifacts.records import to_plain
from kareus.artifacts.store import RowShelf
from kareus.device import nvml
from kareus.device.claims import FOLDER_VARIABLE, setting_of
from kareus.errors import DeviceError, EngineError
from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.records import Collective, CollectiveKind, Program, SequenceCollective, Step
from kareus.model.communicators.choice import Library
from kareus.model.communicators.mscclpp import MscclppCommunicator
from kareus.model.communicators.nccl import NcclCommunicator
from kareus.profile.measure import Measurement, Profiler, measure_once
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool, TestbedKind
from kareus.testbed.cuda import collectives as collectives_of_programs
from kareus.testbed.cuda.collectives import Collectives
from kareus.testbed.cuda.executor import Executor
from kareus.testbed.cuda.rank import Rank, _under_load
from kareus.testbed.cuda.testbed import CudaTestbed
from kareus.testbed.cuda.worker import WorkerSettings, cuda_rank
from kareus.testbed.protocol import open_testbed as open_testbed_of

pytestmark = pytest.mark.slow

GPU = a100(search_frequencies=FrequencyRange(minimum_mhz=900, maximum_mhz=1410, stride_mhz=510))
QUICK = protocol(window_s=0.1, cooldown_s=0.02, warmup_s=0.02, settle_s=0.01)
ACTIVATION = dataclasses.replace(memory("activation", 64), bytes_written=128)
"""A record of SwiGLU: gate and up of 64 values, and as many values written."""
ALONE = Program(name="alone", steps=(Step(operators=(gemm("linear", 16, 8, 32), ACTIVATION)),))
TOGETHER = Program(
    name="together",
    steps=(
        Step(
            operators=(ACTIVATION, gemm("linear", 16, 8, 32)),
            collective=all_reduce(64, 2),
            launch=1,
            sm_count=4,
        ),
        Step(
            collective=Collective(kind=CollectiveKind.ALL_GATHER, group="tp", group_size=2, message_bytes=256, fused=2),
            sm_count=4,
        ),
        *(
            Step(
                collective=SequenceCollective(
                    kind=kind, group="tp", group_size=2, message_bytes=256, fused=1, sequences=4
                ),
                sm_count=4,
            )
            for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        ),
    ),
)


@pytest.fixture
def open_testbed(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*sys.path]))
    opened = []

    def open_(collectives="loopback", clocks="locked", gpus=1, gpu=GPU, pool="same", first=0):
        devices = [cuda_worker.fake_device(tmp_path, first + rank) for rank in range(gpus)]
        command = (sys.executable, cuda_worker.__file__, str(tmp_path))
        opened.append(
            CudaTestbed(
                CudaConfig(collectives=CudaCollectives(collectives), clocks=ClockPolicy(clocks), pool=GpuPool(pool)),
                gpu,
                devices,
                command,
            )
        )
        return opened[-1]

    yield open_
    for testbed in opened:
        testbed.close()


@pytest.fixture
def forked(monkeypatch):
    """Workers that need not import torch; `test_a_worker_restores_the_clock_after_each_program` starts a real one."""
    cuda_worker.fork_them(monkeypatch)


def calls(folder: Path, rank: int = 0) -> list[str]:
    return cuda_worker.fake_device(folder, rank).calls()


def test_a_worker_restores_the_clock_after_each_program(open_testbed, tmp_path):
    testbed = open_testbed()
    with testbed.session(TOGETHER, "m") as session:
        row = measure_once(session, 900, QUICK)
        worker = setting_of("GPU-0").process
    assert row["clock_mean_mhz"] == 900
    assert row["throttle_reasons"] == []
    rested_s = row["duration_s"] - row["window_s"]
    spent_j = row["energy_j"] * row["repetitions"]  # of a fake that draws 100 W, read late where the machine is busy
    assert 100 * (row["window_s"] - rested_s / 2) <= spent_j <= 100 * row["duration_s"]
    assert setting_of("GPU-0") is None
    with testbed.session(ALONE, "m") as session:
        session.set_clock(1410)
        session.execute(1)
        assert setting_of("GPU-0").process == worker
    assert calls(tmp_path) == ["lock 900", "reset", "lock 1410", "reset"]
    (tmp_path / "0" / "forbidden").touch()
    with pytest.raises(DeviceError) as refused, testbed.session(ALONE, "m") as session:
        session.set_clock(900)
    assert str(refused.value) == (
        "GPU-0: no right to set clocks; run as root. To measure at the driver's clock: testbed.cuda.clocks=default."
    )


def test_gpus_are_pooled_by_uuid_or_by_model(open_testbed):
    assert open_testbed(first=0).identity != open_testbed(first=1).identity
    assert "GPU-1" in open_testbed(first=1).identity.detail
    assert open_testbed(pool="alike", first=0).identity == open_testbed(pool="alike", first=1).identity
    assert open_testbed(pool="alike").identity != open_testbed(pool="alike", clocks="default").identity


@pytest.mark.usefixtures("forked")
def test_a_group_ends_when_a_worker_dies_in_a_collective(open_testbed, tmp_path, monkeypatch):
    monkeypatch.setenv("KAREUS_TEST_DIE", str(tmp_path / "die"))
    testbed = open_testbed("nccl", gpus=2)
    with testbed.session(TOGETHER, "m") as session:
        row = measure_once(session, 900, QUICK)
        assert len({setting_of(f"GPU-{rank}").process for rank in range(2)}) == 2
    assert row["temperature_before_c"] == 40
    assert [calls(tmp_path, rank) for rank in range(2)] == [["lock 900", "reset"]] * 2
    (tmp_path / "die").touch()
    with pytest.raises(DeviceError) as died, testbed.session(TOGETHER, "m") as session:
        session.set_clock(900)
        session.execute(1)
    assert str(died.value).startswith("GPU 1: its worker ended unexpectedly (exit code -9)")
    assert calls(tmp_path, 0) == ["lock 900", "reset"] * 2
    assert setting_of("GPU-1").frequency_mhz == 900  # for its next owner to restore


def test_default_clocks_are_left_alone_and_documented(open_testbed, tmp_path):
    testbed = open_testbed(clocks="default")
    assert testbed.identity.detail == "GPU-0; driver 1.0; default clocks, not locked; collectives: loopback"
    assert testbed.identity.label == "measured on Fake"
    rank = Rank(cuda_worker.fake_device(tmp_path, 0), ClockPolicy.DEFAULT, cpu_executor)
    rank.claim()
    rank.set_clock(1410)
    with pytest.raises(DeviceError, match="only the maximum can be measured so"):
        rank.set_clock(900)
    rank.release()
    assert calls(tmp_path) == []


def test_throttle_reasons_are_reported_with_the_clock(open_testbed, tmp_path):
    device = cuda_worker.fake_device(tmp_path, 0)
    device.capped_mhz = 1000
    rank = Rank(device, ClockPolicy.LOCKED, cpu_executor)
    rank.claim()
    rank.load(to_plain(ALONE))
    rank.set_clock(1410)
    rank.execute(1)
    reading = rank.read()
    rank.release()
    assert (reading.clock_mean_mhz, reading.throttle_reasons) == (1000, ("power-limit",))


def measured_on(testbed: CudaTestbed, shelf: RowShelf) -> Measurement:
    return Profiler(testbed, QUICK, shelf, RowShelf(LOOKS)).measure(ALONE, 1410)


@pytest.mark.usefixtures("forked")
def test_a_clock_lost_to_heat_is_never_stored(open_testbed, tmp_path):
    shelf = RowShelf(MEASUREMENTS)
    cuda_worker.fake_device(tmp_path, 0).cap(700, "thermal-limit")
    with pytest.raises(DeviceError, match=r"700 MHz, 3 times \(thermal-limit\)"):
        measured_on(open_testbed(), shelf)
    assert shelf.rows == []


@pytest.mark.usefixtures("forked")
def test_a_clock_at_the_power_limit_is_kept_and_marked(open_testbed, tmp_path):
    shelf = RowShelf(MEASUREMENTS)
    device = cuda_worker.fake_device(tmp_path, 0)
    device.cap(1300, "power-limit")
    assert measured_on(open_testbed(), shelf).is_power_limited
    (row,) = shelf.rows
    assert (row["clock_mean_mhz"], row["throttle_reasons"]) == (1300, ["power-limit"])
    device.cap(1410)
    assert not measured_on(open_testbed(), RowShelf(MEASUREMENTS)).is_power_limited


@pytest.mark.usefixtures("forked")
def test_one_hot_gpu_of_a_group_is_enough(open_testbed, tmp_path, monkeypatch):
    monkeypatch.setenv("KAREUS_TEST_DIE", str(tmp_path / "die"))
    cuda_worker.fake_device(tmp_path, 1).cap(1390, "thermal-limit")
    with open_testbed("nccl", gpus=2).session(TOGETHER, "m") as session:
        session.set_clock(1410)
        session.execute(1)
        report = session.clock_report()
    assert (report.mean_mhz, report.throttle_reasons) == (1390, ("thermal-limit",))


def test_samples_of_an_idle_gpu_are_no_clock_of_a_program():
    low, high = (210.0, frozenset({"idle"})), (1410.0, frozenset[str]())
    assert _under_load([low, low, high, high]) == [high, high]
    assert _under_load([low]) == [low]


def test_a_clock_that_cannot_be_read_ends_the_measurement(tmp_path, monkeypatch):
    """The thread that samples it would else end by itself, and the clock be that of half an execution."""
    device = cuda_worker.fake_device(tmp_path, 0)
    rank = Rank(device, ClockPolicy.DEFAULT, cpu_executor)
    rank.load(to_plain(ALONE))

    def refuse():
        raise DeviceError("GPU-0: nvmlDeviceGetClockInfo failed.")

    monkeypatch.setattr(device, "throttle_reasons", refuse)
    with pytest.raises(DeviceError, match="nvmlDeviceGetClockInfo failed"):
        rank.execute(1)


@pytest.mark.parametrize("runs_out", ["__init__", "run"])
def test_a_program_that_does_not_fit_is_told_in_one_line(runs_out, tmp_path, monkeypatch):
    def run_out(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Executor, runs_out, run_out)
    rank = Rank(cuda_worker.fake_device(tmp_path, 0), ClockPolicy.DEFAULT, cpu_executor)
    with pytest.raises(DeviceError, match=r"^GPU-0: alone does not fit .*memory of Fake; end other processes"):
        rank.load(to_plain(ALONE))
        rank.execute(1)


def test_a_library_of_collectives_that_is_missing_is_told_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "mscclpp", None)
    settings = WorkerSettings(
        rank=0,
        axes={"tp": 2},
        workers=2,
        collectives=CudaCollectives.MSCCLPP,
        clocks=ClockPolicy.DEFAULT,
        rendezvous="nowhere",
    )
    with pytest.raises(EngineError, match=r"^communicator 'mscclpp': cannot .*; build it as envs/README"):
        cuda_rank(settings)


def test_reduce_scatters_of_mscclpp_are_prepared_and_run_by_nccl(monkeypatch):
    """What a program asks for is what training launches: sums that repeat without overflow, real reduce-scatters."""
    log = []

    def note(name):
        return lambda self, tensors, sm_count=None, *operation: log.append(
            (name, tensors[0].shape, sm_count, *operation)
        )

    monkeypatch.setattr(NcclCommunicator, "__init__", lambda self: None)
    monkeypatch.setattr(NcclCommunicator, "prepare", lambda self, counts: log.append(("prepare", tuple(counts))))
    monkeypatch.setattr(MscclppCommunicator, "all_reduce", note("all-reduce"))
    monkeypatch.setattr(NcclCommunicator, "reduce_scatter", note("reduce-scatter"))
    sizes = []

    def make(library, axis, ranks, scratch_bytes):
        sizes.append(scratch_bytes)
        made = MscclppCommunicator.__new__(MscclppCommunicator)
        made.others = NcclCommunicator()
        return made

    monkeypatch.setattr(collectives_of_programs, "make_communicator", make)
    collectives = Collectives(Library.MSCCLPP, {"tp": 2}, 0, cuda_worker.CPU)
    collectives.prepare(all_reduce(64, 2), 4)()
    scattered = Collective(kind=CollectiveKind.REDUCE_SCATTER, group="tp", group_size=2, message_bytes=256, fused=1)
    collectives.prepare(scattered, 6)()
    assert log == [
        ("all-reduce", (64,), 4, torch.distributed.ReduceOp.MIN),
        ("prepare", (6,)),
        ("reduce-scatter", (2, 64), 6, None),  # into new memory
    ]
    assert sizes == [128, 256]  # a buffer that a larger message fits into


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_torch_that_sees_no_gpu_is_told_in_one_line():
    settings = WorkerSettings(
        rank=0,
        axes={},
        workers=1,
        collectives=CudaCollectives.LOOPBACK,
        clocks=ClockPolicy.DEFAULT,
        rendezvous="nowhere",
    )
    with pytest.raises(DeviceError, match=r"^GPU 0: torch .* sees 0 GPUs; install torch for the CUDA of this machine"):
        cuda_rank(settings)


def test_a_group_larger_than_the_machine_is_refused(open_testbed):
    with pytest.raises(DeviceError, match="communicates among 2 GPUs and this machine shows 1"):
        open_testbed("nccl").session(TOGETHER, "m").__enter__()


def test_the_provenance_names_every_gpu_that_may_take_part(open_testbed):
    detail = open_testbed("nccl", gpus=2).identity.detail
    assert detail == "GPU-0, GPU-1; driver 1.0; locked clocks; collectives: nccl"


def test_a_gpu_of_another_kind_is_refused(open_testbed):
    with pytest.raises(DeviceError) as refused:
        open_testbed(
            gpu=a100(
                maximum_clock_mhz=1380,
                search_frequencies=FrequencyRange(minimum_mhz=900, maximum_mhz=1380, stride_mhz=480),
            )
        )
    assert "has a maximum clock of 1380 MHz, and Fake has one of 1410 MHz" in str(refused.value)


def test_unknown_clocks_are_refused_before_anything_runs(open_testbed):
    with pytest.raises(DeviceError, match="Fake has no clock of 930 MHz"):
        open_testbed(gpu=a100())


def test_a_machine_without_gpus_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(nvml, "get_gpus", _no_gpus)
    real = simulated(
        kind=TestbedKind.CUDA,
        cuda=CudaConfig(collectives=CudaCollectives.NCCL, clocks=ClockPolicy.LOCKED, pool=GpuPool.SAME),
    )
    with pytest.raises(DeviceError, match="no GPU can be"):
        open_testbed_of(real, GPU, QUICK, 0)


def _no_gpus():
    raise ZeusGPUInitError("NVML unavailable.")


def cpu_executor(program: Program) -> Executor:
    return Executor(program, Collectives(Library.LOOPBACK, {}, 0, cuda_worker.CPU), cuda_worker.CPU)
