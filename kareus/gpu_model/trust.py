"""Known errors of the GPU model's predictions, and the numbers of a GPU for which they are known."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from kareus.artifacts.records import content_hash
from kareus.errors import described_in
from kareus.gpu_model.coefficients import OF_GROUPS, OF_SOFTWARE, GpuCoefficients
from kareus.gpu_model.gpu import Gpu, KernelUncertainty, Uncertainty
from kareus.gpu_model.thermal import of_profiles

MODEL_VERSION = "9"
"""Version of the laws. A change that gives other times or energies for the same numbers of a GPU raises it, so that old
measurements are not mixed in; what comes with a coefficient of its own does not, since that is one of these numbers."""

_OF_NO_PREDICTION = frozenset(
    {
        "memory_gib",
        "search_frequencies",
        "clock_change",
        "uncertainty",
        "kernel_uncertainty",
        "job_gpus",
        "host_gb_per_s",
        "host_memory_gb_per_s",
        "ambient_c",
    }
)
"""Fields of a GPU that no measured time or energy depends on, or that the job sets: what fits into it, which clocks are
searched and what a plan pays for changing them, the estimates themselves, of how many GPUs the job is, the host's
memory, which only offloading needs, and the air, of which no measurement says how warm it was."""

_OF_NO_KERNEL = frozenset(
    {"launches_ahead", "blocking_power_w", "waiting_shares", "job_gpus", "nvlink_domain", "fp4_speedup"}
)
"""Further fields that no single measured kernel depends on."""


_OF_NO_TIME = frozenset({"blocking_power_w", "waiting_shares"})
"""Further fields that no predicted time depends on."""


def numbers_of(gpu: Gpu) -> str:
    """Return the name of the numbers that predictions for `gpu` are made from: the laws' version and a hash.

    Hardware numbers count as coefficients do: errors of an A100 are not known for a GPU of another bandwidth. So does
    the GPU's name, which tells on which GPU the reference was measured.
    """
    return _name_of(of_profiles(gpu), _OF_NO_PREDICTION)


def time_numbers_of(gpu: Gpu) -> str:
    """Return the name of the numbers that predicted times are made from, as `numbers_of` does of times and energies."""
    return _name_of(of_profiles(gpu), _OF_NO_PREDICTION | _OF_NO_TIME)


def time_values(gpu: Gpu) -> dict[str, Any]:
    """Return the fields of a GPU that predicted times are made from, by name, but for those at their default."""
    return _numbers(of_profiles(gpu), _OF_NO_PREDICTION | _OF_NO_TIME)


def _name_of(gpu: Gpu, left_out: frozenset[str]) -> str:
    return f"version-{MODEL_VERSION}-{content_hash(_numbers(gpu, left_out))}"


def _numbers(record: Gpu | GpuCoefficients, left_out: Collection[str]) -> dict[str, Any]:
    """Return the fields of a record by name; one at its default says nothing, so that a new one renames none."""
    values = {f: getattr(record, f.name) for f in fields(record) if f.name not in left_out}
    return {f.name: value for f, value in values.items() if value != f.default}


def kernel_numbers_of(gpu: Gpu) -> str:
    """Return the name of the numbers that predictions of single kernels are made from, whatever software drives a GPU.

    What a software sets is left out: its own numbers, attention of its kernel library, and the temperature that it
    keeps a chip at, with what that leaks. So are the numbers of grouped GEMMs, whose errors are not among them.
    """
    of_libraries = {name for numbers in gpu.libraries.values() for name in numbers}
    elsewhere = {*OF_SOFTWARE, *OF_GROUPS, *of_libraries, "reference_temperature_c", "warm_leakage_w"}
    coefficients = _numbers(gpu.coefficients, elsewhere)
    numbers = _numbers(gpu, _OF_NO_PREDICTION | _OF_NO_KERNEL)
    return f"version-{MODEL_VERSION}-{content_hash({**numbers, 'coefficients': coefficients})}"


def known_uncertainty(gpu: Gpu) -> Uncertainty | None:
    """Return how far predictions for `gpu` are off, or None if that was not estimated for the numbers that it has.

    An estimate that names no numbers holds for none.
    """
    uncertainty = gpu.uncertainty
    return uncertainty if uncertainty is not None and uncertainty.estimated_for == numbers_of(gpu) else None


def known_kernel_uncertainty(gpu: Gpu) -> KernelUncertainty | None:
    """Return how far predicted kernels of `gpu` are off, or None if not estimated for the numbers that it has."""
    uncertainty = gpu.kernel_uncertainty
    return uncertainty if uncertainty is not None and uncertainty.estimated_for == kernel_numbers_of(gpu) else None


def trust(gpu: Gpu) -> str:
    """Return in words how far predictions for `gpu` are off, if that was estimated for the numbers that it has."""
    error = known_uncertainty(gpu)
    if error is None:
        return _kernel_trust(gpu)
    return (
        f"9 of 10 planned iterations are within {error.time_percent:.1f} % of time and {error.energy_percent:.1f} % of "
        "energy, of workloads that the fit had not seen"
    )


def _kernel_trust(gpu: Gpu) -> str:
    """What is known of a GPU that was fitted to single kernels."""
    error = known_kernel_uncertainty(gpu)
    if error is None:
        return "errors not measured for this GPU"
    energy = "" if error.energy_percent is None else f" and {error.energy_percent:.1f} % of energy"
    return (
        f"9 of 10 single kernels are within {error.time_percent:.1f} % of time{energy}, of shapes that the fit had not "
        f"seen; planned iterations were not measured ({described_in('trust.md')})"
    )
