"""Some elements of arrays that broadcast: GPUs, phases and clocks as the laws take them, for these elements alone."""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array, Indices
from kareus.gpu_model.coefficients import GpuCoefficients
from kareus.gpu_model.energy import Switching
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.overlap import Phase


@dataclass(frozen=True, slots=True)
class Elements:
    """Places in a shape that arrays broadcast to."""

    shape: tuple[int, ...]
    places: tuple[Indices, ...]
    """Indices along each axis, each of shape (elements,)."""

    def of(self, values: Array | float) -> Array:
        """Return the elements of `values`, shape (elements,), or () if all share one number."""
        if not np.ndim(values):
            return np.asarray(values)
        picked: Array = np.broadcast_to(values, self.shape)[self.places]
        return picked

    def gpu(self, gpu: Gpu) -> Gpu:
        """Return the GPU of every element: its coefficients are looked up as the laws ask for them."""
        return replace(gpu, coefficients=cast(GpuCoefficients, _CoefficientsOf(gpu.coefficients, self)))

    def phase(self, phase: Phase) -> Phase:
        """Return the phase of every element."""
        switching = Switching(self.of(phase.switching.core_j), self.of(phase.switching.fixed_j))
        held_sms, clocked = self.of(phase.held_sms), self.of(phase.clocked)
        return Phase(self.of(phase.time_s), self.of(phase.clock_share), switching, held_sms, clocked)


def elements_where(mask: NDArray[np.bool_]) -> Elements:
    """Return the elements at which `mask` is true."""
    return Elements(mask.shape, np.nonzero(mask))


class _CoefficientsOf:
    """Coefficients of the GPUs of some elements, each picked when a law first asks for it: laws of energy take few."""

    def __init__(self, coefficients: GpuCoefficients, elements: Elements) -> None:
        self._coefficients, self._elements = coefficients, elements

    def __getattr__(self, name: str) -> Array | float:
        value = getattr(self._coefficients, name)
        picked = self._elements.of(value) if np.ndim(value) else value
        setattr(self, name, picked)
        return picked
