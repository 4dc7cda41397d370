"""Joining times of what runs at once."""

import numpy as np

from kareus.arrays import Array

ROOFLINE_NORM = 4
"""Exponent that joins compute and memory time; infinity would be a sharp roofline."""
HOST_NORM = 6
"""Exponent that joins times of host and GPU over a part of an instruction, or a whole one.

Chosen on measured iterations that show the host most, of vTrain: with 3 their error is 5.9 % instead of 5.3
(docs/evidence/fidelity-2026-11.md).
"""

LEAST_S = 1e-100
"""Divides in place of a time of 0: shorter than any other."""


def longer_s(one_s: Array, other_s: Array | float) -> Array:
    """Return the longer of two times that overlap almost entirely: their 4-norm."""
    return _joined_s(one_s, other_s, ROOFLINE_NORM)


def host_joined_s(gpu_s: Array, host_s: Array | float) -> Array:
    """Return the time of a stretch of kernels, whose parts wait for the GPU or for the host: their 6-norm."""
    return _joined_s(gpu_s, host_s, HOST_NORM)


def _joined_s(one_s: Array, other_s: Array | float, norm: int) -> Array:
    long_s, short_s = np.maximum(one_s, other_s), np.minimum(one_s, other_s)
    share = short_s / np.maximum(long_s, LEAST_S)
    return long_s * (1 + share**norm) ** (1 / norm)
