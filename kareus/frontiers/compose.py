"""Composing partitions into the points of one instruction at one frequency, without a Cartesian product.

The sum over partitions is separable, so the Pareto set of the sum is the pruned Minkowski sum of the partitions' Pareto
sets: exact, unless sets are so large that they are thinned, and then compositions say so. Objectives are time and
effective energy, which is energy less blocking power times time: what a pipeline can be charged for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.gpu_model.waiting import effective_energy_j
from kareus.pareto import Points, pareto_mask
from kareus.schedule.records import Choice

MOST_POINTS = 500
"""Non-dominated sums kept after each part. Where running costs less power than waiting, every combination of options is
one, and their number would be the product over all parts; elsewhere it stays far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A measured way to run one partition at the frequency in question."""

    time_s: float
    energy_j: float
    choice: Choice
    time_error_s: float = 0.0
    """Standard error, as the next; 0 where costs are known."""
    energy_error_j: float = 0.0
    is_power_limited: bool = False
    """Whether the power limit kept the GPU below the frequency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedPartition:
    """A kind of partition of the instruction; all its occurrences run the same way (paper, section 4.4)."""

    multiplicity: int
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedPoint:
    """One non-dominated way to run all partitions."""

    time_s: float
    energy_j: float
    choices: tuple[Choice, ...]
    time_error_s: float
    """Standard error, as the next; those of different partitions are independent."""
    energy_error_j: float
    is_power_limited: bool
    """Whether one of the options is."""
    is_thinned: bool
    """Whether other non-dominated ways were left out because there are more than `MOST_POINTS`."""


def compose(parts: Sequence[RepeatedPartition], blocking_power_w: float) -> list[ComposedPoint]:
    """Non-dominated sums over `parts`, by rising time; one option for each part.

    Exact up to `MOST_POINTS` after each part; beyond, compositions say that they are thinned. Returns nothing if a part
    has no option.
    """
    is_thinned = False
    counts = [part.multiplicity for part in parts]
    costs = np.zeros((1, 2))
    picks = np.zeros((1, 0), dtype=np.int64)
    for part in parts:
        part_costs = part.multiplicity * np.array([(o.time_s, o.energy_j) for o in part.options]).reshape(-1, 2)
        sums = (costs[:, None, :] + part_costs[None, :, :]).reshape(-1, 2)
        undominated = np.flatnonzero(pareto_mask(effective(sums, blocking_power_w)))
        kept = _thinned(undominated, sums)
        is_thinned |= len(kept) < len(undominated)
        costs = sums[kept]
        before, option = np.divmod(kept, max(1, len(part_costs)))
        picks = np.column_stack((picks[before], option))
    order = np.argsort(costs[:, 0])
    return [
        ComposedPoint(
            time_s=float(costs[row, 0]),
            energy_j=float(costs[row, 1]),
            choices=tuple(option.choice for option in options),
            time_error_s=math.hypot(*(n * option.time_error_s for n, option in zip(counts, options, strict=True))),
            energy_error_j=math.hypot(*(n * option.energy_error_j for n, option in zip(counts, options, strict=True))),
            is_power_limited=any(option.is_power_limited for option in options),
            is_thinned=is_thinned,
        )
        for row in order
        for options in [[part.options[pick] for part, pick in zip(parts, picks[row], strict=True)]]
    ]


def _thinned(kept: NDArray[np.int64], sums: Points) -> NDArray[np.int64]:
    """Return at most `MOST_POINTS` of the rows `kept`, evenly spaced by rank in time, both ends included."""
    if len(kept) <= MOST_POINTS:
        return kept
    by_time = kept[np.argsort(sums[kept, 0])]
    ranks = np.linspace(0, len(by_time) - 1, MOST_POINTS).round().astype(np.int64)
    return np.asarray(by_time[ranks], dtype=np.int64)


def effective(costs: Points, blocking_power_w: float) -> Points:
    """Turn (time_s, energy_j) rows into (time_s, effective_energy_j) rows."""
    return np.column_stack((costs[:, 0], effective_energy_j(costs[:, 1], costs[:, 0], blocking_power_w)))
