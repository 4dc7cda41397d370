"""Command `export`: check a plan and write it in the format of another tool."""

import argparse
import json
import logging
from pathlib import Path

from kareus.artifacts.files import write_text
from kareus.artifacts.outputs import OutputKind, add_force, check_files
from kareus.export.ranks import are_rank_schedules, rank_schedules
from kareus.export.trace import chrome_trace, is_chrome_trace
from kareus.export.zeus import frequency_schedule, is_frequency_schedule
from kareus.plans.check_stage import read_checked_plan, workload_folder
from kareus.plans.locate import plan_path

logger = logging.getLogger(__name__)

FORMATS = {
    "zeus": (".zeus.py", OutputKind("a frequency schedule of Zeus", is_frequency_schedule)),
    "trace": (".trace.json", OutputKind("a Chrome trace", is_chrome_trace)),
    "ranks": (".ranks.json", OutputKind("schedules of ranks", are_rank_schedules)),
}
"""Suffix and kind of the file in each format."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the plan, the format and the output."""
    parser.add_argument("plan", type=Path, help="plan file, or the folder of a workload that has one plan")
    parser.add_argument(
        "--format",
        choices=sorted(FORMATS),
        required=True,
        help="zeus: frequency schedule of Zeus' pipeline frequency optimizer, for plans that need clocks alone; "
        "ranks: steps of every rank, numbered and named as in Megatron-LM (JSON); trace: a Chrome trace of one "
        "iteration for Perfetto",
    )
    parser.add_argument("--folder", type=Path, help="results folder of the workload (default: the one the plan is in)")
    parser.add_argument("--output", type=Path, help="file to write (default: beside the plan, with another suffix)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read, check, convert, write."""
    arguments.plan = plan_path(arguments.plan)
    suffix, kind = FORMATS[arguments.format]
    output = arguments.output or arguments.plan.with_name(arguments.plan.name.removesuffix(".json") + suffix)
    check_files(arguments, [(output, kind)])
    plan, workload = read_checked_plan(arguments.plan, arguments.folder)
    match arguments.format:
        case "zeus":
            text = frequency_schedule(plan, workload_folder(arguments.plan, arguments.folder), arguments.plan)
        case "trace":
            text = json.dumps(chrome_trace(plan, workload.gpu.blocking_power_w), allow_nan=False) + "\n"
        case _:
            text = json.dumps(rank_schedules(plan, workload.parallelism), indent=1) + "\n"
    write_text(output, text)
    logger.info("%s: written [%s]", output, plan.testbed.label)
