"""The prior of a search, as logarithms of what the GPU model says."""

import dataclasses

import numpy as np
from helpers.builders import a100, graphs

from kareus.gpu_model.coefficients import SHARES
from kareus.gpu_model.model import run_schedules
from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.search.features import Features
from kareus.search.prior import SPREADS, sample_prior, textbook

MLP = graphs()[Batch.NANOBATCH].forward[1]
PARTITION = partition_of(MLP, MLP.collective)
FEATURES = Features(np.array([(clock, sms, 0) for clock in (900, 1200, 1410) for sms in (6, 24)], dtype=float))


def test_the_first_gpu_has_the_median_coefficients():
    ensemble = sample_prior(textbook(a100()), PARTITION, FEATURES, 3, np.random.default_rng(0))
    expected = run_schedules(textbook(a100()), PARTITION, *FEATURES.matrix.T)
    time_s, power_w = np.split(np.exp(ensemble[0]), 2)
    assert np.allclose(time_s, expected.time_s)
    assert np.allclose(power_w, expected.energy_j / expected.time_s)


def test_other_gpus_differ_from_it_and_from_each_other():
    ensemble = sample_prior(textbook(a100()), PARTITION, FEATURES, 4, np.random.default_rng(0))
    assert len(np.unique(ensemble, axis=0)) == 4


def test_an_ensemble_is_of_gpus_around_the_given_one():
    """Where a coefficient is uncertain by itself, the logarithm of what it decides has its spread."""
    other = dataclasses.replace(textbook(a100()), static_power_w=0.01)
    values = dict.fromkeys(SPREADS, 0.0) | dict.fromkeys(SHARES, 1.0) | {"clock_power_w": 100.0, "voltage_floor": 1.0}
    other = dataclasses.replace(other, coefficients=dataclasses.replace(other.coefficients, **values))
    ensemble = sample_prior(other, PARTITION, Features(FEATURES.matrix[-1:]), 400, np.random.default_rng(0))
    assert np.isclose(np.median(ensemble[:, 1]), np.log(100.0), atol=0.1)
    # The voltage's floor spreads too, in its square; shares are cut off at 1, so that it only lowers the power.
    assert np.isclose(np.std(ensemble[:, 1]), SPREADS["clock_power_w"], rtol=0.15)
