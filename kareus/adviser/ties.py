"""The margin within which layouts are tied: the largest error of their predictions."""

from collections.abc import Sequence
from dataclasses import dataclass

from kareus.gpu_model.trust import known_uncertainty
from kareus.prediction.errors import error_of, time_percent
from kareus.workload.config import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TieMargin:
    """By how much less time and energy than predicted a layout would have to take, to count as tied."""

    time_percent: float
    energy_percent: float
    source: str
    """Where the margin comes from, in words."""

    @property
    def words(self) -> str:
        """The margin in words, and why it is that."""
        margins = f"{self.time_percent:g} % less time and {self.energy_percent:g} % less energy"
        return f"{margins} than predicted ({self.source})"


def tie_margin(workloads: Sequence[Workload]) -> TieMargin:
    """Return the margin for predictions of layouts, of which there is one at least: the largest error of any."""
    workload = max(workloads, key=time_percent)
    planned, percent = known_uncertainty(workload.gpu), time_percent(workload)
    if planned is not None:
        source = "the model's error"
    elif error_of(workload) is not None:
        source = "the model's error of time; that of energy was not measured, and taken to be as large"
    else:
        measured = [time_percent(other) for other in workloads if error_of(other) is not None]
        others = f"; layouts whose kind was measured: {max(measured):g} %" if measured else ""
        source = (
            f"the largest error of other software and GPUs, of {'some' if measured else 'any'} layouts here{others}"
        )
    return TieMargin(
        time_percent=percent,
        energy_percent=percent if planned is None else planned.energy_percent,
        source=source,
    )
