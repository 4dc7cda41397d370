"""Errors of predictions of measured kernels, in all and by group, and those of predictions without a model."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.evidence.kernels.counted import power_counts
from kareus.evidence.kernels.predict import Predicted, bus_bytes
from kareus.evidence.kernels.rows import KernelKind, Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelErrors:
    """Mean absolute percentage errors over rows; power and energy over those with both powers."""

    rows: int
    time_mape_pct: float | None
    """None without rows."""
    power_mape_pct: float | None
    energy_mape_pct: float | None
    signed_median_pct: float | None
    """Median of predicted less measured time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Mean absolute percentage errors of the best constants of each group of rows."""

    constant_rate_time_mape_pct: float
    """Time as if all reached the same FLOP/s, or collectives the same bandwidth."""
    roofline_time_mape_pct: float | None
    """Time as if all reached the same FLOP/s or the same HBM bandwidth, whichever takes longer."""
    constant_power_mape_pct: float | None
    """Power as if all drew the same."""


def errors_of(rows: Kernels, predicted: Predicted, mask: NDArray[np.bool_]) -> KernelErrors:
    """Return the errors over the rows of `mask`."""
    times = (predicted.time_s / rows.time_s - 1)[mask]
    read = mask & power_counts(rows)
    powers = (predicted.power_w / rows.power_w - 1)[read]
    energies = (predicted.power_w * predicted.time_s / (rows.power_w * rows.time_s) - 1)[read]
    return KernelErrors(
        rows=int(mask.sum()),
        time_mape_pct=_mape_pct(times),
        power_mape_pct=_mape_pct(powers),
        energy_mape_pct=_mape_pct(energies),
        signed_median_pct=100 * float(np.median(times)) if times.size else None,
    )


def errors_by(
    names: NDArray[np.str_], rows: Kernels, predicted: Predicted, mask: NDArray[np.bool_]
) -> Mapping[str, KernelErrors]:
    """Return the errors over the rows of `mask` that share a name."""
    return {str(name): errors_of(rows, predicted, mask & (names == name)) for name in np.unique(names[mask])}


def baselines(rows: Kernels, predicted: Predicted, mask: NDArray[np.bool_]) -> Baselines:
    """Return the errors of constants of each group: its median FLOP/s or bandwidth, and its median power.

    For the roofline these are the FLOP/s and the HBM bandwidth that a tenth of its rows exceeds.
    """
    work = bus_bytes(rows) if rows.kind is KernelKind.COLLECTIVE else predicted.flops
    constant, roofline, powers = (np.full(len(rows), np.nan) for _ in range(3))
    for group in np.unique(rows.groups[mask]):
        group_rows = mask & (rows.groups == group)
        time_s = rows.time_s[group_rows]
        constant[group_rows] = work[group_rows] / np.median(work[group_rows] / time_s) / time_s - 1
        powers[group_rows] = np.median(rows.power_w[group_rows]) / rows.power_w[group_rows] - 1
        if rows.kind is not KernelKind.COLLECTIVE:
            moved = predicted.hbm_bytes[group_rows]
            flops_per_s, bytes_per_s = (np.quantile(x / time_s, 0.9) for x in (work[group_rows], moved))
            roofline[group_rows] = np.maximum(work[group_rows] / flops_per_s, moved / bytes_per_s) / time_s - 1
    read = mask & power_counts(rows)
    return Baselines(
        constant_rate_time_mape_pct=_mape_pct(constant[mask]) or 0.0,
        roofline_time_mape_pct=None if rows.kind is KernelKind.COLLECTIVE else _mape_pct(roofline[mask]),
        constant_power_mape_pct=_mape_pct(powers[read]),
    )


def _mape_pct(errors: Array) -> float | None:
    return 100 * float(np.abs(errors).mean()) if errors.size else None
