"""Moves of the local search: plans to try in place of others, and what a neighbourhood is."""

from collections.abc import Callable
from dataclasses import dataclass

from kareus.arrays import Array, Indices
from kareus.pipeline.solver.lanes import Choices

FREE = -1
"""Stands for no instruction in `Moves.held`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Plans to try, before the other instructions of each adapt to what was changed."""

    choices: Choices
    """Shape (instructions, moves)."""
    plans: Indices
    """Index of the plan that each move starts from; shape (moves,)."""
    held: Indices
    """Instruction that keeps its point while all others adapt, `FREE` where every one adapts; shape (moves,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """One kind of move, and its budget."""

    moves: Callable[[Choices, Array], Moves]
    """Return the moves from plans, shape (instructions, plans), with deadlines in seconds, shape (plans,)."""
    moves_each: int
    """Upper bound on the number of moves from one plan; it limits how many plans are worked on at once."""
    steps: int
    """Number of moves that a plan makes at most, one after the other."""
