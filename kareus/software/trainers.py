"""Trainers and what they can run of a plan: whole instructions and their clocks, one clock for each step, or all of it.

The table is `trainers.yaml`. Ranking, answers and the commands that are printed last follow it.
"""

import json
import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path

from kareus.artifacts.configuration import parse_yaml
from kareus.artifacts.files import read_text
from kareus.artifacts.records import from_plain, suggest
from kareus.errors import ConfigError, described_in

TABLE = Path(__file__).with_name("trainers.yaml")
ENGINE = "kareus"
"""The trainer that runs all of a plan."""


class ClockPace(StrEnum):
    """How often a trainer can change the clock."""

    INSTRUCTION = "instruction"
    """Before each forward and backward of a stage, also of the only one, and before the update."""
    STEP = "step"
    """Between steps of the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObeyingTrainer:
    """A trainer, and what it can run of a plan."""

    title: str
    """Name in answers."""
    software: tuple[str, ...]
    """Profiles of software that stand for it."""
    clocks: ClockPace
    """How often it can change the clock."""
    overlaps: bool
    """Whether it runs nanobatches beside each other, with SMs and launches as planned."""
    limits_groups: bool
    """Whether its adapter limits the SMs of each kind of collective of weights; else NCCL's variables limit all."""
    export: str
    """Format of `kareus export` that gives it the layout."""
    lines: tuple[str, ...]
    """What turns a plan on there: `{plan}` is its path, `{goal}` a selector, `{dry}` nothing or what `dry` says."""
    where: str
    """Where these lines go."""
    described: str
    """Page that describes that, below `docs/`."""
    dry: str = ', clocks="dry"'
    """What stands for `{dry}` in these lines to log clocks and set none."""
    settings: str | None = None
    """Name of the table of its settings; None where a plan is all that it needs."""
    words: dict[str, str] = field(default_factory=dict)
    """Names in titles of profiles that are not the trainer as it is today."""

    @property
    def method(self) -> str:
        """The method whose plans it can run.

        Example:
            >>> [trainer_of(name).method for name in ("megatron-core", "kareus", "nanotron")]
            ['sequential+perseus', 'kareus', 'sequential']
        """
        if self.overlaps:
            return "kareus"
        return "sequential+perseus" if self.clocks is ClockPace.INSTRUCTION else "sequential"

    @property
    def page(self) -> str:
        """Where that page is."""
        return described_in(self.described)

    @property
    def follows_plans(self) -> bool:
        """Whether what turns it on there reads a plan; else a clock is chosen in the first steps."""
        return any("{plan}" in line for line in self.lines)

    @property
    def obeys(self) -> str:
        """What it obeys, in words."""
        if self.overlaps:
            return "clocks, SMs and launches of each instruction"
        if self.clocks is ClockPace.INSTRUCTION:
            return "clocks of forwards, backwards and updates"
        return "one clock for each step"

    def turn_on(self, plan: str, goal: str) -> tuple[str, ...]:
        """Return the lines that turn a plan on, or let a clock be chosen.

        Args:
            plan: path of the plan.
            goal: selector of a clock, where there is one for each step.
        """
        return self._lines(plan, goal, "")

    def rehearse(self, plan: str, goal: str) -> tuple[str, ...]:
        """Return the lines of `turn_on` with what makes them log clocks and set none."""
        return self._lines(plan, goal, self.dry)

    @property
    def rehearsed_words(self) -> str:
        """What is said above the lines of `rehearse`, which have what it names."""
        return f"first with {self.dry.strip(', ')}, which only logs, then without"

    def _lines(self, plan: str, goal: str, dry: str) -> tuple[str, ...]:
        typed, quoted = json.dumps(plan, ensure_ascii=False), shlex.quote(plan)
        filled = (line.replace("{goal}", goal).replace("{dry}", dry) for line in self.lines)
        return tuple(line.replace('"{plan}"', typed).replace("{plan}", quoted) for line in filled)


@cache
def trainers() -> dict[str, ObeyingTrainer]:
    """Return all trainers by name."""
    return {name: from_plain(ObeyingTrainer, row) for name, row in parse_yaml(read_text(TABLE)).items()}


def trainer_by_name(name: str) -> ObeyingTrainer:
    """Return the trainer of a name that a user gives.

    Raises:
        ConfigError: there is none.
    """
    if name not in trainers():
        raise ConfigError(f"--trainer {name}: not known; {suggest(name, trainers())}.")
    return trainers()[name]


def trainer_of(software: str) -> ObeyingTrainer:
    """Return the trainer that a profile of software stands for; one's own profiles are taken to be Megatron-Core's."""
    by_name = trainers()
    return next((trainer for trainer in by_name.values() if software in trainer.software), by_name["megatron-core"])


def software_words(software: str) -> str:
    """Return a profile of software in words, for titles; one's own profiles by their name.

    Example:
        >>> [software_words(name) for name in ("megatron-core", "megatron-paper", "mine")]
        ['Megatron-Core', "the paper's Megatron-LM", 'mine']
    """
    trainer = trainer_of(software)
    return trainer.words.get(software, trainer.title if software in trainer.software else software)
