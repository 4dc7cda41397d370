"""Measurements of one iteration of a trainer by a rank, in memory; `tables` has them as columns."""

from dataclasses import dataclass

from kareus.device.held_clock import ClockReading
from kareus.graph.instruction import InstructionKey

DRIVER = "driver"
"""Selector of iterations that ran at the driver's own clock, in part at least, whatever was chosen for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionRecord:
    """One instruction that was run."""

    key: InstructionKey
    start_s: float
    """From the start of the iteration."""
    time_s: float
    energy_j: float | None
    """Of this rank's GPU, from its counter; None where nothing measures it."""
    frequency_mhz: int | None
    """SM clock that was asked for; None where none was."""
    observed_mhz: int | None
    """SM clock that was last read while it ran; None if it ran between two readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecord:
    """One iteration, from its begin to its end as the adapter tells them."""

    iteration: int
    selector: str
    """Name of what chose the clocks, or `DRIVER`."""
    time_s: float
    energy_j: float | None
    tokens: int | None
    """That all replicas trained on; None where the adapter is not told."""
    frequency_mhz: int | None
    """The one SM clock that was asked for; None if there were several, or none."""
    observed_mhz: int | None
    """Median of the SM clocks that were read."""
    instructions: tuple[InstructionRecord, ...]
    counter: tuple[tuple[float, float], ...] = ()
    """Movements of the energy counter meanwhile: seconds from the start of the iteration, and joules."""
    readings: tuple[ClockReading, ...] = ()
    """Of the clock meanwhile, seconds from the start of the iteration."""
