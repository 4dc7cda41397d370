"""The page of a workload: its answer, its sections, its figures, and the tables behind them."""

import shlex
from typing import Any

import polars as pl

from kareus.artifacts.records import to_plain
from kareus.artifacts.tables import TableSchema
from kareus.frontiers.tables import MICROBATCH
from kareus.pareto import AS_FAST
from kareus.pipeline.tables import ITERATION
from kareus.plans.actuated import alternative, clock_goal
from kareus.plans.answer import answer_of
from kareus.plans.document import Plan
from kareus.plans.frontiers import Frontiers
from kareus.plans.grid_power import power_line, power_series
from kareus.plans.obeyed import asked, is_obeyable, obeyed_lines, obeyed_method
from kareus.report.charts import Figure, columns_of
from kareus.report.contents import BASELINE_PLAN
from kareus.report.downloads import OF_PARTITION, OF_WORKLOAD, joined, labelled
from kareus.report.page import Page, Section
from kareus.report.sheets import Sheet, SheetRow, heads
from kareus.report.workload.effort import search_efforts
from kareus.report.workload.frontiers import iteration_figure, microbatch_figure
from kareus.report.workload.headline import (
    baseline_name,
    bottleneck,
    headline_of,
    plan_meaning,
    plan_title,
    runner,
    source_words,
    trainer_words,
    waiting_least,
    workload_words,
)
from kareus.report.workload.inputs import ReportInputs
from kareus.report.workload.schedules import schedules
from kareus.report.workload.searches import passes_figure, search_figure
from kareus.report.workload.summary import (
    NO_PLAN,
    efforts_sheet,
    method_sheets,
    notes,
    overlap_note,
    plan_rows,
    plans_sheet,
    runs_sheet,
    summary_text,
)
from kareus.report.workload.tables import POWER, SAVINGS, TIMELINE
from kareus.report.workload.timeline import TIMELINES, power_table, timeline_figures, timeline_table
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS
from kareus.software.trainers import ENGINE, software_words, trainer_of
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload
from kareus.workload.model_flops import size_words, tokens_per_iteration

TOKENS = 1e12
"""Tokens of a run whose savings a page works out, unless the reader says otherwise."""
PLAYED_BACK = (
    "The plan `fastest` of each method, played back on the simulated testbed: whole instructions, with noise, on chips "
    "that warm up and cool down. Predictions are put together from partitions that were measured one by one."
)
RUN = "The plan `fastest` of each method, run by the engine, beside what was predicted."


def workload_page(inputs: ReportInputs, tokens: float = TOKENS) -> Page:
    """Return the page.

    Args:
        inputs: what is reported.
        tokens: of the training run whose savings are worked out at first.
    """
    drawn = figures(inputs)
    timelines = [figure for figure in drawn if figure.folder == TIMELINES]
    first = next(iter(inputs.plans))
    answer = headline_of(inputs, inputs.plans[first])
    chosen = [_chosen(inputs, figure, name) for figure, name in zip(timelines, inputs.plans, strict=True)]
    return Page(
        title=workload_words(inputs.configured),
        name=inputs.workload,
        testbeds=(inputs.testbed,),
        provenance=inputs.provenance,
        sections=tuple(_sections(inputs, timelines[0].name)),
        figures=tuple(figure for figure in drawn if figure not in timelines[1:]),
        files=tuple(timelines[1:]),  # exchanged for one another in one place
        tables=tables(inputs),
        summary=summary_text(inputs),
        template="workload.html",
        extra={
            "answer": answer,
            "overlap": " ".join([*overlap_note(inputs), *_limit_note(inputs)]),
            "size": _size_text(inputs.configured),
            "name": first,
            "trust": source_words(inputs.configured, inputs.testbed.kind),
            "in_trainer": chosen[0]["in_trainer"],
            "command": chosen[0]["command"],
            "tokens": f"{tokens:g}",
        },
        data={
            "timeline": timelines[0].name,
            "chosen": chosen,
            "schedules": schedules(inputs),
            "folder": shlex.quote(inputs.folder),
            "trainers": {
                method: trainer_words(inputs.configured, inputs.microbatch, method)
                for method in inputs.iteration["method"].unique(maintain_order=True)
            },
            "baseline": {
                **_costs(inputs.usual),
                "name": baseline_name(inputs),
                "waiting_least": waiting_least(inputs.baseline),
            },
            "gpus": inputs.gpus,
            "as_fast": AS_FAST,
            "tokens": tokens_per_iteration(inputs.configured),
            "mfu_s": answer.runs.mfu * answer.row.time_s,
            "joules_per_token": answer.per_token[0],
        },
    )


def _limit_note(inputs: ReportInputs) -> list[str]:
    """Say what is compared with what, where plans have another power limit than the GPU."""
    if inputs.usual is inputs.baseline:
        return []
    limit_w = inputs.configured.gpu.power_limit_w
    return [f"All else here is at a power limit of {limit_w:g} W: figures and tables compare with `sequential` at it."]


def _size_text(workload: Workload) -> str:
    """Return how large the model is as it trains: with the rows to which its software pads the vocabulary."""
    model, software = workload.model, workload.software
    multiple = software.vocabulary_multiple * workload.parallelism.tp
    pads = f"; vocabulary of {model.vocab_size:,} after padding to a multiple of {multiple:,}"
    rows = pads if software.vocabulary_multiple > 1 else ""
    timed = f"timed as {software_words(software.name)} (software={software.name})"
    return f"{size_words(model, workload.sequence_length)}{rows}; {timed}"


def figures(inputs: ReportInputs) -> list[Figure]:
    """Every figure of a workload."""
    plans = inputs.plans | {BASELINE_PLAN: inputs.baseline}
    return [
        iteration_figure(
            inputs.iteration, plan_rows(inputs.iteration, list(inputs.plans.values())), inputs.uncertainty
        ),
        *timeline_figures(plans, inputs.microbatch, inputs.configured.gpu),
        search_figure(inputs.searches),
        passes_figure(search_efforts(inputs.searches)),
        microbatch_figure(inputs.microbatch),
    ]


def tables(inputs: ReportInputs) -> list[tuple[TableSchema, pl.DataFrame]]:
    """Every table behind the figures, labelled with the workload, the testbed and, of searches, the partition."""
    plans = inputs.plans | {BASELINE_PLAN: inputs.baseline}
    of = {"workload": inputs.workload, "testbed": inputs.testbed.label}
    frames = [
        (SAVINGS, SAVINGS.frame([saved.row for saved in inputs.savings])),
        (ITERATION, inputs.iteration),
        (MICROBATCH, inputs.microbatch),
        (ITERATIONS, inputs.iterations),
        (TIMELINE, timeline_table(plans)),
        (POWER, power_table(plans, inputs.configured.gpu)),
    ]
    return [
        *(joined(schema, OF_WORKLOAD, [labelled(frame, of)]) for schema, frame in frames),
        *(_of_searches(schema, inputs, of) for schema in (CANDIDATES, ROUNDS, PROPOSALS)),
    ]


def _of_searches(schema: TableSchema, inputs: ReportInputs, of: dict[str, str]) -> tuple[TableSchema, pl.DataFrame]:
    return joined(
        schema,
        OF_PARTITION,
        (labelled(getattr(each, schema.name), of | {"partition": each.partition}) for each in inputs.searches),
    )


def trainer_command(inputs: ReportInputs, name: str) -> str:
    """Return what to type for the plan of file `name`: to train in Kareus' engine, or to get the trainer's layout."""
    path, engine = f"{inputs.folder}/plan/{name}.json", trainer_of(ENGINE)
    if runner(inputs.configured, inputs.microbatch, inputs.plans[name].method) == engine:
        return engine.turn_on(path, "")[0]
    return f"kareus export {shlex.quote(path)} --format {trainer_of(inputs.configured.software.name).export}"


def in_trainer(inputs: ReportInputs, name: str) -> dict[str, Any]:
    """Return what the trainer of the workload gets of the plan of file `name`, in words, and what turns it on there.

    Where the trainer has no plan for what was asked for, the words say so, and the lines are not to be shown.
    """
    configured, plan = inputs.configured, inputs.plans[name]
    trainer = trainer_of(configured.software.name)
    frontiers = Frontiers(iteration=inputs.iteration, microbatch=inputs.microbatch, testbed=inputs.testbed)
    place, method = shlex.quote(inputs.folder), obeyed_method(plan, trainer)
    lines = obeyed_lines(plan, configured, frontiers, lambda *what: f"`kareus select {asked(*what, place)}`")
    file = name if method == plan.method else f"{name.partition('_')[0]}_{method}"
    is_other = trainer.follows_plans and method != plan.method
    there = alternative(plan, configured, frontiers, method) if is_other else ""
    saved = f" ({answer_of(there, inputs.iteration).saved})" if isinstance(there, Plan) else ""
    made = (f"kareus select {asked(plan.selector, method, place)}",) if is_other and file not in inputs.plans else ()
    return {
        "words": " ".join(f"{line[0].upper()}{line[1:]}{'' if line.endswith(('.', '`')) else '.'}" for line in lines),
        "turning": f"Turned on in {trainer.title}{saved}, {trainer.where}, {trainer.rehearsed_words}, by",
        "lines": made + trainer.rehearse(f"{inputs.folder}/plan/{file}.json", clock_goal(plan.selector)),
        "is_obeyable": is_obeyable(plan, configured, frontiers, trainer),
    }


def _chosen(inputs: ReportInputs, figure: Figure, name: str) -> dict[str, Any]:
    plan = inputs.plans[name]
    return {
        "name": figure.name,
        "selector": plan.selector,
        "method": plan.method,
        **_costs(plan),
        "title": plan_title(plan.selector, plan.method),
        "meaning": plan_meaning(plan.selector, plan.actuator.limit_w),
        "command": trainer_command(inputs, name),
        "in_trainer": in_trainer(inputs, name),
        "bottleneck": _pipeline_words(inputs, plan),
        "rows": columns_of(figure.data["plan"]),
        "powers": columns_of(figure.data["plan_powers"]),
        "means": columns_of(figure.data["plan_means"]),
    }


def _pipeline_words(inputs: ReportInputs, plan: Plan) -> str:
    """Return what sets the pace of a plan, how often it changes clocks, and its power, a line each."""
    lines = plan.changes, power_line(power_series(plan, inputs.configured.gpu))
    return "\n".join((bottleneck(plan, inputs.baseline), *(f"{line[0].upper()}{line[1:]}." for line in lines)))


def _costs(plan: Plan) -> dict[str, float]:
    cost = plan.prediction
    return {"time_s": cost.time_s, "energy_j": cost.energy_j}


def _sections(inputs: ReportInputs, timeline: str) -> list[Section]:
    first = next(iter(inputs.plans.values()))
    runs = Section(
        title="Predicted and run",
        text=PLAYED_BACK if inputs.testbed.kind == "simulated" else RUN,
        sheets=(runs_sheet(inputs.runs, inputs.testbed),) if inputs.runs else (),
    )
    efforts = efforts_sheet(inputs.searches)
    return [
        Section(title="Time and energy of an iteration", figures=("iteration",)),
        Section(title="Pipeline", text=_pipeline_words(inputs, first), figures=(timeline,)),
        Section(
            title="Methods",
            text=f"{'; '.join([NO_PLAN, *notes(inputs)])}.",
            sheets=(plans_sheet(inputs), *method_sheets(inputs.savings)),
        ),
        *([runs] if runs.sheets else []),
        Section(
            title="Search of the partitions",
            text="Candidates that were measured for every partition, and the pass that chose them.",
            sheets=(efforts,) if efforts.rows else (),
            figures=("search", "passes"),
            is_folded=True,
        ),
        Section(
            title="Microbatch frontiers",
            text="What one instruction can cost. The vertical axis lacks the power of waiting at the maximum clock "
            f"({inputs.blocking_power_w:.0f} W), the most that an iteration pays for as long as it lasts; stages that "
            "cost the same share a panel.",
            figures=("microbatch",),
            is_folded=True,
        ),
        Section(title="Inputs of this report", sheets=(_sources(inputs),), is_folded=True),
    ]


def _sources(inputs: ReportInputs) -> Sheet:
    names = ("config_hash", "kareus_version", "created_at")
    rows = [(source.name, to_plain(source.provenance)) for source in inputs.sources]
    return Sheet(
        caption="Inputs of this report",
        heads=heads([("", ("table", "configuration", "kareus", "created (UTC)"))]),
        rows=tuple(SheetRow(cells=(name, *(provenance[key] for key in names))) for name, provenance in rows),
        texts=4,
    )
