"""Errors of predictions of measured kernels, in all and by group, and those of predictions without a model."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.evidence.kernels.predict import Predicted, bus_bytes
from kareus.evidence.kernels.rows import KernelKind, Kernels

LEAST_MESSAGE_BYTES = 2**20
"""Smallest message that is scored: below, a collective is its latency, and that of a CUDA graph's replay."""
ALL_TO_ALL = "alltoall"
"""Collective that is scored apart: nothing of a dense model's training issues it."""


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


def scored(rows: Kernels) -> NDArray[np.bool_]:
    """Mask of the rows that count: all but small messages and all-to-alls."""
    if rows.kind is not KernelKind.COLLECTIVE:
        return np.ones(len(rows), dtype=bool)
    mask: NDArray[np.bool_] = large_message(rows) & (rows.collective != ALL_TO_ALL)
    return mask


def large_message(rows: Kernels) -> NDArray[np.bool_]:
    """Mask of collectives whose message is large enough to be scored."""
    mask: NDArray[np.bool_] = rows.sizes["message_bytes"] >= LEAST_MESSAGE_BYTES
    return mask


def errors_of(rows: Kernels, predicted: Predicted, mask: NDArray[np.bool_]) -> KernelErrors:
    """Return the errors over the rows of `mask`."""
    times = (predicted.time_s / rows.time_s - 1)[mask]
    read = mask & both_powers(rows, predicted)
    powers = (predicted.reading_w / rows.power_w - 1)[read]
    energies = (predicted.reading_w * predicted.time_s / (rows.power_w * rows.time_s) - 1)[read]
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
    """Return the errors of the medians of each group: FLOP/s or bandwidth, both, and power."""
    work = bus_bytes(rows) if rows.kind is KernelKind.COLLECTIVE else predicted.flops
    constant, roofline, powers = (np.full(len(rows), np.nan) for _ in range(3))
    for group in np.unique(rows.groups[mask]):
        own = mask & (rows.groups == group)
        time_s = rows.time_s[own]
        constant[own] = work[own] / np.median(work[own] / time_s) / time_s - 1
        powers[own] = np.median(rows.power_w[own]) / rows.power_w[own] - 1
        if rows.kind is not KernelKind.COLLECTIVE:
            moved = predicted.hbm_bytes[own]
            flops_per_s, bytes_per_s = (np.quantile(x / time_s, 0.9) for x in (work[own], moved))
            roofline[own] = np.maximum(work[own] / flops_per_s, moved / bytes_per_s) / time_s - 1
    read = mask & both_powers(rows, predicted)
    return Baselines(
        constant_rate_time_mape_pct=_mape_pct(constant[mask]) or 0.0,
        roofline_time_mape_pct=None if rows.kind is KernelKind.COLLECTIVE else _mape_pct(roofline[mask]),
        constant_power_mape_pct=_mape_pct(powers[read]),
    )


def both_powers(rows: Kernels, predicted: Predicted) -> NDArray[np.bool_]:
    """Return the mask of the rows whose power was read and is predicted; that of collectives alone is not."""
    mask: NDArray[np.bool_] = rows.sustained & np.isfinite(predicted.reading_w)
    return mask


def _mape_pct(errors: Array) -> float | None:
    return 100 * float(np.abs(errors).mean()) if errors.size else None
