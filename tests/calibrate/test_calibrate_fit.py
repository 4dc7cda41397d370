"""Fitting coefficients to observations of laws that take the fastest of several ways."""

import numpy as np
import pytest
from helpers.builders import CONFIG, a100

from kareus.calibrate.coefficient_space import with_coefficients
from kareus.calibrate.coefficients import Expected, expectations, log_costs
from kareus.calibrate.fit import calibrate, errors_of
from kareus.calibrate.observations import ObservedProbe
from kareus.calibrate.probes import ProbeKind, probes
from kareus.errors import ArtifactError
from kareus.workload.compose import compose

SLOW = {"middle_protocol_latency": 0.95, "middle_protocol_bandwidth": 0.1}
"""Shares of the protocol for large messages: of its latency, and of its bandwidth."""


def exactly(gpu, chosen, clocks_mhz):
    """Observations of `chosen` without noise, of times alone."""
    found = []
    for probe in chosen:
        times_s = np.exp(log_costs(gpu, {}, probe.program, clocks_mhz)[0, 0]).tolist()
        found += [
            ObservedProbe(
                probe=probe, frequency_mhz=mhz, time_s=time_s, power_w=None, window_s=0.0, before_c=0.0, after_c=0.0
            )
            for mhz, time_s in zip(clocks_mhz, times_s, strict=True)
        ]
    return found


def test_a_protocol_that_the_first_fit_leaves_is_fitted_all_the_same():
    """The hidden GPU takes it for no message, so that nothing tells it there; with the file's it would be taken."""
    (composition,) = compose(["gpu=h100-sxm5-80gb", "software=kareus"], CONFIG)  # no host between single kernels
    start = composition.workload.gpu
    hidden = with_coefficients(start, SLOW)
    collectives = [probe for probe in probes(8) if probe.kind is ProbeKind.COLLECTIVE]
    observations = exactly(hidden, collectives, (1980, 1440))
    expected = {name: Expected(value=own, spread=0.3, lower=own / 4, upper=1.0) for name, own in SLOW.items()}
    expected["bus_efficiency"] = expectations(start)["bus_efficiency"]
    fitted = calibrate(observations, start, expected)
    assert abs(errors_of(observations, start).time).max() > 0.1
    assert abs(errors_of(observations, fitted.gpu).time).max() < 0.01


def test_measurements_that_tell_no_coefficient_are_refused():
    start = a100()
    collective = next(probe for probe in probes(8) if probe.kind is ProbeKind.COLLECTIVE)
    expected = {"gemm_efficiency": expectations(start)["gemm_efficiency"]}
    with pytest.raises(ArtifactError, match=r"too few measurements \(1\): they tell no coefficient of A100-SXM4-40GB"):
        calibrate(exactly(start, [collective], (1410,)), start, expected)
