"""Routing of tokens in a benchmark of experts: how many copies of them the busiest rank has, in how many groups.

AIConfigurator draws the share of each expert from a power law between one token and 80 % of all, gives no expert more
tokens than there are, and measures the rank whose experts have most. What it drew is not known, so that means over
draws of ours stand for it.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from kareus.arrays import Array

BALANCED = "balanced"
POWER_LAWS = ("power_law_1.01", "power_law_1.2")
ROUTINGS = (BALANCED, *POWER_LAWS)
DRAWS = 24
"""Draws that a mean is of."""
LARGEST_SHARE = 0.8
"""Tokens of an expert at the upper end of the power law, over all tokens."""
ROUNDS = 8
"""In which what is above an expert's most is given to the others."""
LEAST_COPIES = 0.5
"""Copies from which on an expert counts as having some."""


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What the busiest rank of a group has to multiply."""

    copies: float
    """Copies of tokens, one for each of its experts that a token goes to."""
    groups: int
    """Experts that have any."""
    is_even: bool
    """Whether all have the same number."""


@cache
def rank_load(tokens: int, experts: int, topk: int, ranks: int, routing: str) -> RankLoad:
    """Return the load of the busiest rank.

    Args:
        tokens: of all ranks.
        experts: of all ranks, the same number on each.
        topk: experts that a token goes to.
        ranks: of expert parallelism.
        routing: one of `ROUTINGS`.

    Example:
        >>> rank_load(4096, 128, 8, 4, "balanced")
        RankLoad(copies=8192.0, groups=32, is_even=True)
    """
    here = experts // ranks
    if routing == BALANCED:
        return RankLoad(copies=tokens * topk / ranks, groups=here, is_even=True)
    random, exponent = np.random.default_rng(0), 1 - float(routing.rpartition("_")[2])
    busiest = np.mean([_busiest(_drawn(random, tokens, experts, topk, exponent), here) for _ in range(DRAWS)], axis=0)
    return RankLoad(copies=float(busiest.sum()), groups=int((busiest >= LEAST_COPIES).sum()), is_even=False)


def _drawn(random: np.random.Generator, tokens: int, experts: int, topk: int, exponent: float) -> Array:
    """Copies of each expert: a power law by its inverse, scaled to all copies, none above the number of tokens."""
    most = (LARGEST_SHARE * tokens) ** exponent
    copies: Array = ((most - 1) * random.random(experts) + 1) ** (1 / exponent)
    copies *= tokens * topk / copies.sum()
    for _ in range(ROUNDS):
        above = np.maximum(copies - tokens, 0).sum()
        copies = np.minimum(copies, tokens)
        free = copies < tokens
        if not above or not free.any():
            break
        copies[free] *= 1 + above / copies[free].sum()
    return np.minimum(copies, tokens)


def _busiest(copies: Array, here: int) -> Array:
    """Copies of the experts of the rank that has most of all, the largest first."""
    ranks = copies.reshape(-1, here)
    return np.sort(ranks[np.argmax(ranks.sum(axis=1))])[::-1]
