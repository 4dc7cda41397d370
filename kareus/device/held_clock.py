"""Whether a GPU ran at the clock that was asked for, and if not, whether its power limit alone kept it below."""

import statistics
from collections.abc import Collection, Iterable
from enum import StrEnum

CLOCK_STEP_MHZ = 15
"""Distance between the SM clocks that NVIDIA GPUs since Volta support (`nvidia-smi -q -d SUPPORTED_CLOCKS`). A driver
takes the nearest of them, and readings are among them: a mean within one step is the clock that was asked for."""
POWER_LIMIT = "power-limit"
"""Reason under which a GPU always runs below the clock that was asked for: its cost there is what a plan will pay."""
HOT = ("thermal-limit", "hardware-thermal-limit", "hardware-slowdown", "power-brake")
"""Reasons that come and go with the machine's cooling and supply, and say nothing of a program."""
IDLE = "idle"
"""Reason while nothing runs: the clock says nothing then."""

ClockReading = tuple[float, int, tuple[str, ...]]
"""Seconds, SM clock in MHz, and the driver's reasons (`Device.throttle_reasons`)."""


class ClockOutcome(StrEnum):
    """What became of a clock that was asked for."""

    KEPT = "kept"
    """The GPU ran at it."""
    POWER_LIMITED = "power-limited"
    """Nothing but the power limit kept the GPU below it."""
    LOST = "lost"
    """The GPU ran at another, for heat, hardware or a reason that its driver does not name."""


def clock_outcome(asked_mhz: float, mean_mhz: float, reasons: Collection[str]) -> ClockOutcome:
    """Return what became of a clock that was asked for.

    Args:
        asked_mhz: the clock.
        mean_mhz: mean of the clocks that were read under load.
        reasons: those of the driver meanwhile (`Device.throttle_reasons`).
    """
    if abs(mean_mhz - asked_mhz) <= CLOCK_STEP_MHZ:
        return ClockOutcome.KEPT
    if mean_mhz < asked_mhz and set(reasons) == {POWER_LIMIT}:
        return ClockOutcome.POWER_LIMITED
    return ClockOutcome.LOST


def outcome_of_readings(asked_mhz: float, readings: Iterable[ClockReading]) -> ClockOutcome:
    """Return what became of a clock in a time in which it was set, from readings that nothing aligned with the load.

    Readings of a GPU at rest do not count, nor do those before the clock was first there, while it changed. Where no
    other is left, as in a time that is shorter than the period of readings, nothing contradicts the clock.
    """
    loaded = [(mhz, reasons) for _, mhz, reasons in readings if IDLE not in reasons]
    there = (n for n, (mhz, _) in enumerate(loaded) if abs(mhz - asked_mhz) <= CLOCK_STEP_MHZ)
    loaded = loaded[next(there, 0) :]
    if not loaded:
        return ClockOutcome.KEPT
    reasons = {reason for _, of_reading in loaded for reason in of_reading}
    return clock_outcome(asked_mhz, statistics.fmean(mhz for mhz, _ in loaded), reasons)
