"""A table of trainers and events, with the real trainers on CPUs; `pytest -s` on this file prints it."""

import sys
import warnings
from pathlib import Path

import pytest
from helpers import events
from helpers.driving import driven_plan
from helpers.events import EVENTS, EXCEPTION, FEWER, KEPT, MISSING, MORE, NO_PLAN, RAISED, REFUSED
from helpers.model_gpu import model_gpu
from helpers.titan_jobs import REGISTRY
from helpers.worlds import spawn

from kareus.device.claims import FOLDER_VARIABLE
from kareus.export.torchtitan import schedule_csv

OF_STEPS = {MISSING: REFUSED, EXCEPTION: RAISED, MORE: NO_PLAN, FEWER: NO_PLAN}
OF_PLANS = {MISSING: REFUSED, EXCEPTION: RAISED, MORE: KEPT, FEWER: KEPT}
pytestmark = pytest.mark.slow


def show(trainer: str, seen: dict[str, str]) -> None:
    for event in EVENTS:
        sys.stdout.write(f"| {trainer} | {event} | {seen[event]} |\n")


@pytest.mark.parametrize("trainer", ["hugging_face", "lightning"])
def test_what_goes_wrong_harms_no_training_at_one_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the trainers, about themselves
        seen = events.of_steps(getattr(events, trainer), model_gpu(monkeypatch), tmp_path)
    show(trainer, seen)
    assert seen == OF_STEPS


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
def test_what_goes_wrong_harms_no_training_by_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    (tmp_path / "planned.py").write_text(REGISTRY)
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan/fastest_sequential+perseus.schedule.csv").write_text(schedule_csv(driven_plan(2, 4)))
    monkeypatch.chdir(tmp_path)
    spawn(2, getattr(events, trainer), tmp_path, tmp_path)
    for rank in range(2):
        cells = (tmp_path / str(rank) / "cells.txt").read_text().splitlines()
        seen = dict(zip(EVENTS, cells, strict=True))
        assert seen == OF_PLANS
    show(trainer, seen)
