"""The figures of a campaign: all workloads in one scatter, their frontiers, who found them, the profiler's sweeps."""

import altair as alt
import polars as pl

from kareus.pipeline.compare import OURS
from kareus.report.campaign.inputs import CampaignInputs
from kareus.report.campaign.overview import Overview
from kareus.report.charts import Figure, Tip, chart_of, facet_of, legend_filter, looks, looks_of, spec_of, tooltip
from kareus.report.contents import OVERVIEW, frontiers_name
from kareus.report.fleet.inputs import fleet_title
from kareus.report.frontier_panels import frontier_panels
from kareus.report.theme import ABLATIONS, PALETTE, Look
from kareus.report.workload.searches import NOTHING, pass_looks, pass_name, shares_figure
from kareus.report.workload.tables import COMPARISON, PASSES, PROFILER

COMPARED = ("sequential", "sequential+perseus", "nanobatching+perseus", "kareus")
"""Methods whose frontiers the paper shows, and the plain baseline."""
MOST_NAMES = 5
"""Workloads whose names have space in the figure of all."""
TRIALS = {
    "trial": Look(PALETTE["orange"], "circle"),
    "mean": Look(PALETTE["blue"], "stroke"),
    "without noise, at the reference temperature": Look(PALETTE["gray"], "stroke"),
    "before the window": Look(PALETTE["purple"], "square"),
    "after the window": Look(PALETTE["vermilion"], "triangle-up"),
}
"""What the figure of the profiler shows."""


def campaign_figures(
    inputs: CampaignInputs, overview: list[Overview], passes: pl.DataFrame, profiler: pl.DataFrame
) -> list[Figure]:
    """Every figure of a campaign; `passes` and `profiler` are its tables `PASSES` and `PROFILER`."""
    parts: dict[str, list[str]] = {}
    for member in inputs.of_kind("workload"):
        parts.setdefault(member["part"], []).append(member["workload"])
    return [
        *([_overview(overview)] if overview else []),
        *(_frontiers(inputs, part, names) for part, names in parts.items()),
        *([_fleets(inputs)] if inputs.fleet else []),
        *([_passes(passes)] if parts else []),
        *([_profiler(inputs, profiler)] if inputs.trials else []),
    ]


def _overview(overview: list[Overview]) -> Figure:
    """Return the fastest plans of all workloads and methods; a line joins those of a workload."""
    rows = pl.DataFrame(
        [
            {
                "workload": row.label,
                "method": row.method,
                "tokens_per_s": row.tokens_per_s,
                "joules_per_token": row.joules_per_token,
                "time_s": row.time_s,
                "energy_kj": row.energy_j / 1e3,
                "time_saved": row.time_reduction_percent,
                "energy_saved": row.energy_reduction_percent,
                "link": f"workloads/{row.workload}/page.html",
            }
            for row in overview
        ]
    )
    tips: tuple[Tip, ...] = (
        ("workload", "workload", ""),
        ("method", "method", ""),
        ("tokens_per_s", "tokens/s", ",.0f"),
        ("joules_per_token", "J/token", ".4f"),
        ("time_s", "iteration time (s)", ".3f"),
        ("energy_kj", "energy, all GPUs (kJ)", ".2f"),
        ("time_saved", "time saved (%)", ".1f"),
        ("energy_saved", "energy saved (%)", ".1f"),
    )
    methods = looks_of(rows["method"].unique(maintain_order=True).to_list())
    selection = legend_filter("method", [method for method in methods if method not in ABLATIONS])
    encodings = looks("method", methods)
    base = chart_of("overview", "overview_lines").encode(
        x=alt.X(
            "tokens_per_s:Q",
            title="tokens/s, all GPUs (more is better)",
            scale=alt.Scale(type="log", nice=False, padding=28),
        ),
        y=alt.Y(
            "joules_per_token:Q", title="J/token (less is better)", scale=alt.Scale(type="log", nice=False, padding=28)
        ),
    )
    lines = (
        base.transform_filter(selection)
        .mark_line(strokeWidth=1, opacity=0.5, color=PALETTE["gray"])
        .encode(detail="workload:N", order="tokens_per_s:Q")
    )
    points = (
        base.transform_filter(selection)
        .mark_point(filled=True, opacity=0.95, cursor="pointer")
        .encode(
            **encodings,
            size=alt.condition(f"datum.method === '{OURS}'", alt.value(130), alt.value(45)),
            tooltip=tooltip(tips),
        )
        .properties(name="overview_points")
        .add_params(selection)
    )
    names = (
        base.transform_filter(f"datum.method === '{OURS}'")
        .mark_text(align="right", dx=-11, dy=12, fontSize=10, opacity={"expr": "width < 560 ? 0 : 1"})
        .encode(text="workload:N")
        .properties(name="overview_names")
    )
    layers = [lines, points, *([names] if rows["workload"].n_unique() <= MOST_NAMES else [])]
    return Figure(
        name=OVERVIEW,
        title="Throughput and energy of all workloads, the fastest plan of each method",
        table=COMPARISON.name,
        spec=spec_of(alt.layer(*layers).properties(width=720, height=380)),
        data={"overview": rows},
        heads={name: head for name, head, _ in tips},
        note="A line joins the methods of one workload. Click on a point to open the page of its workload.",
    )


def _frontiers(inputs: CampaignInputs, part: str, workloads: list[str]) -> Figure:
    own = {name: inputs.iteration[name].filter(pl.col("method").is_in(COMPARED)) for name in workloads}
    return frontier_panels(frontiers_name(part), f"Iteration frontiers, {part}", "iteration", own)


def _fleets(inputs: CampaignInputs) -> Figure:
    own = {
        f"{fleet_title(rows)} ({workload})": rows.filter(pl.col("method").is_in(COMPARED))
        for (workload, _), rows in inputs.fleet.items()
    }
    return frontier_panels("fleets", "Iteration frontiers of emulated fleets", "fleet", own)


def _passes(passes: pl.DataFrame) -> Figure:
    """One bar for each workload, and the first for all of them."""
    together = passes.with_columns(workload=pl.lit("all workloads"))
    named = pl.concat([together, passes]) if len(passes) else passes
    counts = named.group_by("workload", "chosen_by", maintain_order=True).agg(pl.sum("measured"), pl.sum("on_frontier"))
    totals = pl.col("on_frontier").sum().over("workload")
    rows = counts.select(
        pl.format("{} ({})", "workload", totals).alias("what"),
        pl.col("chosen_by").map_elements(pass_name, pl.String).alias("found_by"),
        "measured",
        "on_frontier",
    )
    return shares_figure(
        rows,
        pass_looks(passes["chosen_by"].to_list()),
        title="Who found the frontiers",
        table=PASSES.name,
        empty="" if len(passes) else NOTHING,
    )


def _profiler(inputs: CampaignInputs, profiler: pl.DataFrame) -> Figure:
    """Energies of all trials and temperatures, over what each sweep varied."""
    frames = []
    for (workload, sweep), trials in inputs.trials.items():
        means = profiler.filter((pl.col("workload") == workload) & (pl.col("sweep") == sweep))
        varied = "window_s" if means["window_s"].n_unique() > 1 else "cooldown_s"
        of = f"{trials['partition'][0]}, by {varied.removesuffix('_s')} (s)"
        frames += [
            _series(trials, f"{of}: energy (mJ)", varied, "energy_j", "trial", 1e3),
            _series(means, f"{of}: energy (mJ)", varied, "energy_mean_j", "mean", 1e3),
            *(
                [_series(means, f"{of}: energy (mJ)", varied, "reference_energy_j", list(TRIALS)[2], 1e3)]
                if means["reference_energy_j"].null_count() == 0
                else []
            ),
            *(
                _series(means, f"{of}: temperature (\u00b0C)", varied, f"temperature_{when}_c", f"{when} the window", 1)
                for when in ("before", "after")
            ),
        ]
    rows = pl.concat(frames)
    selection, encodings = legend_filter("series", list(TRIALS)), looks("series", TRIALS)
    tips = (("panel", "", ""), ("series", "series", ""), ("varied", "at (s)", ".1f"), ("value", "value", ".2f"))
    base = chart_of(None, "profiler_points").encode(
        x=alt.X("varied:Q", title=None),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        color=encodings["color"],
    )
    points = (
        base.transform_filter(selection)
        .transform_filter(alt.FieldOneOfPredicate(field="series", oneOf=["trial", *list(TRIALS)[3:]]))
        .mark_point(filled=True, size=24, opacity=0.7)
        .encode(shape=encodings["shape"], tooltip=tooltip(tips))
        .add_params(selection)
    )
    lines = (
        base.transform_filter(selection)
        .transform_filter("datum.series !== 'trial'")
        .mark_line(strokeWidth=1.4)
        .encode(order="varied:Q")
        .properties(name="profiler_lines")
    )
    panels = rows["panel"].unique(maintain_order=True).to_list()
    return Figure(
        name="profiler",
        title="The profiler under other protocols",
        table=PROFILER.name,
        spec=spec_of(facet_of("profiler", "panel", panels, lines, points)),
        data={"profiler": rows},
        heads={name: head or "panel" for name, head, _ in tips},
    )


def _series(rows: pl.DataFrame, panel: str, varied: str, column: str, series: str, scale: float) -> pl.DataFrame:
    return rows.sort(varied, maintain_order=True).select(
        pl.lit(panel).alias("panel"),
        pl.lit(series).alias("series"),
        pl.col(varied).cast(pl.Float64).alias("varied"),
        (scale * pl.col(column)).alias("value"),
    )
