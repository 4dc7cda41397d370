"""Programs: what a testbed executes repeatedly inside a measurement window.

A partition under a schedule, a component alone and a whole pipeline instruction are all programs:
steps in order, each a run of operators with at most one collective beside or after it.
"""

from dataclasses import dataclass

from kareus.graph.records import AnyCollective, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Operators in order, and one collective that starts together with one of them."""

    operators: tuple[Operator, ...] = ()
    collective: AnyCollective | None = None
    launch: int = 0
    """Index of the operator beside which the collective starts; `len(operators)` starts it after all of them."""
    sm_count: int = 0
    """SMs given to the collective; 0 without a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Steps in order; every step waits for the one before."""

    name: str
    """Name in tables and log lines; not part of the program's identity."""
    steps: tuple[Step, ...]
    blocks: tuple[int, int] | None = None
    """First step of the transformer blocks and the one after their last, if this is a whole pipeline instruction."""
