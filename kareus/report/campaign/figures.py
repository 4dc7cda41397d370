"""The figures of a campaign: all workloads in one scatter, their frontiers, who found them, the profiler's sweeps."""

from collections.abc import Mapping

import altair as alt
import numpy as np
import polars as pl

from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE
from kareus.report.campaign.inputs import CampaignInputs
from kareus.report.campaign.overview import Overview, fleet_labels, short_labels
from kareus.report.charts import Figure, Tip, chart_of, facet_of, legend_filter, looks, looks_of, spec_of, tooltip
from kareus.report.contents import OVERVIEW, frontiers_name
from kareus.report.fleet_inputs import fleet_title
from kareus.report.frontier_panels import frontier_panels
from kareus.report.theme import ABLATIONS, PALETTE, Look
from kareus.report.workload.searches import NOTHING, pass_looks, pass_name, shares_figure
from kareus.report.workload.tables import COMPARISON, PASSES, PROFILER

COMPARED = ("sequential", "sequential+perseus", "nanobatching+perseus", "kareus")
"""Methods whose frontiers the paper shows, and the plain baseline."""
FEW_TIMES = 4
"""Ranges of fewer times than this are drawn linearly: a logarithmic axis would have one or two labels."""
MOST_NAMES = 5
"""Workloads whose names have space in the figure."""
SIZE_PX, PADDING_PX = (720, 380), 28
"""Width and height of the figure, and what axes leave at their ends."""
NAME_PX = (5.6, 10)
"""Width of a letter of a name, about, and its height."""
NAME_STEPS = (12, 24, 36, -12, -24)
"""Distances below its point at which a name may stand, in pixels: above it are the other methods."""
NO_SPACE = {"expr": "width < 560 ? 0 : 1"}
OVERVIEW_TIPS: tuple[Tip, ...] = (
    ("workload", "workload", ""),
    ("method", "method", ""),
    ("tokens_per_s", "tokens/s", ",.0f"),
    ("millijoules_per_token", "mJ/token", ".1f"),
    ("time_s", "iteration time (s)", ".3f"),
    ("energy_kj", "energy, all GPUs (kJ)", ".2f"),
    ("time_saved", "time saved (%)", ".1f"),
    ("energy_saved", "energy saved (%)", ".1f"),
)
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


def campaign_figures(
    inputs: CampaignInputs, overview: list[Overview], passes: pl.DataFrame, profiler: pl.DataFrame
) -> list[Figure]:
    """Every figure of a campaign; `passes` and `profiler` are its tables `PASSES` and `PROFILER`."""
    parts: dict[str, list[str]] = {}
    for member in inputs.of_kind("workload"):
        parts.setdefault(member["part"], []).append(member["workload"])
    labels = short_labels(list(inputs.of_kind("workload")))
    return [
        *([overview_figure(overview)] if overview else []),
        *(_frontiers(inputs, part, names, labels) for part, names in parts.items()),
        *([_fleets(inputs)] if inputs.fleet else []),
        *([_passes(passes, labels)] if parts else []),
        *([profiler_figure(inputs, profiler)] if inputs.trials else []),
    ]


def _frontiers(inputs: CampaignInputs, part: str, workloads: list[str], labels: Mapping[str, str]) -> Figure:
    frames = {labels[name]: inputs.iteration[name].filter(pl.col("method").is_in(COMPARED)) for name in workloads}
    return frontier_panels(frontiers_name(part), f"Iteration frontiers, {part}", "iteration", frames)


def _fleets(inputs: CampaignInputs) -> Figure:
    members = list(inputs.of_kind("fleet"))
    titles = fleet_labels(members, lambda row: fleet_title(inputs.fleet[row["workload"], row["name"]]))
    frames = {
        titles[key]: rows.filter(pl.col("method").is_in(COMPARED) & pl.col("on_frontier"))
        for key, rows in inputs.fleet.items()
    }
    return frontier_panels("fleets", "Iteration frontiers of emulated fleets", "fleet", frames)


def _passes(passes: pl.DataFrame, labels: Mapping[str, str]) -> Figure:
    """One bar for each workload, and the first for all of them."""
    passes = passes.with_columns(pl.col("workload").replace(labels))
    together = passes.with_columns(workload=pl.lit("all workloads"))
    named = pl.concat([together, passes]) if len(passes) else passes
    counts = named.group_by("workload", "chosen_by", maintain_order=True).agg(pl.sum("measured"), pl.sum("on_frontier"))
    totals = pl.col("on_frontier").sum().over("workload")
    rows = counts.select(
        pl.format("{} ({} choices)", "workload", totals).alias("what"),
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


def overview_figure(overview: list[Overview]) -> Figure:
    """Return the plans of the least time of all workloads and methods."""
    rows = _overview_points(overview)
    methods = looks_of(rows["method"].unique(maintain_order=True).to_list())
    return Figure(
        name=OVERVIEW,
        title="Throughput and energy of all workloads, each method at its least time",
        table=COMPARISON.name,
        spec=spec_of(_overview_chart(rows, list(methods), has_names=rows["workload"].n_unique() <= MOST_NAMES)),
        data={"overview": rows},
        heads={name: head for name, head, _ in OVERVIEW_TIPS},
        note="Dashed lines lead from the trainer's own execution of a workload to kareus. Click on a point to open the "
        "page of its workload.",
    )


def _overview_points(overview: list[Overview]) -> pl.DataFrame:
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


def _overview_chart(rows: pl.DataFrame, methods: list[str], *, has_names: bool) -> alt.LayerChart:
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
            tooltip=tooltip(OVERVIEW_TIPS),
        )
        .properties(name="overview_points")
        .add_params(selection)
    )
    ends = _name_places(rows) if has_names else []
    names = [
        base.transform_filter(selection)
        .transform_filter(f"datum.method === '{OURS}'")
        .transform_filter(alt.FieldEqualPredicate(field="workload", equal=workload))
        .mark_text(align=align, dx=11 if align == "left" else -11, dy=dy, fontSize=NAME_PX[1], opacity=NO_SPACE)
        .encode(text=alt.Text("workload:N"))
        .properties(name=f"overview_names_{n}")
        for n, (workload, align, dy) in enumerate(ends)
    ]
    return alt.layer(lines, points, *names).properties(width=SIZE_PX[0], height=SIZE_PX[1])


def _name_places(rows: pl.DataFrame) -> list[tuple[str, str, int]]:
    """Return of each workload on which side of its plan of `kareus` its name stands, and how far below, to be legible.

    Pixels are those of files; pages are as wide or wider.
    """
    columns = zip(("tokens_per_s", "millijoules_per_token"), SIZE_PX, strict=True)
    spots = [_pixels(rows[name], size_px) for name, size_px in columns]
    taken: list[tuple[float, float, float]] = []
    places = []
    for workload, method, x, y in zip(rows["workload"], rows["method"], *spots, strict=True):
        if method != OURS:
            continue
        is_left = x < SIZE_PX[0] / 2  # names stand on the side with room
        width = NAME_PX[0] * len(workload)
        start = x + 11 if is_left else x - 11 - width
        over = [at for left, right, at in taken if start < right and start + width > left]
        inside = [dy for dy in NAME_STEPS if dy < y]
        free = (dy for dy in inside if all(abs(dy - y - at) > NAME_PX[1] for at in over))
        dy = next(free, NAME_STEPS[0])
        taken.append((start, start + width, dy - y))
        places.append((workload, "left" if is_left else "right", dy))
    return places


def _pixels(values: pl.Series, size_px: int) -> list[float]:
    """Return where values are on an axis of so many pixels, as `_scale` places them."""
    places = values.to_numpy()
    if places.max() >= FEW_TIMES * places.min():
        places = np.log(places)
    span = max(np.ptp(places), 1e-9)
    return [float(PADDING_PX + (size_px - 2 * PADDING_PX) * (place - places.min()) / span) for place in places]


def _scale(values: pl.Series) -> alt.Scale:
    """Return the scale of an axis: logarithmic where values differ much."""
    low, high = float(values.to_numpy().min()), float(values.to_numpy().max())
    if high < FEW_TIMES * low:
        return alt.Scale(zero=False, nice=False, padding=PADDING_PX)
    return alt.Scale(type="log", nice=False, padding=PADDING_PX)


def profiler_figure(inputs: CampaignInputs, profiler: pl.DataFrame) -> Figure:
    """Return the trials of every sweep over what it varied; `profiler` is a table `PROFILER`."""
    rows = _profiler_rows(inputs, profiler)
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


def _profiler_rows(inputs: CampaignInputs, profiler: pl.DataFrame) -> pl.DataFrame:
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
