"""Randomness that depends on what it is for, and not on what was drawn before."""

import hashlib

import numpy as np


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Return the generator of `purpose` under `seed`."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint64))
