"""The margin within which layouts are tied: by how much their predictions may be off."""

from collections.abc import Sequence
from dataclasses import dataclass

from kareus.gpu_model.trust import known_uncertainty
from kareus.prediction.errors import error_of, time_percent
from kareus.workload.config import Workload

ENERGY = "that of energy was not measured, and taken to be as large"
"""Where a margin of energy comes from that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TieMargin:
    """By how much less time and energy than predicted a layout would have to take, to count as tied."""

    time_percent: float
    energy_percent: float
    source: str
    """Where the margin comes from, in words."""
    measured_percent: float | None
    """Of layouts whose kind was measured, where there are others, too, whose margin is the above; else None."""

    def of(self, workload: Workload) -> tuple[float, float]:
        """Return the percent of time and of energy for one of the layouts."""
        if self.measured_percent is None or error_of(workload) is None:
            return self.time_percent, self.energy_percent
        return self.measured_percent, self.measured_percent

    @property
    def words(self) -> str:
        """The margin in words, and why it is that."""
        if self.measured_percent is None:
            margins = f"{self.time_percent:g} % less time and {self.energy_percent:g} % less energy"
            return f"{margins} than predicted ({self.source})"
        return f"less time and energy than predicted by what either may be off: {self.energy_words}"

    @property
    def energy_words(self) -> str:
        """By how much energies may be off, and why it is that."""
        if self.measured_percent is None:
            return f"{self.energy_percent:g} % ({self.source})"
        measured = f"{self.measured_percent:g} % where a layout's kind was measured"
        return f"{measured}, else {self.energy_percent:g} % ({self.source})"


def tie_margin(workloads: Sequence[Workload]) -> TieMargin:
    """Return the margin for predictions of layouts, of which there is one at least."""
    planned, percent = known_uncertainty(workloads[0].gpu), max(map(time_percent, workloads))
    measured = [time_percent(workload) for workload in workloads if error_of(workload) is not None]
    if planned is not None:
        source = "the model's error"
    elif len(measured) == len(workloads):
        source = f"the model's error of time; {ENERGY}"
    else:
        source = f"the largest error of time of other software and GPUs; {ENERGY}"
    return TieMargin(
        time_percent=percent,
        energy_percent=percent if planned is None else planned.energy_percent,
        source=source,
        measured_percent=max(measured) if planned is None and 0 < len(measured) < len(workloads) else None,
    )
