"""Ours and lowtime on one pipeline: both scored on the same real points, at the same deadlines."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kareus.pareto import pareto_front
from kareus.pipeline.solver.frontier import plans_within
from kareus.pipeline.solver.problem import Problem

if TYPE_CHECKING:  # lowtime is not there in every test
    from iteration.peer import PeerRun

DEADLINES = 20
"""At least so many are planned for in the time that is reported, evenly spaced from lowtime's fastest plan to its most
frugal one."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One pipeline."""

    peer_cpu_s: float
    """lowtime's whole run."""
    cpu_s: float
    """Ours, for all these deadlines."""
    gaps: Array
    """Certified gap of each of our plans."""
    excesses: Array
    """Our energy over lowtime's, less 1, at each deadline."""
    everywhere: Array
    """The same at the makespan of every plan of lowtime that no other of its plans dominates."""

    @property
    def speedup(self) -> float:
        """How many times faster ours is."""
        return self.peer_cpu_s / self.cpu_s


def compare(problem: Problem, run: "PeerRun") -> Comparison:
    """Run ours beside lowtime's `run` on the same pipeline.

    A deadline is the makespan of a plan of lowtime, so that none of its time is wasted.
    """
    peer = pareto_front([problem.cost(choice) for choice in run.choices])
    deadlines = peer[evenly_spaced(peer[:, 0], DEADLINES)]
    began_s = time.process_time()
    plans = plans_within(problem, deadlines[:, 0].tolist())
    cpu_s = time.process_time() - began_s
    everywhere = plans_within(problem, peer[:, 0].tolist())
    return Comparison(
        peer_cpu_s=run.cpu_s,
        cpu_s=cpu_s,
        gaps=np.array([plan.gap for plan in plans]),
        excesses=np.array([plan.energy_j for plan in plans]) / deadlines[:, 1] - 1,
        everywhere=np.array([plan.energy_j for plan in everywhere]) / peer[:, 1] - 1,
    )


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
