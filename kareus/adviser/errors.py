"""How far the GPU model may be off: the error within which layouts are called tied."""

from dataclasses import dataclass

from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.trust import known_uncertainty, numbers_of

ASSUMED_PERCENT = 5.0
"""Error in percent that stands in for one that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIterations:
    """Error of predicted times on the measured iterations that ship, which the software's numbers were fitted to."""

    rows: int
    time_percent: float
    """Error that 90 % of them do not exceed."""
    of: str
    """Families of `training_iterations.csv`."""


MEASURED_ITERATIONS = {
    # h100-sxm5-80gb
    "version-8-076b36581c64ab7f": MeasuredIterations(rows=114, time_percent=5.3, of="dgxc, llm-foundry"),
    # a100-sxm4-80gb
    "version-8-20ba397e767dc115": MeasuredIterations(
        rows=711, time_percent=13.7, of="selective-recompute, vtrain-single"
    ),
}
"""By the numbers of the GPU that they were predicted with (`numbers_of`); a test predicts them anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """Error that decides about ties, and where it is from."""

    time_percent: float
    energy_percent: float
    words: str
    """Both in words, and what they are the errors of."""


def model_error(gpu: Gpu) -> ModelError:
    """Return the error of iterations on a GPU: of held-out workloads, of measured iterations, or an assumed one."""
    known, numbers = known_uncertainty(gpu), numbers_of(gpu)
    if known is not None:
        words = (
            f"{known.time_percent:.1f} % of time and {known.energy_percent:.1f} % of energy "
            "(90 % of held-out workloads are within)"
        )
        return ModelError(time_percent=known.time_percent, energy_percent=known.energy_percent, words=words)
    measured = MEASURED_ITERATIONS.get(numbers)
    if measured is not None:
        words = (
            f"{measured.time_percent:.1f} % of time (90 % of {measured.rows} measured iterations are within, which "
            f"their software's numbers were fitted to: {measured.of}) and {ASSUMED_PERCENT:g} % of energy (assumed, "
            "not measured)"
        )
        return ModelError(time_percent=measured.time_percent, energy_percent=ASSUMED_PERCENT, words=words)
    words = f"{ASSUMED_PERCENT:g} % of time and energy (assumed: no iteration on this GPU was measured)"
    return ModelError(time_percent=ASSUMED_PERCENT, energy_percent=ASSUMED_PERCENT, words=words)
