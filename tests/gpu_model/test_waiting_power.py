"""Power of waiting at a locked clock: the example, the measured curves, and what no file may say."""

import csv
import dataclasses
import doctest
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.builders import CONFIG, a100

from kareus.errors import ConfigError
from kareus.gpu_model import waiting
from kareus.gpu_model.waiting import least_waiting_w, waiting_above_w, waiting_power_w
from kareus.workload.compose import compose

MEASURED = Path(__file__).parents[3] / "shared/reference/voltage_and_idle_power.csv"
"""Idle power of one card each at locked clocks (energaizer artifact, MIT)."""
SHIPPED = {"A100 80GB SXM (netsres117)": "a100-sxm4-80gb", "H100 SXM 80GB": "h100-sxm5-80gb"}


def test_examples_hold():
    assert doctest.testmod(waiting).failed == 0


def measured() -> Iterator[tuple[str, float, float]]:
    with MEASURED.open() as file:
        for row in csv.DictReader(file):
            if row["gpu"] in SHIPPED and row["idle_power_w"] and float(row["clock_mhz"]) >= 900:
                yield row["gpu"], float(row["clock_mhz"]), float(row["idle_power_w"])


@pytest.mark.skipif(not MEASURED.exists(), reason="measurements are not there")
def test_shipped_curves_are_the_measured_ones():
    gpus = {name: compose([f"gpu={option}"], CONFIG)[0].workload.gpu for name, option in SHIPPED.items()}
    assert {name for name, _, _ in measured()} == set(SHIPPED)
    for name, clock_mhz, power_w in measured():
        assert waiting_power_w(gpus[name], clock_mhz) == pytest.approx(power_w, rel=0.02), (name, clock_mhz)


def test_a_gpu_without_a_curve_waits_alike_at_all_clocks():
    gpu = a100(blocking_power_w=85.0)
    assert {waiting_power_w(gpu, clock) for clock in (210.0, 900.0, 1410.0)} == {least_waiting_w(gpu)} == {85.0}
    assert waiting_above_w(gpu, 900.0) == 0


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (((900.0,),), "a clock in MHz and a share"),
        (((900.0, 0.0),), "waiting_shares"),
        (((900.0, 1.5),), "waiting_shares"),
        (((1410.0, 1.0), (900.0, 0.5)), "must ascend"),
        (((900.0, 0.5), (900.0, 0.6)), "must ascend"),
    ],
)
def test_curves_that_cannot_be_are_refused_in_one_line(shares, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(a100(), waiting_shares=shares)
