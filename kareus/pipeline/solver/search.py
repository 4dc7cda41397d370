"""Plans for deadlines: beams that the relaxation guides, and splices of their plans where gaps stay wide."""

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.lanes import Choices, energies_in_time_j
from kareus.pipeline.solver.splices import spliced
from kareus.pipeline.solver.starts import Starts

WIDE = 0.0012
"""Gap above which plans are spliced."""
NEARBY = (0.996, 1.0, 1.004)
"""Deadlines, as shares of one whose gap is wide, that plans to splice are made for."""


def search(starts: Starts, deadlines_s: Array) -> Choices:
    """Return a plan for each of rising deadlines in seconds, (deadlines,); shape (instructions, deadlines).

    Raises:
        ValueError: No plan keeps one of the deadlines.
        ArtifactError: HiGHS finds no optimum.
    """
    problem, choices = starts.problem, starts.plans(deadlines_s)
    bounds_j = np.array([starts.bound_j(deadline_s) for deadline_s in deadlines_s])
    is_wide = energies_in_time_j(problem, choices, deadlines_s) > bounds_j * (1 + WIDE)
    if is_wide.any():
        nearby_s = np.unique(np.clip(np.outer(deadlines_s[is_wide], NEARBY), *starts.range_s()))
        sources = np.hstack([choices, starts.plans(nearby_s, depth_first=True)])
        choices[:, is_wide] = spliced(problem, choices[:, is_wide], deadlines_s[is_wide], sources)
    return choices
