"""How long stages take to start: importing what they need, before they do anything."""

import sys
from pathlib import Path

from kareus.cli import COMMANDS, STAGES
from runs.effort import Effort, run

LIMITS_S = {"": 0.5, "xgboost": 1.5, "torch": 2.5}
"""Asked for, by the heaviest thing that is imported."""
ON_DEMAND = {
    "search": "from kareus.search.surrogate import import_xgboost; import_xgboost()",
    "partition": "import kareus.partition.trace",
    "train": "import kareus.training.rank",
}
"""What a command imports only when it gets there."""


def start(command: str, heavy: str, repeats: int) -> Effort:
    """The least of some starts of a command; `heavy` is imported too."""
    lines = [f"import {(COMMANDS | STAGES)[command].module}", *([ON_DEMAND[command]] if heavy else [])]
    code = "; ".join(["import kareus.cli", *lines])
    starts = [run([sys.executable, "-c", code], Path.cwd()) for _ in range(repeats)]
    return min(starts, key=lambda effort: effort.cpu_s)


def starts(repeats: int = 3) -> dict[tuple[str, str], Effort]:
    """Starts of every stage's command by command and heaviest import."""
    stages = ["campaign", "schedule", "profile", "search", "frontier", "pipeline", "select", "end-to-end", "emulate"]
    plain = [(command, "") for command in (*stages, "report", "report-fleets")]
    return {key: start(*key, repeats) for key in (*plain, ("search", "xgboost"), ("partition", "torch"))}
