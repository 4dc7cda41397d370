"""Whatever happens amid a training, the trainer ends as it does without Kareus, and saves the same weights.

Missing plans, exceptions and other replicas harm no training either. Both are tried on the real trainers, on CPUs; each
is imported once, by a process from which all its trainings are forked.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest
from helpers.events import (
    EXCEPTION,
    FEWER,
    KEPT,
    MISSING,
    MORE,
    NO_PLAN,
    OF_PLANS,
    OF_STEPS,
    RAISED,
    RANKS,
    REFUSED,
    cells_of,
)
from helpers.fake_device import FakeDevice
from helpers.trainer_events import EVENTS, TRAINERS, Outcome, importers, outcome_of

from kareus.adapters.recorder import table_path
from kareus.adapters.records import DRIVER
from kareus.adapters.tables import STEPS
from kareus.artifacts.tables import read_table

pytestmark = pytest.mark.slow

DEFAULT = ("own loop, no handler", "SIGTERM")
"""Where nobody handles a signal Python runs no `finally` block; with Kareus it does."""
ImporterOf = Callable[[str], Executor]


@pytest.fixture(scope="module")
def importer_of() -> Iterator[ImporterOf]:
    with importers() as importer_of:
        yield importer_of


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_saves_the_same_weights_as_without_kareus(
    tmp_path: Path, importer_of: ImporterOf, trainer: str, event: str
) -> None:
    without, with_kareus = (
        outcome_of(importer_of(trainer), trainer, event, tmp_path / folder, has_kareus=folder == "with")
        for folder in ("without", "with")
    )
    gpu = FakeDevice(tmp_path / "with")
    assert gpu.calls()[0].startswith("lock")  # a request that the next one overtakes is never locked
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


@pytest.mark.parametrize("trainer", OF_STEPS)
def test_what_goes_wrong_harms_no_training_at_one_clock(tmp_path: Path, importer_of: ImporterOf, trainer: str) -> None:
    expected = {MISSING: REFUSED, EXCEPTION: RAISED, MORE: NO_PLAN, FEWER: NO_PLAN}
    assert cells_of(importer_of(trainer), trainer, tmp_path) == [expected]


@pytest.mark.parametrize("trainer", OF_PLANS)
def test_what_goes_wrong_harms_no_training_by_a_plan(tmp_path: Path, importer_of: ImporterOf, trainer: str) -> None:
    expected = {MISSING: REFUSED, EXCEPTION: RAISED, MORE: KEPT, FEWER: KEPT}
    assert cells_of(importer_of(trainer), trainer, tmp_path) == [expected] * RANKS
