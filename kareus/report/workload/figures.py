"""Figures and tables of a workload's report."""

import polars as pl

from kareus.artifacts.tables import TableSchema
from kareus.frontiers.tables import MICROBATCH
from kareus.pipeline.tables import ITERATION
from kareus.report.charts import Figure
from kareus.report.contents import BASELINE
from kareus.report.downloads import OF_PARTITION, OF_WORKLOAD, labelled, labelled_schema
from kareus.report.workload.effort import search_efforts
from kareus.report.workload.frontiers import iteration_figure, microbatch_figure
from kareus.report.workload.inputs import ReportInputs
from kareus.report.workload.searches import passes_figure, search_figure
from kareus.report.workload.summary import plan_rows
from kareus.report.workload.tables import POWER, SAVINGS, TIMELINE
from kareus.report.workload.timeline import power_table, timeline_figures, timeline_table
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS
from kareus.training.tables import ITERATIONS


def figures(inputs: ReportInputs) -> list[Figure]:
    """Every figure of a workload."""
    plans = inputs.plans | {BASELINE: inputs.baseline}
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
    plans = inputs.plans | {BASELINE: inputs.baseline}
    of = {"workload": inputs.workload, "testbed": inputs.testbed.label}
    found = [
        (SAVINGS, SAVINGS.frame([found.row for found in inputs.savings])),
        (ITERATION, inputs.iteration),
        (MICROBATCH, inputs.microbatch),
        (ITERATIONS, inputs.iterations),
        (TIMELINE, timeline_table(plans)),
        (POWER, power_table(plans, inputs.configured.gpu)),
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
