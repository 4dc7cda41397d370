"""Command `check-plan`: validate a plan file against its schema, its workload and the pipeline's order."""

import argparse
import logging
from pathlib import Path

from kareus.artifacts.layout import WorkloadFolder
from kareus.plan.check import check_plan, read_plan
from kareus.workload.slices import PlanSlice, load_slice

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the plan and the workload that it should be for."""
    parser.add_argument("plan", type=Path, help="plan file")
    parser.add_argument("--folder", type=Path, help="results folder of the workload (default: the one the plan is in)")


def run(arguments: argparse.Namespace) -> None:
    """Read and check; say so if all is well."""
    folder = WorkloadFolder(arguments.folder or arguments.plan.resolve().parent.parent)
    plan = read_plan(arguments.plan)
    check_plan(plan, load_slice(folder.config("plan"), PlanSlice).workload, arguments.plan)
    instructions = sum(len(stage.instructions) for stage in plan.stages)
    logger.info("%s: a valid plan of %d instructions for %s", arguments.plan, instructions, plan.workload)
