"""Choices of clocks for a rank, iteration by iteration: by a plan, or by anything else that names them."""

from dataclasses import dataclass
from typing import Protocol

from kareus.adapters.layout import RankLayout, steps_of
from kareus.adapters.records import IterationRecord
from kareus.plans.document import Plan
from kareus.runtime.follower import PlannedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenIteration:
    """What one rank is to run in one iteration."""

    steps: tuple[PlannedStep, ...]
    """Instructions in order, with their clocks."""
    selector: str
    """Name of the choice in tables: a plan's selector, or `profile`."""


class ClockChoice(Protocol):
    """Decides the clocks of one rank. Adapters of trainers know of nothing else."""

    def iteration(self, number: int) -> ChosenIteration:
        """Return what iteration `number`, counted from 0, is to run; called once, before it begins.

        Ranks that must agree, agree here: all of them call it for the same iteration.
        """

    def take_note(self, record: IterationRecord) -> None:
        """Learn what an iteration took; called in order, one or more iterations later."""


class PlanChoice:
    """Implements `ClockChoice` by one plan for all iterations."""

    def __init__(self, plan: Plan, layout: RankLayout) -> None:
        """Follow `plan` on a rank."""
        self._chosen = ChosenIteration(steps=steps_of(plan, layout), selector=plan.selector)

    def iteration(self, number: int) -> ChosenIteration:
        """The same for all."""
        return self._chosen

    def take_note(self, record: IterationRecord) -> None:
        """A plan learns nothing."""
