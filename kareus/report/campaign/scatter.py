"""The figure of all workloads of a campaign: throughput against energy, by workload and method."""

import altair as alt
import polars as pl

from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE
from kareus.report.campaign.overview import Overview
from kareus.report.charts import Figure, Tip, chart_of, legend_filter, looks, looks_of, spec_of, tooltip
from kareus.report.contents import OVERVIEW
from kareus.report.theme import ABLATIONS, PALETTE
from kareus.report.workload.tables import COMPARISON

FEW_TIMES = 4
"""Ranges of fewer times than this are drawn linearly: a logarithmic axis would have one or two labels."""
MOST_NAMES = 5
"""Workloads whose names have space in the figure."""
TIPS: tuple[Tip, ...] = (
    ("workload", "workload", ""),
    ("method", "method", ""),
    ("tokens_per_s", "tokens/s", ",.0f"),
    ("millijoules_per_token", "mJ/token", ".1f"),
    ("time_s", "iteration time (s)", ".3f"),
    ("energy_kj", "energy, all GPUs (kJ)", ".2f"),
    ("time_saved", "time saved (%)", ".1f"),
    ("energy_saved", "energy saved (%)", ".1f"),
)


def overview_figure(overview: list[Overview]) -> Figure:
    """Return the plans of the least time of all workloads and methods."""
    rows = _points(overview)
    methods = looks_of(rows["method"].unique(maintain_order=True).to_list())
    return Figure(
        name=OVERVIEW,
        title="Throughput and energy of all workloads, each method at its least time",
        table=COMPARISON.name,
        spec=spec_of(_chart(rows, list(methods), has_names=rows["workload"].n_unique() <= MOST_NAMES)),
        data={"overview": rows},
        heads={name: head for name, head, _ in TIPS},
        note="Dashed lines lead from the trainer's own execution of a workload to kareus. Click on a point to open the "
        "page of its workload.",
    )


def _points(overview: list[Overview]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "workload": row.label,
                "method": row.method,
                "tokens_per_s": row.tokens_per_s,
                "millijoules_per_token": 1e3 * row.joules_per_token,
                "time_s": row.time_s,
                "energy_kj": row.energy_j / 1e3,
                "time_saved": row.time_reduction_percent,
                "energy_saved": row.energy_reduction_percent,
                "link": f"workloads/{row.workload}/page.html",
            }
            for row in overview
        ]
    )


def _chart(rows: pl.DataFrame, methods: list[str], *, has_names: bool) -> alt.LayerChart:
    selection = legend_filter("method", [method for method in methods if method not in ABLATIONS])
    encodings = looks("method", looks_of(methods))
    base = chart_of("overview", "overview_lines").encode(
        x=alt.X("tokens_per_s:Q", title="tokens/s, all GPUs (more is better)", scale=_scale(rows["tokens_per_s"])),
        y=alt.Y(
            "millijoules_per_token:Q",
            title="mJ/token (less is better)",
            scale=_scale(rows["millijoules_per_token"]),
        ),
    )
    lines = (
        base.transform_filter(selection)
        .transform_filter(f"datum.method === '{THROUGHPUT_BASELINE}' || datum.method === '{OURS}'")
        .mark_line(strokeWidth=1, strokeDash=[4, 4], opacity=0.6, color=PALETTE["gray"])
        .encode(detail=alt.Detail("workload:N"), order=alt.Order("tokens_per_s:Q"))
    )
    points = (
        base.transform_filter(selection)
        .mark_point(filled=True, opacity=0.95, cursor="pointer")
        .encode(
            **encodings,
            size=alt.condition(f"datum.method === '{OURS}'", alt.value(130), alt.value(45)),
            tooltip=tooltip(TIPS),
        )
        .properties(name="overview_points")
        .add_params(selection)
    )
    names = (
        base.transform_filter(f"datum.method === '{OURS}'")
        .mark_text(align="right", dx=-11, dy=12, fontSize=10, opacity={"expr": "width < 560 ? 0 : 1"})
        .encode(text=alt.Text("workload:N"))
        .properties(name="overview_names")
    )
    layers = [lines, points, *([names] if has_names else [])]
    return alt.layer(*layers).properties(width=720, height=380)


def _scale(values: pl.Series) -> alt.Scale:
    """Return the scale of an axis: logarithmic where values differ much."""
    low, high = float(values.to_numpy().min()), float(values.to_numpy().max())
    if high < FEW_TIMES * low:
        return alt.Scale(zero=False, nice=False, padding=28)
    return alt.Scale(type="log", nice=False, padding=28)
