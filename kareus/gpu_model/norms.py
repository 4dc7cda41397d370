"""Joining times of what runs at once."""

import numpy as np

from kareus.arrays import Array

ROOFLINE_NORM = 4
"""Exponent that joins compute and memory time; infinity would be a sharp roofline."""


def longer_s(one_s: Array, other_s: Array | float) -> Array:
    """Return the longer of two times that overlap almost entirely: their 4-norm."""
    long_s, short_s = np.maximum(one_s, other_s), np.minimum(one_s, other_s)
    return long_s * (1 + (short_s / long_s) ** ROOFLINE_NORM) ** (1 / ROOFLINE_NORM)
