"""The answer of a calibration: errors by kind of kernel, what was not told, and what a rehearsal missed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.fit import Calibrated, CalibrationErrors
from kareus.calibrate.observations import ObservedProbe
from kareus.calibrate.probes import ProbeKind
from kareus.calibrate.rehearsal import Missed


@dataclass(frozen=True, slots=True, kw_only=True)
class KindErrors:
    """Mean absolute errors in percent over the observations of one kind of kernel; None where nothing was measured."""

    kind: ProbeKind
    programs: int
    time_pct: float | None
    time_left_out_pct: float | None
    """Of programs left out of the fit."""
    power_pct: float | None
    power_left_out_pct: float | None


def errors_by_kind(
    observations: Sequence[ObservedProbe], inside: CalibrationErrors, outside: CalibrationErrors
) -> list[KindErrors]:
    """Return the errors of each kind of kernel, in sample and left out."""
    kinds = np.array([observation.probe.kind for observation in observations])
    errors = []
    for kind in dict.fromkeys(observation.probe.kind for observation in observations):
        mask = kinds == kind
        cells = [_mean_pct(e[mask]) for e in (inside.time, outside.time, inside.power, outside.power)]
        errors.append(
            KindErrors(
                kind=kind,
                programs=len(
                    {observation.probe.program for observation in observations if observation.probe.kind is kind}
                ),
                time_pct=cells[0],
                time_left_out_pct=cells[1],
                power_pct=cells[2],
                power_left_out_pct=cells[3],
            )
        )
    return errors


def notes(errors: Sequence[KindErrors]) -> dict[str, str]:
    """Return the lines on errors for a GPU's file, by kind of kernel."""
    return {
        f"{error.kind}, {error.programs} programs": (
            f"time {_cell(error.time_pct)} (left out {_cell(error.time_left_out_pct)}), "
            f"power {_cell(error.power_pct)} ({_cell(error.power_left_out_pct)})"
        )
        for error in errors
    }


def error_lines(errors: Sequence[KindErrors]) -> list[str]:
    """Return the table of errors for a terminal."""
    lines = [f"{'mean absolute errors':<26} {'programs':>8} {'time':>8} {'left out':>9} {'power':>8} {'left out':>9}"]
    lines += [
        f"{error.kind:<26} {error.programs:>8} {_cell(error.time_pct):>8} {_cell(error.time_left_out_pct):>9} "
        f"{_cell(error.power_pct):>8} {_cell(error.power_left_out_pct):>9}"
        for error in errors
    ]
    return lines


def missed_lines(missed: Sequence[Missed]) -> list[str]:
    """Return what a rehearsal missed of kernels that it did not measure, for a terminal."""
    lines = ["", f"{'hidden GPU, not measured':<26} {'time':>8} {'worst':>8} {'power':>8} {'worst':>8}"]
    lines += [
        f"{miss.kind:<26} {miss.time_mape_pct:>7.2f}% {miss.worst_time_pct:>7.2f}% {miss.power_mape_pct:>7.2f}% "
        f"{miss.worst_power_pct:>7.2f}%"
        for miss in missed
    ]
    return lines


def untold_line(fitted: Calibrated, kept: Sequence[str], source: str) -> str:
    """Return what was not identified, for a terminal."""
    return f"not identified, kept as in {source}: {fitted.carried_over(kept)}"


def _mean_pct(errors: Array) -> float | None:
    finite = errors[np.isfinite(errors)]
    return 100 * float(np.abs(finite).mean()) if finite.size else None


def _cell(value_pct: float | None) -> str:
    return "-" if value_pct is None else f"{value_pct:.1f} %"
