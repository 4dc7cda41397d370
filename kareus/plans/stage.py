"""Command `select`: pick a point of the iteration frontier and write its plan."""

import argparse
import logging
import shlex
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.outputs import add_force, check_outputs, check_place
from kareus.artifacts.records import suggest
from kareus.device.actuators import ACTUATOR_HELP, parse_actuator
from kareus.errors import ConfigError
from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE
from kareus.plans.actuated import actuated_method, plan_for
from kareus.plans.answer import answer_of, no_limit
from kareus.plans.document import Plan
from kareus.plans.file import PLAN_FILE, check_name, write_plan
from kareus.plans.frontiers import read_frontiers
from kareus.plans.grid_selection import grid_lines
from kareus.plans.locate import only_workload
from kareus.plans.obeyed import asked, obeyed_lines, runner_of
from kareus.plans.run_totals import check_tokens, run_savings, run_totals
from kareus.plans.selectors import ALLOWED, Goal, parse_selector, spelled
from kareus.plans.units import scaled
from kareus.workload.slices import PlanSlice

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the request and the workload's folder."""
    parser.add_argument("selector", help=ALLOWED.removeprefix("allowed: ").replace("%", "%%"))
    text = "results folder of the workload (default: the only one below results/)"
    parser.add_argument("folder", type=Path, nargs="?", help=text)
    text = f"whose frontier to select from (default: {OURS}; where that was not planned, the last that was)"
    parser.add_argument("--method", help=text)
    parser.add_argument("--tokens", type=float, help="also print what training on so many tokens takes and saves")
    parser.add_argument(
        "--output", type=Path, help="plan file to write (default: FOLDER/plan/SELECTOR.json, or SELECTOR_METHOD.json)"
    )
    parser.add_argument("--actuator", default="clocks", help=ACTUATOR_HELP)
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Select, assemble and write the plan."""
    arguments.selector = spelled(arguments.selector)
    selector, actuator = parse_selector(arguments.selector), parse_actuator(arguments.actuator)
    if arguments.tokens is not None:
        check_tokens(arguments.tokens)
    folder = WorkloadFolder(arguments.folder or only_workload())
    workload = load_slice(folder.config("plan"), PlanSlice).workload
    frontiers = read_frontiers(folder, workload)
    if arguments.method is None:
        arguments.method = OURS if OURS in frontiers.methods else frontiers.methods[-1]
    if arguments.method not in frontiers.methods:
        raise ConfigError(f"--method {arguments.method}: not planned; {suggest(arguments.method, frontiers.methods)}.")
    output = _checked_output(arguments, folder, actuated_method(actuator, arguments.method, frontiers.methods))
    plan = plan_for(actuator, workload, frontiers, arguments.selector, arguments.method, folder.name)
    write_plan(output, plan)
    answer = answer_of(plan, frontiers.iteration) if THROUGHPUT_BASELINE in frontiers.methods else None
    said = answer.sentence(runner_of(plan, workload).title) if answer else _cost(plan)
    logger.info("%s [%s]", said, plan.testbed.label)
    place = shlex.quote(str(folder.path))
    for line in obeyed_lines(plan, workload, frontiers, lambda *what: f"kareus select {asked(*what, place)}"):
        logger.info("%s", line)
    logger.info(
        "%s of the energy is dynamic; certified gap to the least energy possible within %s: %s %%",
        scaled(plan.prediction.dynamic_energy_j, "J", digits=4),
        "the deadline" if selector.goal in (Goal.DEADLINE, Goal.STRAGGLER) else "its time",
        f"{100 * plan.prediction.gap:z.3f}",
    )
    logger.info("%s", plan.changes)
    beyond = no_limit(selector, frontiers.plans(plan.method))
    for line in (*grid_lines(plan, workload, frontiers), *filter(None, [beyond])):
        logger.info("%s", line)
    if arguments.tokens is not None:
        logger.info("%s", run_totals(plan.prediction, workload, arguments.tokens, selector.prices))
        if answer:
            logger.info("%s", run_savings(answer, workload, arguments.tokens, selector.prices))
    logger.info("plan   %s", output)


def _checked_output(arguments: argparse.Namespace, folder: WorkloadFolder, method: str) -> Path:
    """Return where the plan of a method is to be written, which may be."""
    place = folder.plan(arguments.selector, method)
    output: Path = arguments.output or place
    check_name(output, arguments.selector)
    if output.parent != folder.plans:
        check_place(output, force=arguments.force)
    if output != place:  # a damaged plan in its own place is made anew
        check_outputs(arguments, [(output, PLAN_FILE)])
    return output


def _cost(plan: Plan) -> str:
    """Return what a plan takes, where the baseline was not planned."""
    cost = plan.prediction
    costs = f"{scaled(cost.time_s, 's', digits=4)} and {scaled(cost.energy_j, 'J', digits=4)} an iteration"
    return f"plan {plan.selector} of {plan.method}: {costs}"
