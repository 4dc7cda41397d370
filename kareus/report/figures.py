"""What a workload's report is made of: its figures, its tables, and the data block of its page."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from kareus.artifacts.records import to_plain
from kareus.artifacts.tables import TableSchema
from kareus.engine.tables import ITERATIONS
from kareus.frontier.tables import MICROBATCH
from kareus.pipeline.compare import compare_methods
from kareus.pipeline.tables import ITERATION
from kareus.report.charts import Plot, Shares, plot_data
from kareus.report.contents import BASELINE
from kareus.report.downloads import OF_PARTITION, OF_WORKLOAD, labelled, labelled_schema
from kareus.report.effort import search_efforts
from kareus.report.frontiers import iteration_plot, microbatch_plot
from kareus.report.inputs import ReportInputs
from kareus.report.searches import passes_figure, search_plot
from kareus.report.summary import plan_rows
from kareus.report.tables import POWER, TIMELINE
from kareus.report.timeline import Timeline, power_plot, power_table, timeline_data, timeline_table, timelines
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS

Figure = Plot | Shares | Timeline


def figures(inputs: ReportInputs) -> list[Figure]:
    """Every figure of a workload."""
    plans = inputs.plans | {BASELINE: inputs.baseline}
    return [
        iteration_plot(inputs.iteration, plan_rows(inputs.iteration, list(inputs.plans.values()))),
        *timelines(plans),
        power_plot(plans, power_table(plans, inputs.blocking_power_w)),
        search_plot(inputs.searches),
        passes_figure(search_efforts(inputs.searches)),
        microbatch_plot(inputs.microbatch),
    ]


def tables(inputs: ReportInputs) -> list[tuple[TableSchema, pl.DataFrame]]:
    """Every table behind the figures, labelled with the workload, the testbed and, of searches, the partition."""
    plans = inputs.plans | {BASELINE: inputs.baseline}
    of = {"workload": inputs.workload, "testbed": inputs.testbed.label}
    found = [
        (ITERATION, inputs.iteration),
        (MICROBATCH, inputs.microbatch),
        (ITERATIONS, inputs.iterations),
        (TIMELINE, timeline_table(plans)),
        (POWER, power_table(plans, inputs.blocking_power_w)),
    ]
    return [
        *((labelled_schema(schema, OF_WORKLOAD), labelled(frame, of)) for schema, frame in found),
        *(_of_searches(schema, inputs, of) for schema in (CANDIDATES, ROUNDS, PROPOSALS)),
    ]


def _of_searches(schema: TableSchema, inputs: ReportInputs, of: dict[str, str]) -> tuple[TableSchema, pl.DataFrame]:
    together = labelled_schema(schema, OF_PARTITION)
    frames = [
        labelled(getattr(search, schema.name), of | {"partition": search.partition}) for search in inputs.searches
    ]
    return together, pl.concat([together.frame([]), *frames])


def page_data(inputs: ReportInputs, drawn: Sequence[Figure]) -> dict[str, Any]:
    """Everything that the page shows, in the units that its keys end in; gaps are fractions."""
    return {
        "workload": inputs.workload,
        "gpus": inputs.gpus,
        "testbed": {"kind": inputs.testbed.kind, "label": inputs.testbed.label, "detail": inputs.testbed.detail},
        "provenance": to_plain(inputs.provenance),
        "sources": [{"name": source.name, **to_plain(source.provenance)} for source in inputs.sources],
        "methods": to_plain(compare_methods(inputs.iteration)),
        "plans": to_plain(plan_rows(inputs.iteration, list(inputs.plans.values()))),
        "runs": to_plain(inputs.runs),
        "efforts": to_plain(search_efforts(inputs.searches)),
        "plots": {figure.name: plot_data(figure) for figure in drawn if isinstance(figure, Plot)},
        "shares": {figure.name: to_plain(figure) for figure in drawn if isinstance(figure, Shares)},
        "timelines": [timeline_data(figure) for figure in drawn if isinstance(figure, Timeline)],
        "tables": [
            {"name": schema.name, "meaning": schema.meaning, "rows": len(frame)} for schema, frame in tables(inputs)
        ],
        "blocking_power_w": inputs.blocking_power_w,
    }
