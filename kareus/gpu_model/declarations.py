"""Records of the declaration of a coefficient: unit, range, prior of a search and prior of a fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_KEY = "coefficient"


@dataclass(frozen=True, slots=True)
class TextbookPrior:
    """Expectation of a coefficient on any GPU before anything was measured: log-normal around a median.

    It comes from textbooks and datasheets; none was fitted.
    """

    median: float
    spread: float | None
    """Standard deviation of the logarithm; None if measurements never recalibrate the coefficient."""
    origin: str
    """Source of the numbers, or the reason why the coefficient is never recalibrated."""


class FitData(StrEnum):
    """Reference data that identify a coefficient."""

    FRONTIERS = "planned frontiers"
    REDUCTIONS = "measured reductions"
    """Reductions of tuned schedules; such a coefficient does not show in planned frontiers of baselines."""
    KERNELS = "measured kernels"
    """Times and powers of single GEMMs, attentions and collectives; such coefficients are listed where they are fitted
    (`kareus.calibrate.priors`)."""
    ITERATIONS = "measured iterations"
    """Times of whole iterations; they tell numbers of software, not of GPUs (`kareus.calibrate.software_fit`)."""


@dataclass(frozen=True, slots=True)
class FitPrior:
    """Expectation of a coefficient in a fit to reference data, and the bounds within which it makes physical sense.

    The values are those of earlier measurements of such GPUs, of earlier fits, or usual ones.
    """

    data: FitData
    value: float
    lower: float
    upper: float
    spread: float
    """Standard deviation of the logarithm."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """Declaration of one coefficient; its name and meaning are those of its field."""

    unit: str
    """Unit, as messages name it."""
    least: float
    """Smallest allowed value. What divides a time or an energy has one above 0: a share of 1e-300 makes 1e300 s."""
    most: float
    """Largest allowed value, beyond any GPU of today."""
    prior: TextbookPrior
    fit: FitPrior | None = None
    """None if fits leave the coefficient as it is."""

    @property
    def is_share(self) -> bool:
        """Whether the coefficient is a share, which cannot exceed 1."""
        return self.unit == "share"


def declared(
    unit: str, least: float, most: float, prior: TextbookPrior, fit: FitPrior | None = None
) -> Mapping[str, Coefficient]:
    """Return the metadata of a field that declare it as a coefficient; arguments as the fields of `Coefficient`."""
    return {_KEY: Coefficient(unit, least, most, prior, fit)}


def declaration_of(metadata: Mapping[str, Coefficient]) -> Coefficient:
    """Return the declaration in the metadata of a field."""
    return metadata[_KEY]
