"""The figure of the profiler's sweeps in a campaign: energies of all trials, and temperatures."""

import altair as alt
import polars as pl

from kareus.report.campaign.inputs import CampaignInputs
from kareus.report.charts import Figure, chart_of, facet_of, legend_filter, looks, spec_of, tooltip
from kareus.report.theme import PALETTE, Look
from kareus.report.workload.tables import PROFILER

TRIAL, REFERENCE = "trial", "without noise, at the reference temperature"
WARM, WARM_REFERENCE = "mean, at the settled temperature", "without noise, at the settled temperature"
SERIES = {
    TRIAL: Look(PALETTE["orange"], "circle"),
    "mean": Look(PALETTE["blue"], "stroke"),
    REFERENCE: Look(PALETTE["gray"], "stroke"),
    WARM: Look(PALETTE["green"], "stroke"),
    WARM_REFERENCE: Look(PALETTE["olive"], "stroke"),
    "before the window": Look(PALETTE["purple"], "square"),
    "after the window": Look(PALETTE["vermilion"], "triangle-up"),
}
OPTIONAL = {
    "reference_energy_j": REFERENCE,
    "warm_energy_mean_j": WARM,
    "warm_reference_energy_j": WARM_REFERENCE,
}
"""Series of energies that some testbeds do not have, by their columns."""
MARKED = [name for name, look in SERIES.items() if look.shape != "stroke"]
"""Series whose points are marked."""


def profiler_figure(inputs: CampaignInputs, profiler: pl.DataFrame) -> Figure:
    """Return the trials of every sweep over what it varied; `profiler` is a table `PROFILER`."""
    rows = _rows(inputs, profiler)
    selection, encodings = legend_filter("series", list(SERIES)), looks("series", SERIES)
    tips = (("panel", "", ""), ("series", "series", ""), ("varied", "at (s)", ".1f"), ("value", "value", ".2f"))
    base = chart_of(None, "profiler_points").encode(
        x=alt.X("varied:Q", title=None),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        color=encodings["color"],
    )
    points = (
        base.transform_filter(selection)
        .transform_filter(alt.FieldOneOfPredicate(field="series", oneOf=MARKED))
        .mark_point(filled=True, size=24, opacity=0.7)
        .encode(shape=encodings["shape"], tooltip=tooltip(tips))
        .add_params(selection)
    )
    lines = (
        base.transform_filter(selection)
        .transform_filter(f"datum.series !== '{TRIAL}'")
        .mark_line(strokeWidth=1.4)
        .encode(order=alt.Order("varied:Q"))
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


def _rows(inputs: CampaignInputs, profiler: pl.DataFrame) -> pl.DataFrame:
    frames, several = [], len({workload for workload, _ in inputs.trials}) > 1
    for (workload, sweep), trials in inputs.trials.items():
        means = profiler.filter((pl.col("workload") == workload) & (pl.col("sweep") == sweep))
        of = f"{trials['partition'][0]}{f' of {workload}' if several else ''}"
        if means["window_s"].n_unique() == 1:
            frames += _panels(trials, means, "cooldown_s", of)
            continue
        cooldowns_s = means["cooldown_s"].unique(maintain_order=True).to_list()
        for cooldown_s in cooldowns_s:  # a panel for each, if several were swept together with windows
            alike = pl.col("cooldown_s") == cooldown_s
            where = of + f", cooldown {cooldown_s:g} s" * (len(cooldowns_s) > 1)
            frames += _panels(trials.filter(alike), means.filter(alike), "window_s", where)
    return pl.concat(frames)


def _panels(trials: pl.DataFrame, means: pl.DataFrame, varied: str, of: str) -> list[pl.DataFrame]:
    """Return the series of energies and of temperatures over what was varied."""
    of = f" by {varied.removesuffix('_s')} (s): {of}"
    energies = [(trials, "energy_j", TRIAL), (means, "energy_mean_j", "mean")]
    for column, series in OPTIONAL.items():
        if means[column].null_count() == 0:
            energies.append((means, column, series))
    return [
        *(_series(rows, f"energy (mJ){of}", varied, column, name, 1e3) for rows, column, name in energies),
        *(
            _series(means, f"temperature (\u00b0C){of}", varied, f"temperature_{when}_c", f"{when} the window", 1)
            for when in ("before", "after")
        ),
    ]


def _series(rows: pl.DataFrame, panel: str, varied: str, column: str, series: str, scale: float) -> pl.DataFrame:
    return rows.sort(varied, maintain_order=True).select(
        pl.lit(panel).alias("panel"),
        pl.lit(series).alias("series"),
        pl.col(varied).cast(pl.Float64).alias("varied"),
        (scale * pl.col(column)).alias("value"),
    )
