"""Command `calibrate`: the numbers of one's own GPU, or of one's own trainer on one's own cluster."""

import argparse

from kareus.adviser import trainer_stage
from kareus.calibrate import stage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what both calibrations take, and what each has."""
    stage.add_arguments(parser)
    trainer_stage.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Calibrate the one or the other."""
    (trainer_stage if arguments.trainer else stage).run(arguments)
