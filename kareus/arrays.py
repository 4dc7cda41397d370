"""Types of NumPy arrays; shapes are in docstrings, in brackets."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Numbers, such as one for each candidate."""
Indices = NDArray[np.int64]
"""Whole numbers, most of them positions in another array."""
