"""Iteration frontiers of several workloads or fleets side by side."""

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE, with_reductions
from kareus.plans.units import common_scale
from kareus.report.charts import Figure, Tip, chart_of, facet_of, legend_filter, looks, looks_of, spec_of, tooltip
from kareus.report.theme import ABLATIONS

TIPS: tuple[Tip, ...] = (
    ("panel", "of", ""),
    ("method", "method", ""),
    ("time_s", "iteration time (s)", ".3f"),
    ("energy", "energy, all GPUs", ".3f"),
    ("time_reduction_percent", "time saved (%)", ".1f"),
    ("energy_reduction_percent", "energy saved (%)", ".1f"),
)


def frontier_panels(
    name: str, title: str, table: str, iterations: Mapping[str, pl.DataFrame], *, keys: Sequence[str] = ()
) -> Figure:
    """Return a panel for each table of iteration frontiers, by the name of the panel.

    Args:
        name: of the figure.
        title: of the figure.
        table: that holds its numbers.
        iterations: tables of iteration frontiers, by panel.
        keys: columns that name a plan, where a click on its point shows it.
    """
    energies = [max(rows["energy_j"]) for rows in iterations.values()]
    factor, unit = common_scale(energies, "J")
    rows = pl.concat(
        with_reductions(frontier, frontier)
        .sort("time_s", maintain_order=True)
        .select(*keys, pl.lit(panel).alias("panel"), "method", "time_s", (pl.col("energy_j") / factor).alias("energy"),
                *(name for name, _, _ in TIPS[4:]))
        for panel, frontier in iterations.items()
    )  # fmt: skip
    methods = looks_of(rows["method"].unique(maintain_order=True).to_list())
    selection = legend_filter("method", [method for method in methods if method not in ABLATIONS])
    encodings = looks("method", methods)
    base = (
        chart_of(None, f"{name}_lines")
        .transform_filter(selection)
        .encode(
            x=alt.X("time_s:Q", title="iteration time (s)", scale=alt.Scale(zero=False)),
            y=alt.Y("energy:Q", title=f"iteration energy, all GPUs ({unit})", scale=alt.Scale(zero=False)),
            color=encodings["color"],
        )
    )
    lines = base.mark_line(interpolate="step-after").encode(
        order=alt.Order("time_s:Q"),
        strokeWidth=alt.condition(f"datum.method === '{OURS}'", alt.value(2.6), alt.value(1.4)),
    )
    points = (
        base.mark_point(filled=True, opacity=0.95, cursor="pointer" if keys else "default")
        .encode(
            shape=encodings["shape"],
            size=alt.condition(f"datum.method === '{THROUGHPUT_BASELINE}'", alt.value(90), alt.value(26)),  # one point
            tooltip=tooltip(TIPS),
        )
        .properties(name=f"{name}_points")
        .add_params(selection)
    )
    return Figure(
        name=name,
        title=title,
        table=table,
        spec=spec_of(facet_of("frontiers", "panel", list(iterations), lines, points)),
        data={"frontiers": rows},
        heads={key: f"{head} ({unit})" if key == "energy" else head for key, head, _ in TIPS},
    )
