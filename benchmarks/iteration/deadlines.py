"""Which plans of the peer set the deadlines of a comparison."""

import numpy as np
from numpy.typing import NDArray


def evenly_spaced(times_s: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Which of some rising times to take so that they are about evenly spaced and `count` or a few more; else all.

    Where times lie far apart several targets have the same time below them, so that it takes more targets.
    """
    targets = count
    while len(times_s) > count:
        targets_s = np.linspace(times_s[0], times_s[-1], targets)
        chosen = np.unique(times_s.searchsorted(targets_s, side="right") - 1)
        if len(chosen) >= count:
            return chosen
        targets += 1
    return np.arange(len(times_s))
