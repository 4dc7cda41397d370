"""Missing plans, exceptions and other replicas harm no training of the real trainers on CPUs."""

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

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("trainer", OF_STEPS)
def test_what_goes_wrong_harms_no_training_at_one_clock(tmp_path: Path, trainer: str) -> None:
    assert cells_of(trainer, tmp_path) == [{MISSING: REFUSED, EXCEPTION: RAISED, MORE: NO_PLAN, FEWER: NO_PLAN}]


@pytest.mark.parametrize("trainer", OF_PLANS)
def test_what_goes_wrong_harms_no_training_by_a_plan(tmp_path: Path, trainer: str) -> None:
    expected = {MISSING: REFUSED, EXCEPTION: RAISED, MORE: KEPT, FEWER: KEPT}
    assert cells_of(trainer, tmp_path) == [expected] * RANKS
