"""The table of what trainers obey."""

import pytest
from helpers.builders import CONFIG

from kareus.export.stage import FORMATS
from kareus.pipeline.methods import METHODS
from kareus.software.trainers import trainer_of, trainers


def test_every_software_has_one_trainer():
    profiles = {path.stem for path in (CONFIG / "software").glob("*.yaml")} - {"nemo"}  # another name of megatron-core
    told = [name for trainer in trainers().values() for name in trainer.software]
    assert len(told) == len(set(told))
    assert set(told) == profiles


@pytest.mark.parametrize("name", trainers())
def test_rows_name_what_there_is(name):
    trainer = trainers()[name]
    assert trainer.export in FORMATS
    assert (CONFIG.parent / trainer.page).exists()
    assert trainer.method in {method.name for method in METHODS}
    assert "{" not in " ".join(trainer.turn_on("plan.json", "edp"))


def test_a_profile_of_ones_own_obeys_what_megatron_does():
    assert trainer_of("mine") is trainers()["megatron-core"]
