"""Whatever happens amid a training, the trainer ends as it does without Kareus, and saves the same weights.

Exceptions and other replicas harm no training either. Both are tried on the real trainers, on CPUs; each is imported
once, by a process from which all its trainings are forked: those of Megatron-Core in `test_megatron.py`, of torchtitan
in `test_torchtitan.py`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest
from helpers.events import EXCEPTION, FEWER, MISSING, MORE, NO_PLAN, OF_STEPS, RAISED, REFUSED, cells_of
from helpers.trainer_events import EVENTS, MEGATRON, TRAINERS, check_saved, importers

pytestmark = pytest.mark.slow

ImporterOf = Callable[[str], Executor]


@pytest.fixture(scope="module")
def importer_of() -> Iterator[ImporterOf]:
    with importers() as importer_of:
        yield importer_of


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("trainer", [trainer for trainer in TRAINERS if trainer != MEGATRON])
def test_a_trainer_saves_the_same_weights_as_without_kareus(
    tmp_path: Path, importer_of: ImporterOf, trainer: str, event: str
) -> None:
    check_saved(importer_of(trainer), trainer, event, tmp_path)


@pytest.mark.parametrize("trainer", OF_STEPS)
def test_what_goes_wrong_harms_no_training_at_one_clock(tmp_path: Path, importer_of: ImporterOf, trainer: str) -> None:
    expected = {MISSING: REFUSED, EXCEPTION: RAISED, MORE: NO_PLAN, FEWER: NO_PLAN}
    assert cells_of(importer_of(trainer), trainer, tmp_path) == [expected]
