"""Calibrating to a real GPU, at the clock that its driver chooses. Sets no clock and no power limit."""

import numpy as np
import pytest
import torch
from helpers.builders import a100, protocol
from helpers.calibrations import shelves

from kareus.calibrate.coefficients import expectations
from kareus.calibrate.design import CalibrationTrial
from kareus.calibrate.fit import calibrate, errors_of
from kareus.calibrate.heat import heat_of
from kareus.calibrate.measure import measure_trials, short
from kareus.calibrate.probes import probes
from kareus.device import nvml
from kareus.device.claims import FOLDER_VARIABLE
from kareus.gpu_model.gpu import FrequencyRange
from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool
from kareus.testbed.cuda.testbed import CudaTestbed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

QUICK = short(protocol())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Time of every probe, and energy of every third."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("claims")))
        device = nvml.open_devices()[0]
        maximum_mhz = device.supported_clocks_mhz()[-1]
        clocks = FrequencyRange(minimum_mhz=maximum_mhz, maximum_mhz=maximum_mhz, stride_mhz=1)
        gpu = a100(maximum_clock_mhz=maximum_mhz, search_frequencies=clocks)
        config = CudaConfig(collectives=CudaCollectives.LOOPBACK, clocks=ClockPolicy.DEFAULT, pool=GpuPool.SAME)
        trials = [
            CalibrationTrial(probe=probe, frequency_mhz=maximum_mhz, with_energy=place % 3 == 0)
            for place, probe in enumerate(probes(8))
        ]
        testbed = CudaTestbed(config, gpu, [device])
        try:
            yield gpu, measure_trials(testbed, QUICK, shelves(), trials, 600.0)
        finally:
            testbed.close()


@pytest.mark.timeout(900)
def test_every_probe_runs_and_draws_power(measured):
    _, found = measured
    assert len(found.observations) == len(probes(8))
    powers = [own.power_w for own in found.observations if own.power_w is not None]
    assert 30 < min(powers) <= max(powers) < 1500


def test_a_fit_to_a_real_gpu_comes_closer_than_its_start(measured):
    gpu, found = measured
    warm = heat_of(found.heat, gpu).applied(gpu)
    fitted = calibrate(found.observations, warm, expectations(gpu))
    before, after = (np.median(np.abs(errors_of(found.observations, own).time)) for own in (warm, fitted.gpu))
    assert after < before
