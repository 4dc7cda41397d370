"""Estimates of noisy measurements, against curves that are known."""

import numpy as np
import pytest

from kareus.profile.smoothing import Observation, smoothed, undecided

CLOCKS_MHZ = tuple(range(900, 1411, 30))
TIME_NOISE, POWER_NOISE = 0.003, 0.005


def known(curve: int, mhz: int) -> tuple[float, float]:
    """Seconds and joules: time falls with the clock until the power limit holds it, then hardly."""
    below = min(mhz, 1320) + 0.05 * max(0, mhz - 1320)
    time_s = (1 + 0.1 * curve) * (0.1 + 0.3 * 1320 / below)
    return time_s, time_s * (100 + 250 * (mhz / 1410) ** 2.5)


def observed(seed: int, repeats: int = 1, curves: int = 2) -> list[Observation]:
    random = np.random.default_rng(seed)
    seen = []
    for curve in range(curves):
        for mhz in CLOCKS_MHZ:
            for _ in range(repeats):
                time_s, energy_j = known(curve, mhz)
                longer = 1 + TIME_NOISE * random.standard_normal()
                stronger = 1 + POWER_NOISE * random.standard_normal()
                seen.append(Observation(curve, mhz, time_s * longer, energy_j * longer * stronger))
    return seen


def errors(seeds: range) -> np.ndarray:
    """Relative errors of time and energy and the standard errors that are stated, shape (n, 4)."""
    rows = []
    for seed in seeds:
        for (curve, mhz), found in smoothed(observed(seed)).items():
            time_s, energy_j = known(curve, mhz)
            stated = found.time_error_s / time_s, found.energy_error_j / energy_j
            rows.append((found.time_s / time_s - 1, found.energy_j / energy_j - 1, *stated))
    return np.array(rows)


def test_estimates_are_closer_than_measurements():
    found = errors(range(12))
    time_rms, energy_rms = np.sqrt(np.square(found[:, :2]).mean(axis=0))
    assert time_rms < 0.75 * TIME_NOISE
    assert energy_rms < 0.75 * np.hypot(TIME_NOISE, POWER_NOISE)
    assert found[:, 2].mean() == pytest.approx(time_rms, rel=0.35)
    assert found[:, 3].mean() == pytest.approx(energy_rms, rel=0.35)


def test_estimates_are_not_biased():
    mean_error, deviation = errors(range(12))[:, :2].mean(axis=0), TIME_NOISE / np.sqrt(12)
    assert np.abs(mean_error).max() < 2 * deviation


def test_noise_is_told_from_the_scatter():
    found = [next(iter(smoothed(observed(seed)).values())) for seed in range(8)]
    assert np.median([f.time_noise for f in found]) == pytest.approx(TIME_NOISE, rel=0.4)
    assert np.median([f.energy_noise for f in found]) == pytest.approx(np.hypot(TIME_NOISE, POWER_NOISE), rel=0.4)


def test_without_noise_a_measurement_hardly_changes():
    """By less than a real measurement is off, even at the kink."""
    seen = [Observation(0, mhz, *known(0, mhz)) for mhz in CLOCKS_MHZ]
    for (_, mhz), found in smoothed(seen).items():
        assert (found.time_s, found.energy_j) == pytest.approx(known(0, mhz), rel=2e-3)
        assert found.measurements == 1


def test_repeats_count_for_more():
    once, often = (smoothed(observed(1, repeats)) for repeats in (1, 4))
    assert all(often[place].time_error_s < once[place].time_error_s for place in once)
    assert {found.measurements for found in often.values()} == {4}


def test_one_clock_alone_is_the_mean_of_its_repeats():
    """As with the clocks of real GPUs left alone."""
    seen = [Observation(0, 1410, time_s, 10 * time_s) for time_s in (1.000, 1.002, 0.998, 1.004)]
    (found,) = smoothed(seen).values()
    assert found.time_s == pytest.approx(1.001, rel=1e-5)
    assert 0.0003 < found.time_error_s < 0.003


def test_only_clocks_about_as_fast_as_the_fastest_are_undecided():
    places = undecided(smoothed(observed(3)))
    for curve in (0, 1):
        own = [mhz for c, mhz in places if c == curve]
        assert own
        least_s = min(known(curve, mhz)[0] for mhz in CLOCKS_MHZ)
        assert max(known(curve, mhz)[0] for mhz in own) < 1.03 * least_s
        assert 1410 in own
