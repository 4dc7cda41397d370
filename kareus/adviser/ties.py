"""The margin within which layouts are tied: the GPU model's error where it was measured, else an assumption."""

from dataclasses import dataclass

from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.trust import known_uncertainty, trust

ASSUMED_PERCENT = 5.0
"""Margin in percent where no error of such predictions was measured: a rule, which says nothing of how right they are.

Errors of the measured iterations that ship are no substitute. Those are predicted with numbers of the software that ran
them, which were fitted to the same iterations; the adviser's layouts are predicted without any.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TieMargin:
    """By how much less time and energy than predicted a layout would have to take, to count as tied."""

    time_percent: float
    energy_percent: float
    is_measured: bool
    """Whether it is the error of held-out workloads, not an assumption."""
    error: str
    """What is known of the GPU model's error, in words."""

    @property
    def words(self) -> str:
        """The margin in words, and why it is that."""
        if self.is_measured:
            return (
                f"{self.time_percent:g} % less time and {self.energy_percent:g} % less energy than predicted (the "
                "model's error)"
            )
        return f"{self.time_percent:g} % less time and energy than predicted (an assumed margin, not an error)"


def tie_margin(gpu: Gpu) -> TieMargin:
    """Return the margin for predictions on a GPU: the error of held-out workloads, or an assumed one."""
    known = known_uncertainty(gpu)
    return TieMargin(
        time_percent=ASSUMED_PERCENT if known is None else known.time_percent,
        energy_percent=ASSUMED_PERCENT if known is None else known.energy_percent,
        is_measured=known is not None,
        error=trust(gpu) if known is not None else f"not measured for these predictions ({trust(gpu)})",
    )
