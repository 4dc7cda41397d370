"""Figures of emulated fleets: their frontiers, and power by the hour where hours were planned."""

from collections.abc import Mapping

import altair as alt
import polars as pl

from kareus.emulate.tables import FLEET, HOURS
from kareus.plans.units import SECONDS_PER_HOUR, common_scale
from kareus.report.charts import Figure, chart_of, facet_of, legend_filter, looks, looks_of, spec_of, tooltip
from kareus.report.fleet_inputs import FleetInputs, fleet_title, fleet_titles, fleets_of, has_hours, told_apart
from kareus.report.frontier_panels import frontier_panels
from kareus.report.theme import PALETTE, Look


def fleet_figures(inputs: FleetInputs) -> list[Figure]:
    """Frontiers of every fleet, and power by the hour where hours were planned."""
    frames = {str(rows["fleet"][0]): rows for rows in fleets_of(inputs)}
    titles = told_apart({name: fleet_title(rows) for name, rows in frames.items()})
    frontiers = frontier_panels(
        FLEET.name,
        "Iteration time and energy of each fleet",
        FLEET.name,
        {titles[name]: rows.filter("on_frontier") for name, rows in frames.items()},
        keys=("fleet", "plan"),
    )
    return [frontiers, *([_hours(inputs, fleet_titles(inputs))] if has_hours(inputs) else [])]


def _hours(inputs: FleetInputs, titles: Mapping[str, str]) -> Figure:
    """Mean power of the fleets in every hour, over the value of the series."""
    keys = ("fleet", "method", "unit", "hour", "value")
    hourly = inputs.hours.filter(pl.col("policy") == "hourly")
    means = hourly.group_by(keys, maintain_order=True).agg(power_w=pl.sum("energy_j") / SECONDS_PER_HOUR)
    factor, unit = common_scale(means["power_w"].to_list(), "W")
    frames = []
    for (fleet, of), hours in means.group_by("fleet", "unit", maintain_order=True):
        title = titles[str(fleet)]
        powers = [
            _by_the_hour(f"{title}: mean power ({unit})", str(method), rows, "power_w", factor)
            for (method,), rows in hours.group_by("method", maintain_order=True)
        ]
        series = hours.unique("hour").sort("hour")
        frames += [*powers, _by_the_hour(f"{title}: {of}", "series", series, "value", 1.0)]
    rows = pl.concat(frames)
    lines = rows["line"].unique(maintain_order=True).to_list()
    line_looks = looks_of([line for line in lines if line != "series"]) | {"series": Look(PALETTE["gray"], "stroke")}
    selection = legend_filter("line", list(line_looks))
    tips = (("panel", "", ""), ("line", "", ""), ("hour", "hour", ""), ("value", "value", ",.4g"))
    chart = (
        chart_of(None, "hours_lines")
        .transform_filter(selection)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=alt.X("hour:Q", title="hour"),
            y=alt.Y("value:Q", title=None),
            color=looks("line", line_looks)["color"],
            tooltip=tooltip(tips),
        )
        .add_params(selection)
    )
    return Figure(
        name=HOURS.name,
        title="Mean power of the fleet by the hour",
        table=HOURS.name,
        spec=spec_of(facet_of("hours", "panel", rows["panel"].unique(maintain_order=True).to_list(), chart)),
        data={"hours": rows},
        heads={"panel": "of", "line": "line", "hour": "hour", "value": "value"},
    )


def _by_the_hour(panel: str, line: str, rows: pl.DataFrame, column: str, factor: float) -> pl.DataFrame:
    """Return steps, with the last hour's value repeated at its end."""
    end = rows.tail(1).with_columns(pl.col("hour") + 1)
    return pl.concat([rows, end]).select(
        pl.lit(panel).alias("panel"),
        pl.lit(line).alias("line"),
        "hour",
        (pl.col(column) / factor).alias("value"),
    )
