"""Types of NumPy arrays, whose shapes are in docstrings, in brackets; random numbers that depend on their purpose."""

import hashlib

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Numbers, such as one for each candidate."""
Indices = NDArray[np.int64]
"""Whole numbers, most of them positions in another array."""


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Return the generator of `purpose` under `seed`: it depends on what it is for, not on what was drawn before."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint64))
