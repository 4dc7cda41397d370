"""Whatever happens amid a training, the trainer ends as it does without Kareus, and saves the same weights."""

from pathlib import Path

import pytest
from helpers.fake_device import FakeDevice
from helpers.trainer_events import EVENTS, TRAINERS, Outcome, outcome_of

from kareus.adapters.recorder import table_path
from kareus.adapters.records import DRIVER
from kareus.adapters.tables import STEPS
from kareus.artifacts.tables import read_table

DEFAULT = ("own loop, no handler", "SIGTERM")
"""Where nobody handles a signal Python runs no `finally` block; with Kareus it does."""


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_saves_the_same_weights_as_without_kareus(tmp_path: Path, trainer: str, event: str) -> None:
    without = outcome_of(trainer, event, tmp_path / "without", has_kareus=False)
    with_kareus = outcome_of(trainer, event, tmp_path / "with", has_kareus=True)
    gpu = FakeDevice(tmp_path / "with")
    assert "lock 1410" in gpu.calls()
    if (trainer, event) == DEFAULT:
        assert without == Outcome(ended="signal 15")
        assert with_kareus == Outcome(ended="exit 143")
    else:
        assert with_kareus == without
        assert with_kareus.saved != "nothing"
    if event == "SIGTERM":
        assert not gpu.locked.exists()
    else:
        steps = read_table(table_path(tmp_path / "with/tables", STEPS, 0), STEPS)
        assert steps["selector"][-1] == DRIVER
