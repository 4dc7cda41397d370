"""Command `plan`: a first look at workloads in one process, without the workflow.

It resolves, plans, selects and, where there is a folder for it, writes the tables, the plans and the page of each
workload. It never writes into results of the workflow: Snakemake remains the only scheduler, and measurements that are
to be kept are its own.
"""

import argparse
import glob
import itertools
import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.outputs import check_folder, check_not_results, check_report_folder
from kareus.artifacts.records import suggest
from kareus.artifacts.shipped import config_folder
from kareus.cli.parser import steps_beside_answer
from kareus.device.actuators import ACTUATOR_HELP, ActuatorKind, parse_actuator
from kareus.errors import ConfigError, RefusedWorkloadError, described_in
from kareus.plans.run_totals import check_tokens, run_savings, run_totals
from kareus.plans.selectors import OVER_TIME, Goal, check_selectors, parse_selector
from kareus.prediction.resolve_stage import proposals
from kareus.testbed.config import TestbedKind
from kareus.workload.arguments import Described, add_from, add_overrides, described
from kareus.workload.config import Workload
from kareus.workload.naming import name_at_limit, plain_name
from kareus.workload.overrides import key_of, replaced
from kareus.workload.resolve import Resolved, check_any_accepted, checked_but_for_memory, resolve

if TYPE_CHECKING:
    from kareus.plans.actuated import WorkloadPlans
    from kareus.plans.document import Plan
    from kareus.plans.frontiers import Frontiers

SPLIT, EXCHANGES = "parallelism.layers_per_stage=auto", "parallelism.fsdp=auto"
DISPATCH = "software.dispatch_sms=auto"
"""Ask for the blocks on stages, for the exchanges of shared-out weights, and for the SMs of those of tokens, that are
best."""
logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the overrides, the request and the output."""
    add_overrides(parser)
    add_from(parser)
    text = "selector, as of `kareus select` (default: fastest); give it again for a further plan"
    parser.add_argument("--select", action="append", metavar="SELECTOR", help=text)
    parser.add_argument("--method", default="kareus", help="whose frontier to select from (default: kareus)")
    parser.add_argument("--actuator", default="clocks", help=ACTUATOR_HELP)
    text = f"plan from what a job of yours was measured to take, in this folder ({described_in('howto/inplace.md')})"
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--tokens", type=float, help="also print what training on so many tokens takes and saves")
    text = "folder for a folder of each workload: tables, plans and page (default: nothing is written)"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--force", action="store_true", help="make missing folders, and replace what is there")


def run(arguments: argparse.Namespace) -> None:
    """Plan every workload that can run, one after the other."""
    arguments.select = arguments.select or [Goal.FASTEST]
    check_selectors(arguments.select)
    arguments.actuator = parse_actuator(arguments.actuator)
    if arguments.measured is not None and arguments.actuator.kind is ActuatorKind.POWER:
        raise ConfigError("--actuator power: what was measured is of one power limit; plan without --measured.")
    if arguments.tokens is not None:
        check_tokens(arguments.tokens)
    if arguments.output is not None:
        check_folder(arguments.output, force=arguments.force)
        check_not_results(arguments.output)
    if arguments.measured is not None and not (arguments.overrides or arguments.files):
        from kareus.plans.measured import measured_workload  # noqa: PLC0415 - polars, which few need

        workload = measured_workload(WorkloadFolder(arguments.measured))
        _plan(plain_name(workload), workload, arguments)
        return
    workloads = described(arguments)
    for line in workloads.left_out:
        logger.info("%s", line)
    for resolved in _resolved(workloads, arguments.config_dir):
        if resolved.workload is None:
            logger.info("%s: refused: %s", resolved.name, resolved.refusal)
        else:
            for line in proposals([resolved]):
                logger.info("%s", line)
            _plan(resolved.name, resolved.workload, arguments)


def _resolved(workloads: Described, config_dir: Path | None) -> Sequence[Resolved]:
    """Return every combination of overrides, with what is best of that which is to be searched."""
    given = workloads.overrides
    searches = {SPLIT: _with_searched_split, EXCHANGES: _with_best_exchanges, DISPATCH: _with_best_dispatch}
    overrides = [text for text in given if text not in searches]
    resolved = resolve(overrides, config_dir)
    for searched in (text for text in searches if text in given):
        if again := next((text for text in overrides if _is_searched(text, searched)), None):
            raise ConfigError(f"{searched}: cannot be given beside {again}; leave one of them out.")
        resolved = [searches[searched](entry, config_dir) for entry in resolved]
    check_any_accepted(resolved, workloads.without_gpu)
    return resolved


def _is_searched(override: str, searched: str) -> bool:
    """Return whether a search would choose what an override gives; NVLS is only ever given."""
    key = key_of(override)
    return f"{key}.".startswith(f"{key_of(searched)}.") and not key.endswith(".nvls")


def _with_searched_split(entry: Resolved, config_dir: Path | None) -> Resolved:
    """Return a combination with the blocks on its stages that are best, and say which; as it is if none can run."""
    if entry.memory is None:
        return entry
    from kareus.adviser.stages import with_searched_split  # noqa: PLC0415 - the adviser, which few need

    try:
        workload, words = with_searched_split(entry.workload or checked_but_for_memory(entry.composed))
    except RefusedWorkloadError:  # as it was for its usual blocks
        return entry
    logger.info("%s: %s", entry.name, words)
    split = f"parallelism.layers_per_stage={list(workload.parallelism.placed)}"
    return replace(resolve([*entry.overrides, split], config_dir)[0], proposed=entry.proposed)


def _with_best_exchanges(entry: Resolved, config_dir: Path | None) -> Resolved:
    """Return a combination whose replicas exchange weights best; as it is if it is refused, or nothing is better."""
    if entry.workload is None:
        return entry
    from kareus.plans.exchanges import shares_out, with_best_exchanges  # noqa: PLC0415 - the GPU model

    if not shares_out(entry.workload):
        logger.info(
            "%s: %s: nothing to search, since replicas share out no gradients or there is a pipeline; give "
            "parallelism.sharding=full or hybrid and pp=1",
            entry.name,
            EXCHANGES,
        )
        return entry
    return _exchanging(entry, with_best_exchanges(entry.workload), config_dir)


def _with_best_dispatch(entry: Resolved, config_dir: Path | None) -> Resolved:
    """Return a combination whose tokens are dispatched on the best number of SMs, as `_with_best_exchanges`."""
    if entry.workload is None:
        return entry
    from kareus.plans.exchanges import with_best_dispatch  # noqa: PLC0415 - the GPU model

    return _exchanging(entry, with_best_dispatch(entry.workload), config_dir)


def _exchanging(entry: Resolved, best: Workload, config_dir: Path | None) -> Resolved:
    """Return a combination with the settings of its best exchanges, and say which."""
    from kareus.plans.exchanges import exchange_overrides  # noqa: PLC0415 - the GPU model

    assert entry.workload is not None
    given = exchange_overrides(entry.workload)
    sm_count = entry.workload.testbed.default_collective_sm_count
    better = [text for text in exchange_overrides(best, sm_count) if text not in given]
    logger.info("%s: exchanges: %s", entry.name, " ".join(better) or "no others are better than those it has")
    return replace(resolve(replaced(entry.overrides, better), config_dir)[0], proposed=entry.proposed)


def _plan(name: str, workload: Workload, arguments: argparse.Namespace) -> None:
    """Plan one workload, print the answers, and write its folder; or one for each power limit."""
    from kareus.pipeline.methods import (  # noqa: PLC0415 - the solver, for which bad overrides need not wait
        check_method,
        planned_beside,
    )
    from kareus.plans.actuated import (  # noqa: PLC0415
        WorkloadPlans,
        checked_at,
        full_power_baseline,
        plan_for,
        plans_at_limits,
    )
    from kareus.plans.measured import plan_measured  # noqa: PLC0415
    from kareus.plans.planned_folder import planned_methods  # noqa: PLC0415
    from kareus.plans.planning import plan_tables, quietly  # noqa: PLC0415

    check_method(arguments.method)
    folders = [] if arguments.output is None else map(WorkloadFolder, arguments.output.glob(f"{glob.escape(name)}*"))
    earlier = {method for folder in folders for method in planned_methods(folder)}  # whose plans are to stay usable
    tables_of = partial(plan_tables, methods=planned_beside(arguments.method, *earlier))
    actuator, selectors = arguments.actuator, arguments.select
    if actuator.limit_w:
        checked_at(workload, actuator.limit_w)  # before planning, which takes seconds
    if arguments.output is not None and (actuator.limit_w or actuator.kind is not ActuatorKind.POWER):
        at_limit = name_at_limit(name, actuator.limit_w) if actuator.limit_w else name
        report = arguments.output / at_limit / "report"
        if report.exists():
            check_report_folder(report, force=arguments.force)
    logger.info("%s: planning for %s ...", name, workload.software.name)
    with steps_beside_answer(plan_tables.__module__), quietly():
        planned = None if arguments.measured else tables_of(workload)
        frontiers = planned.frontiers if planned else plan_measured(WorkloadFolder(arguments.measured), workload)
    if arguments.method not in frontiers.methods:
        raise ConfigError(f"--method {arguments.method}: not planned; {suggest(arguments.method, frontiers.methods)}.")
    locked = workload, frontiers
    if actuator.kind is ActuatorKind.POWER:
        with steps_beside_answer(plan_tables.__module__), quietly():
            written = plans_at_limits(actuator, *locked, selectors, arguments.method, name, tables_of)
    else:
        plans = tuple(plan_for(actuator, workload, frontiers, text, arguments.method, name) for text in selectors)
        written = [WorkloadPlans(workload=workload, name=name, planned=planned or frontiers, plans=plans)]
    for entry in written:
        of_plans = (_answer_lines(plan, entry.frontiers, entry.workload, locked, arguments) for plan in entry.plans)
        for line in dict.fromkeys(itertools.chain.from_iterable(of_plans)):  # what is of all plans is said once
            logger.info("%s", line)
        if arguments.output is not None:
            usual = full_power_baseline(entry.workload, *locked, name)
            _write(WorkloadFolder(arguments.output / entry.name), entry, usual, force=arguments.force)


def _answer_lines(
    plan: "Plan",
    frontiers: "Frontiers",
    workload: Workload,
    locked: "tuple[Workload, Frontiers]",
    arguments: argparse.Namespace,
) -> Iterator[str]:
    """Yield what a plan saves, also over a whole run, and that its limit limits nothing.

    Args:
        plan: the plan.
        frontiers: of the workload.
        workload: what is planned.
        locked: workload and frontiers at the GPU's own power limit, which savings are against.
        arguments: what was asked for.
    """
    from kareus.plans.answer import answer_of, no_limit  # noqa: PLC0415
    from kareus.plans.grid_selection import grid_lines  # noqa: PLC0415
    from kareus.plans.obeyed import obeyed_lines, runner_of  # noqa: PLC0415
    from kareus.prediction.errors import plan_error_words  # noqa: PLC0415 - bad overrides need not wait for numpy
    from kareus.runtime.engine_checks import engine_refusal  # noqa: PLC0415
    from kareus.workload.memory import estimate_memory, tightness  # noqa: PLC0415

    selector, answer = parse_selector(plan.selector), answer_of(plan, locked[1].iteration)
    runner = runner_of(plan, workload)
    refusal = engine_refusal(workload) if runner.overlaps else ""
    yield f"{answer.sentence('' if refusal else runner.title)} [{frontiers.testbed.label}]"
    if refusal:
        yield f"not run by {runner.title}: {refusal}"
    yield from obeyed_lines(plan, workload, frontiers, lambda *what: _next_command(arguments, *what), locked)
    yield plan.changes
    if workload.testbed.kind is TestbedKind.SIMULATED:
        yield f"error: {plan_error_words(workload, runner)}"
    memory = estimate_memory(workload)
    if full := tightness(workload, memory):
        yield f"memory: {memory.total_gib:.1f} of {workload.gpu.memory_gib:.1f} GiB on stage {memory.stage}{full}"
    if selector.goal in OVER_TIME:
        yield from grid_lines(plan, workload, frontiers)
    beyond = no_limit(selector, frontiers.plans(plan.method))
    if beyond is not None:
        yield beyond
    if arguments.tokens is not None:
        yield run_totals(plan.prediction, workload, arguments.tokens, selector.prices)
        yield run_savings(answer, workload, arguments.tokens, selector.prices)


def _next_command(arguments: argparse.Namespace, selector: str, method: str) -> str:
    """Return what to type for another plan of the same workload, or that it is asked for already."""
    from kareus.plans.obeyed import asked  # noqa: PLC0415 - the GPU model

    if method == arguments.method and selector in arguments.select:
        return "this command plans it, too"
    config_dir = None if arguments.config_dir == config_folder() else arguments.config_dir
    given = {
        "--config-dir": [config_dir],
        "--from": arguments.files or [],
        "--trainer": [arguments.trainer],
        "--measured": [arguments.measured],
        "--tokens": [arguments.tokens and f"{arguments.tokens:g}"],
        "--output": [arguments.output],
    }
    options = [str(word) for name, values in given.items() for value in values if value for word in (name, value)]
    words = [*arguments.overrides, *options, *(["--force"] if arguments.force else [])]
    return " ".join(("kareus plan", *map(shlex.quote, words), "--select", asked(selector, method)))


def _write(folder: WorkloadFolder, planned: "WorkloadPlans", usual: "Plan | None", *, force: bool) -> None:
    """Write the folder of a workload: tables, plans, what its page's head compares with (`usual`), and the page."""
    from kareus.plans.file import write_plan  # noqa: PLC0415 - only where something is written
    from kareus.plans.frontiers import Frontiers  # noqa: PLC0415 - as above
    from kareus.plans.planned_folder import write_tables  # noqa: PLC0415 - as above

    tables, plans = planned.planned, planned.plans
    write_tables(folder, planned.workload, tables)
    paths = [folder.plan(plan.selector, plan.method) for plan in plans]
    for path, plan in zip(paths, plans, strict=True):
        write_plan(path, plan)
    if usual is not None:
        write_plan(folder.full_power, usual)
    else:  # of an earlier plan at another limit
        folder.full_power.unlink(missing_ok=True)
    searches = [] if isinstance(tables, Frontiers) else list(tables.searches)
    page = _write_report(folder, paths, searches=searches, force=force)
    logger.info("%s\npage   %s", "\n".join(f"plan   {path}" for path in paths), page)


def _write_report(folder: WorkloadFolder, plans: list[Path], searches: list[str], *, force: bool) -> Path:
    """Write the report on a folder, as `kareus stage report` does; returns the path of its page."""
    from kareus.report.workload.inputs import Paths  # noqa: PLC0415 - only where a report is written
    from kareus.report.workload.stage import write_report  # noqa: PLC0415

    output = folder.path / "report"
    check_report_folder(output, force=force)
    pages = {
        table: [folder.path / "search" / name / f"{table}.parquet" for name in searches]
        for table in ("candidates", "rounds", "proposals")
    }
    paths = Paths(
        config=folder.config("plan"),
        iteration=folder.iteration,
        microbatch=folder.microbatch,
        plans=plans,
        **pages,
    )
    write_report(folder.name, paths, output)
    return output / "page.html"
