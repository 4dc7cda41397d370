"""The file of a calibrated GPU: where its numbers come from, what was not told, residuals, and fitted coefficients."""

import datetime
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kareus.calibrate.coefficients import OF_HEAT
from kareus.calibrate.fit import Calibrated
from kareus.calibrate.gpu_file import number, with_notes, with_values
from kareus.calibrate.heat import Heat
from kareus.calibrate.measure import Measured
from kareus.gpu_model.gpu import Gpu
from kareus.profile.bench import Bench
from kareus.testbed.config import TestbedKind

WIDTH = 118
"""Columns of a line of the file."""
CALIBRATED = "[calibrated]"
MEASURED = "[measured at rest and under load]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the numbers of a file come from."""

    option: str
    """Option of the group `gpu` that the calibration started from, whose other numbers the file inherits."""
    name: str
    """Name of the GPU in the file."""
    lines: tuple[str, ...]
    """Testbed, date, amount and limits of the measurements, a sentence or two each."""


def origin_lines(bench: Bench, measured: Measured, heat: Heat, *, clocks_settable: bool) -> tuple[str, ...]:
    """Return in sentences what was measured, where, and what that cannot tell."""
    today = datetime.datetime.now(datetime.UTC).date()
    identity, config = bench.testbed.identity, bench.config
    with_energy = sum(observation.power_w is not None for observation in measured.observations)
    amount = (
        f"{with_energy} measurements and {len(measured.observations) - with_energy} of time alone in "
        f"{measured.spent_s:.0f} s of the testbed's clock; "
        f"idle {heat.idle_w:.0f} W, under load {heat.sustained_w:.0f} W."
    )
    if config.testbed.kind is TestbedKind.SIMULATED:
        return (
            f"REHEARSAL of `kareus calibrate`, {today}: a simulated {identity.gpu} with hidden coefficients (seed "
            f"{config.seed}). NOT OF A REAL GPU.",
            amount,
        )
    lines = [
        f"Calibrated by `kareus calibrate`, {today}: {identity.gpu}, {identity.detail}.",
        amount,
        "Collectives went through the memory of one GPU: those of links are not identified.",
    ]
    if not clocks_settable:
        lines.append("Clocks were left to the driver: lower ones show only where the power limit pulls them down.")
    if not heat.coefficients:
        lines.append("The temperature did not change enough to tell leakage and heat, nor static power.")
    return tuple(lines)


def document(origin: Origin, fitted: Calibrated, kept: Sequence[str], notes: Mapping[str, str], start: Gpu) -> str:
    """Return the file of a GPU.

    Args:
        origin: where its numbers come from.
        fitted: the calibrated GPU.
        kept: coefficients that were fitted and are not written, since they are those of a stand-in.
        notes: residuals, by what they are of.
        start: GPU that the calibration started from.
    """
    gpu = fitted.gpu
    untold = f"Not identified by these measurements, and kept as in {origin.option}: {fitted.carried_over(kept)}."
    comments = [*origin.lines, untold]
    values = {name: getattr(gpu.coefficients, name) for name in fitted.spreads if name not in kept}
    sources = {name: f"{CALIBRATED} +/- {100 * fitted.spreads[name]:.1f} %" for name in values}
    heat = {name: getattr(gpu.coefficients, name) for name in OF_HEAT}
    heat = {name: value for name, value in heat.items() if value != getattr(start.coefficients, name)}
    lines = [line for comment in comments for line in _wrapped(comment)]
    lines += ["defaults:", f"  - {origin.option}", "  - _self_", "", f"name: {origin.name}"]
    if gpu.static_power_w != start.static_power_w:
        lines += [f"static_power_w: {number(gpu.static_power_w)} # {MEASURED}"]
    lines += ["coefficients:", "uncertainty: null"]
    text = with_values("\n".join(lines) + "\n", values | heat, sources | dict.fromkeys(heat, MEASURED))
    return with_notes(text, notes)


def _wrapped(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False)]
