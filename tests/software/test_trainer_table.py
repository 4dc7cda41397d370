"""The table of what trainers obey."""

import argparse
import ast
import shlex

import pytest
from helpers.builders import CONFIG

from kareus.export.stage import FORMATS
from kareus.pipeline.methods import METHODS
from kareus.software.trainers import ENGINE, trainer_of, trainers
from kareus.training import stage


def test_every_software_has_one_trainer():
    profiles = {path.stem for path in (CONFIG / "software").glob("*.yaml")} - {"nemo"}  # another name of megatron-core
    told = [name for trainer in trainers().values() for name in trainer.software]
    assert len(told) == len(set(told))
    assert set(told) == profiles


@pytest.mark.parametrize("name", trainers())
def test_rows_name_what_there_is(name):
    trainer = trainers()[name]
    assert trainer.export in FORMATS
    assert (CONFIG.parent / "docs" / trainer.described).exists()
    assert trainer.method in {method.name for method in METHODS}
    shown, first = (" ".join(lines("plan.json", "edp")) for lines in (trainer.turn_on, trainer.rehearse))
    assert "{" not in shown + first
    assert trainer.dry in first and first.replace(trainer.dry, "") == shown


def test_the_engine_is_told_to_train_and_not_to_play_back():
    """Without a communicator a plan of the simulated testbed is played back; a path may have any character."""
    (line,) = trainers()[ENGINE].turn_on("my plans/fastest.json", "fastest")
    typed, command, *arguments = shlex.split(line)
    assert (typed, command) == ("kareus", "train")
    parser = argparse.ArgumentParser()
    stage.add_arguments(parser)
    asked = parser.parse_args(arguments)
    assert (str(asked.plan), asked.communicator) == ("my plans/fastest.json", "nccl")
    assert asked.data not in (None, "synthetic")


@pytest.mark.parametrize("name", sorted(trainers().keys() - {ENGINE, "nanotron"}))
def test_lines_are_python_whatever_the_path(name):
    path = 'my "best" plans/fastest.json'
    texts = [
        node.value
        for node in ast.walk(ast.parse("\n".join(trainers()[name].turn_on(path, "edp"))))
        if isinstance(node, ast.Constant)
    ]
    assert path in texts


def test_a_profile_of_ones_own_obeys_what_megatron_does():
    assert trainer_of("mine") is trainers()["megatron-core"]
