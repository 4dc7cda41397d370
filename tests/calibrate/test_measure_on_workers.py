"""Trials on the testbed of real GPUs, with a worker that is a process on a CPU and a device that is not real."""

import dataclasses
import sys

import pytest
from helpers import cuda_worker
from helpers.builders import a100, protocol
from helpers.calibrations import PROTOCOL, hidden_testbed, shelves

from kareus.calibrate.design import CalibrationTrial
from kareus.calibrate.heat import heat_readings
from kareus.calibrate.measure import measure_trials
from kareus.calibrate.probes import Probe, ProbeKind, attention, beside, collective, gemm, norm, swiglu
from kareus.device.claims import FOLDER_VARIABLE, setting_of
from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.records import CollectiveKind, Program, Step
from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool
from kareus.testbed.cuda.testbed import CudaTestbed

GPU = a100(search_frequencies=FrequencyRange(minimum_mhz=900, maximum_mhz=1410, stride_mhz=510))
QUICK = protocol(window_s=0.05, cooldown_s=0.02, warmup_s=0.02, settle_s=0.01)
OPERATORS = (
    gemm("probe", (64, 32, 48)),
    gemm("probe.wgrad", (32, 16, 64), summed=True),
    attention((1, 4, 2, 32, 16), backward=False),
    attention((1, 4, 2, 32, 16), backward=True),
    norm(16, 32),
    swiglu(16, 32),
)
"""One of each kind, small enough for a CPU."""
MOVING = dataclasses.replace(collective(CollectiveKind.ALL_REDUCE, 1, 8), message_bytes=4096)
SMALL = [
    Probe(kind=ProbeKind.GEMM, program=Program(name=str(place), steps=(Step(operators=(operator,)),)))
    for place, operator in enumerate(OPERATORS)
] + [beside((OPERATORS[0],), MOVING, 4)]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    cuda_worker.fork_them(monkeypatch)
    testbeds = []

    def open_(clocks):
        config = CudaConfig(collectives=CudaCollectives.LOOPBACK, clocks=ClockPolicy(clocks), pool=GpuPool.SAME)
        device = cuda_worker.fake_device(tmp_path, 0)
        testbeds.append(CudaTestbed(config, GPU, [device], (sys.executable, cuda_worker.__file__, str(tmp_path))))
        return testbeds[-1], device

    yield open_
    for testbed in testbeds:
        testbed.close()


def measured(testbed, clocks_mhz):
    """All small probes, each at every clock; heat is that of a simulated GPU, since its load is too much for a CPU."""
    kept = shelves()
    heat_readings(hidden_testbed(a100()), PROTOCOL, 1410, kept.heat)
    trials = [
        CalibrationTrial(probe=probe, frequency_mhz=clock, with_energy=clock == 1410)
        for probe in SMALL
        for clock in clocks_mhz
    ]
    return measure_trials(testbed, QUICK, kept, trials, 600.0)


def test_every_kind_of_probe_runs_and_clocks_are_restored(opened):
    testbed, device = opened("locked")
    found = measured(testbed, (1410, 900))
    assert len(found.observations) == 2 * len(SMALL)
    assert sum(own.power_w is not None for own in found.observations) == len(SMALL)
    assert min(own.time_s for own in found.observations) > 0
    assert {"lock 900", "lock 1410", "reset"} <= set(device.calls())
    assert device.calls()[-1] == "reset"
    assert setting_of(device.uuid) is None


def test_clocks_that_are_left_alone_are_never_set(opened):
    testbed, device = opened("default")
    measured(testbed, (1410,))
    assert device.calls() == []
