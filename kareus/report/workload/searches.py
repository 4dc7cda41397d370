"""Figures of the searches: every measured candidate of each partition, and which pass found the frontiers."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from kareus.report.charts import Figure, Tip, chart_of, facet_of, legend_filter, looks, spec_of, tooltip
from kareus.report.theme import PALETTE, UNKNOWN, Look
from kareus.report.workload.effort import SearchEffort
from kareus.report.workload.inputs import PartitionSearch

PASSES = {
    "initial": ("initial design", Look(PALETTE["gray"], "circle")),
    "random": ("random", Look(PALETTE["gray"], "circle")),
    "all": ("exhaustive", Look(PALETTE["gray"], "circle")),
    "total": ("total-energy pass", Look(PALETTE["blue"], "circle")),
    "dynamic": ("dynamic-energy pass", Look(PALETTE["orange"], "square")),
    "static": ("static-energy pass", Look(PALETTE["green"], "triangle-up")),
    "improvement": ("expected improvement", Look(PALETTE["blue"], "circle")),
    "uncertainty": ("exploration (uncertainty)", Look(PALETTE["purple"], "diamond")),
}
"""Name and look of a pass."""
_NAMES = {key: name for key, (name, _) in PASSES.items()}
BAR_PX = 26
NOTHING = "Nothing was searched: a block has no collectives, an odd microbatch no halves, or no method needed it."
TIPS: tuple[Tip, ...] = (
    ("schedule", "candidate", ""),
    ("passes", "chosen by", ""),
    ("round", "chosen in round", ""),
    ("time_ms", "time (ms)", ".3f"),
    ("predicted_time_ms", "predicted (ms)", ".3f"),
    ("dynamic_energy_j", "dynamic energy (J)", ".4f"),
    ("predicted_dynamic_energy_j", "predicted (J)", ".4f"),
    ("energy_j", "total energy (J)", ".4f"),
    ("on_frontier", "on the frontier", ""),
)


def pass_name(chosen_by: str) -> str:
    """Return the name of a pass for the text in the column `chosen_by`."""
    return PASSES.get(chosen_by, (chosen_by, UNKNOWN))[0]


def pass_looks(chosen_by: Sequence[str]) -> dict[str, Look]:
    """Return the looks of passes by their names."""
    return dict(PASSES.get(name, (name, UNKNOWN)) for name in dict.fromkeys(chosen_by))


def search_figure(searches: Sequence[PartitionSearch]) -> Figure:
    """Return the candidates of every partition by the first pass that chose them, and their frontier."""
    rows = _candidates(searches)
    passes = pass_looks([name for search in searches for name in search.candidates["chosen_by"].list.first()])
    selection = legend_filter("found_by", list(passes))
    base = chart_of(None, "search_points").encode(
        x=alt.X("time_ms:Q", title="time (ms)", scale=alt.Scale(zero=False)),
        y=alt.Y("dynamic_energy_j:Q", title="dynamic energy, one GPU (J)", scale=alt.Scale(zero=False)),
    )
    points = (
        base.transform_filter(selection)
        .mark_point(filled=True, size=36, opacity=0.85)
        .encode(**looks("found_by", passes, title="chosen by"), tooltip=tooltip(TIPS))
        .add_params(selection)
    )
    frontier = (
        base.transform_filter("datum.on_frontier")
        .mark_line(interpolate="step-after", style="ink-line", strokeWidth=1.2, opacity=0.7)
        .encode(order=alt.Order("time_ms:Q"))
        .properties(name="search_frontiers")
    )
    return Figure(
        name="search",
        title="Measured candidates of each partition",
        table="candidates",
        spec=spec_of(facet_of("candidates", "partition", [search.partition for search in searches], frontier, points)),
        data={"candidates": rows},
        heads={"partition": "partition"} | {name: title for name, title, _ in TIPS},
        note="The line is the frontier of what was measured.",
        empty="" if searches else NOTHING,
    )


def _candidates(searches: Sequence[PartitionSearch]) -> pl.DataFrame:
    frames = [
        search.candidates.select(
            pl.lit(search.partition).alias("partition"),
            pl.format("{} MHz, {} SMs, beside {}", "frequency_mhz", "sm_count", "launch").alias("schedule"),
            pl.col("chosen_by").list.first().replace(_NAMES).alias("found_by"),
            pl.col("chosen_by").list.eval(pl.element().replace(_NAMES)).list.join(", ").alias("passes"),
            "round",
            (1e3 * pl.col("time_s")).alias("time_ms"),
            (1e3 * pl.col("predicted_time_s")).alias("predicted_time_ms"),
            "dynamic_energy_j",
            "predicted_dynamic_energy_j",
            "energy_j",
            "on_frontier",
        )
        for search in searches
    ]
    return pl.concat(frames) if frames else pl.DataFrame()


def passes_figure(efforts: Sequence[SearchEffort]) -> Figure:
    """Return the figure of which pass found what share of the frontier, for each partition and for all together."""
    rows = pl.DataFrame(
        [
            {
                "what": f"{effort.partition} ({effort.on_frontier})",
                "found_by": pass_name(choice.name),
                "measured": choice.measured,
                "on_frontier": choice.on_frontier,
            }
            for effort in efforts
            for choice in effort.passes
        ]
    )
    passes = pass_looks([choice.name for effort in efforts for choice in effort.passes])
    return shares_figure(
        rows, passes, title="Who found the frontier", table="candidates", empty="" if efforts else NOTHING
    )


def shares_figure(rows: pl.DataFrame, passes: dict[str, Look], *, title: str, table: str, empty: str) -> Figure:
    """Return a bar for each `what` of the rows, as long as the others, by the shares of passes in `on_frontier`."""
    tips = (("what", "of", ""), ("found_by", "chosen by", ""), ("on_frontier", "on the frontier", ""),
            ("measured", "candidates measured", ""))  # fmt: skip
    order = [] if rows.is_empty() else rows["what"].unique(maintain_order=True).to_list()
    chart = (
        chart_of("passes", "passes_bars")
        .mark_bar(style="bar", height=alt.RelativeBandSize(band=0.72))
        .encode(
            x=alt.X("on_frontier:Q", stack="normalize", title="share of the frontier", axis=alt.Axis(format=".0%")),
            y=alt.Y("what:N", title=None, sort=order, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
            color=looks("found_by", passes)["color"],
            tooltip=tooltip(tips),
        )
        .properties(width=480, height=BAR_PX * max(len(order), 1))
    )
    return Figure(
        name="passes",
        title=title,
        table=table,
        spec=spec_of(chart),
        data={"passes": rows},
        heads={name: head for name, head, _ in tips},
        empty=empty,
    )
