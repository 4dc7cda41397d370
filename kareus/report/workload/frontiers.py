"""Figures of time-energy frontiers: of the iteration by method, and of the microbatch by stage and direction."""

from collections.abc import Sequence
from itertools import chain, pairwise

import altair as alt
import numpy as np
import polars as pl

from kareus.gpu_model.gpu import Uncertainty
from kareus.graph.records import Direction
from kareus.pipeline.compare import FRONTIER_BASELINE, OURS, THROUGHPUT_BASELINE, max_throughput_plan, with_reductions
from kareus.plans.units import less, significant
from kareus.report.charts import Figure, Tip, chart_of, facet_of, legend_filter, looks, looks_of, spec_of, tooltip, zoom
from kareus.report.theme import ABLATIONS, METHODS, PALETTE, Look
from kareus.report.workload.summary import PlanRow

PLAN_TIPS: tuple[Tip, ...] = (
    ("method", "method", ""),
    ("time_s", "iteration time (s)", ".3f"),
    ("energy_kj", "energy, all GPUs (kJ)", ".2f"),
    ("static_kj", "static (kJ)", ".2f"),
    ("dynamic_kj", "dynamic (kJ)", ".2f"),
    ("time_reduction_percent", "time saved (%)", ".1f"),
    ("energy_reduction_percent", "energy saved (%)", ".1f"),
    ("gap_percent", "gap to lower bound (%)", ".2f"),
)
MARGIN = 0.05
"""Share of the span of an axis that stays free at either end."""
CALLOUT = 0.3
"""Likewise on the left of a plan whose name is written there."""
CALLOUT_BELOW = 0.2
"""Likewise below it: three lines, each of 17 of about 360 pixels, clear of faster plans, which all take more energy."""
HAS_SPACE = f"width >= 560 || datum.method === '{OURS}'"
"""Where the names of methods are written; elsewhere they would cross lines, and the legend has them."""
PLACES = (("below", "right", 0, 13), ("above", "right", 0, -13), ("right", "left", 9, -2), ("left", "right", -9, -2))
"""Where the name of a method is written beside its last point: alignment and distance in pixels."""
PIXEL = 1 / 360
"""Share of the span of energies that a pixel is, about."""
NEAR = (0.2, 0.06)
"""Shares of the spans of both axes within which names of two points would cross."""
KINDS = {
    **{
        f"frontier of {method}": Look(METHODS[method].color, "stroke")
        for method in ("sequential", "nanobatching", OURS)
    },
    f"{OURS}: sequential": Look(PALETTE["orange"], "square"),
    f"{OURS}: nanobatching": Look(PALETTE["green"], "triangle-up"),
    f"{OURS}: overlap": Look(PALETTE["blue"], "circle"),
}
"""Lines of microbatch frontiers, and points of `kareus` by their execution."""


def iteration_figure(iteration: pl.DataFrame, plans: Sequence[PlanRow], uncertainty: Uncertainty | None) -> Figure:
    """Return the frontiers of all methods, the chosen plans on them, and what is gained.

    Args:
        iteration: a table `ITERATION`.
        plans: the chosen plans; the answer is the first.
        uncertainty: of the GPU model, shown as a band around `kareus`; None where it is not known.
    """
    rows = plan_points(iteration)
    methods = list(looks_of(rows["method"].unique(maintain_order=True).to_list()))
    layers = [
        _polygon("gain", fill=PALETTE["blue"], opacity=0.13),
        *([_polygon("band", fill=PALETTE["blue"], opacity=0.16)] if uncertainty else []),
        *_lines(rows, methods, _domains(rows, plans)),
        *_answer(),
    ]
    chart = alt.layer(*layers).properties(height=420, width=720)
    baseline = max_throughput_plan(iteration, THROUGHPUT_BASELINE)
    return Figure(
        name="iteration",
        title="Iteration time and energy by method",
        table="iteration",
        spec=spec_of(chart),
        data={
            "plans": rows,
            "ends": method_ends(rows),
            "chosen": _chosen(plans, baseline["time_s"], baseline["energy_j"] / 1e3),
            "gain": gain_polygon(rows),
            **({"band": _band(rows, uncertainty)} if uncertainty else {}),
        },
        heads={name: title for name, title, _ in PLAN_TIPS},
        zooms={"x": "time_s", "y": "energy_kj"},
        note=_note(rows, uncertainty),
    )


def _note(rows: pl.DataFrame, uncertainty: Uncertainty | None) -> str:
    ours, theirs = (_steps(rows.filter(pl.col("method") == method)) for method in (OURS, FRONTIER_BASELINE))
    said = [f"Shaded: what {OURS} gains over {FRONTIER_BASELINE}."] if ours and theirs and ours != theirs else []
    if uncertainty is not None:
        said.append(
            f"The band around {OURS}: 9 of 10 planned iterations were within {uncertainty.time_percent:.1f} % of time "
            f"and {uncertainty.energy_percent:.1f} % of energy, of workloads that the fit had not seen."
        )
    return " ".join(said)


def plan_points(iteration: pl.DataFrame) -> pl.DataFrame:
    """Return the plans of a table `ITERATION` in kilojoules, with what each saves, by rising time."""
    return (
        with_reductions(iteration, iteration)
        .with_columns(
            energy_kj=pl.col("energy_j") / 1e3,
            static_kj=pl.col("static_energy_j") / 1e3,
            dynamic_kj=pl.col("dynamic_energy_j") / 1e3,
            gap_percent=100 * pl.col("gap"),
        )
        .select("plan", *(name for name, _, _ in PLAN_TIPS))
        .sort("time_s", maintain_order=True)
    )


def _lines(
    rows: pl.DataFrame, methods: Sequence[str], domains: tuple[Sequence[float], Sequence[float]]
) -> list[alt.Chart]:
    x = alt.X("time_s:Q", title="iteration time (s)", scale=alt.Scale(domain=domains[0], nice=False, zero=False))
    y = alt.Y("energy_kj:Q", title="energy of an iteration, all GPUs (kJ)").scale(
        domain=domains[1], nice=False, zero=False
    )
    shown = [method for method in methods if method not in ABLATIONS]
    selection = legend_filter("method", shown)
    encodings = looks("method", looks_of(methods))
    base = chart_of("plans", "frontier_lines").encode(x=x, y=y).transform_filter(selection)
    emphasis = alt.condition(f"datum.method === '{OURS}'", alt.value(2.6), alt.value(1.5))
    lines = base.mark_line(interpolate="step-after", clip=True).encode(
        color=encodings["color"], order=alt.Order("time_s:Q"), strokeWidth=emphasis
    )
    points = (
        base.mark_point(filled=True, size=34, opacity=0.95, cursor="pointer", clip=True)
        .encode(**encodings, tooltip=tooltip(PLAN_TIPS))
        .properties(name="frontier_points")
        .add_params(selection, zoom("x", "y"))
    )
    ends = chart_of("ends", "frontier_names").encode(x=x, y=y, text=alt.Text("method:N"), color=encodings["color"])
    names = [
        ends.transform_filter(selection)
        .transform_filter(alt.FieldEqualPredicate(field="place", equal=place))
        .mark_text(align=align, dx=dx, dy=dy, style="name", clip=True)
        .encode(opacity=alt.condition(HAS_SPACE, alt.value(1), alt.value(0)))
        .properties(name=f"frontier_names_{place}")
        for place, align, dx, dy in PLACES
    ]
    return [lines, points, *names]


def _domains(rows: pl.DataFrame, plans: Sequence[PlanRow]) -> tuple[list[float], list[float]]:
    """Return what the axes span at first: all methods but ablations, with space for the name of the first plan."""
    shown = rows.filter(~pl.col("method").is_in(ABLATIONS))
    low_s, high_s, low_kj, high_kj = shown.select(
        *(agg for name in ("time_s", "energy_kj") for agg in (pl.min(name), pl.max(name).alias(f"most_{name}")))
    ).row(0)
    low_s, low_kj = min(low_s, plans[0].time_s), min(low_kj, plans[0].energy_j / 1e3)
    span_s, span_kj = max(high_s - low_s, 1e-3 * high_s), max(high_kj - low_kj, 1e-3 * high_kj)
    left = max(MARGIN * span_s, CALLOUT * span_s - (plans[0].time_s - low_s))
    below = max(1.6 * MARGIN * span_kj, CALLOUT_BELOW * span_kj - (plans[0].energy_j / 1e3 - low_kj))
    return (
        [low_s - left, high_s + 1.6 * MARGIN * span_s],
        [low_kj - below, high_kj + MARGIN * span_kj],
    )


def _answer() -> list[alt.Chart]:
    """Return the chosen plans, and an arrow from the baseline to the first with what it saves."""
    place = {"x": alt.X("time_s:Q"), "y": alt.Y("energy_kj:Q")}
    first = chart_of("chosen", "chosen_arrow").transform_filter("datum.number === 1")
    arrow = first.mark_rule(style="ink-line", strokeDash=[4, 4], opacity=0.7, clip=True).encode(
        x=alt.X("from_s:Q"), y=alt.Y("from_kj:Q"), x2=alt.X2("time_s:Q"), y2=alt.Y2("energy_kj:Q")
    )
    disc = chart_of("chosen", "chosen_discs").mark_circle(
        style="ink", size=260, opacity=1, cursor="pointer", strokeWidth=1.5, clip=True
    )
    tips = [("name", "chosen plan", ""), *(tip for tip in PLAN_TIPS if tip[0] in ("time_s", "energy_kj")),
            *(tip for tip in PLAN_TIPS if tip[0].endswith("reduction_percent"))]  # fmt: skip
    number = chart_of("chosen", "chosen_numbers").mark_text(style="number", clip=True)
    words = [  # on paper of their own, since lines of other methods may pass there
        first.properties(name=name)
        .mark_text(
            align="right",
            dx=-4,
            dy=19,
            style=styles,
            lineBreak="|",
            lineHeight=17,
            clip=True,
            opacity={"expr": "width < 560 ? 0 : 1"},  # no space for it; the page's first line says the same
        )
        .encode(**place, text=alt.Text("told:N"))
        for name, styles in (("chosen_paper", ["name", "paper"]), ("chosen_told", ["name"]))
    ]
    return [
        arrow,
        *words,
        disc.encode(**place, tooltip=tooltip(tips)),
        number.encode(**place, text=alt.Text("number:N")),
    ]


def _chosen(plans: Sequence[PlanRow], baseline_s: float, baseline_kj: float) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "number": number,
                "name": f"{number}: {plan.method}, {plan.selector}",
                "told": f"{plan.selector}: {significant(plan.time_s)} s|{less(plan.time_reduction_percent, 'time')}"
                f"|{less(plan.energy_reduction_percent, 'energy')}",
                "time_s": plan.time_s,
                "energy_kj": plan.energy_j / 1e3,
                "time_reduction_percent": plan.time_reduction_percent,
                "energy_reduction_percent": plan.energy_reduction_percent,
                "from_s": baseline_s,
                "from_kj": baseline_kj,
            }
            for number, plan in enumerate(plans, 1)
        ]
    )


def method_ends(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the slowest plan of every method, and on which side of it its name is written, clear of others."""
    ends = rows.group_by("method", maintain_order=True).agg(pl.last("time_s"), pl.last("energy_kj"), pl.len())
    spans = [max(np.ptp(rows[name].to_numpy()), 1e-9) for name in ("time_s", "energy_kj")]
    scaled = [(name, s / spans[0], kj / spans[1], plans) for name, s, kj, plans in ends.iter_rows()]
    places = _places_of_lines([(kj, s, name) for name, s, kj, plans in scaled if plans > 1])
    points = [(kj, s, name) for name, s, kj, plans in scaled if plans == 1]
    for kj, s, name in points:
        others = [each for each in points if abs(each[1] - s) < NEAR[0] and abs(each[0] - kj) < NEAR[1]]
        places[name] = "left" if any((other_s, other) > (s, name) for _, other_s, other in others) else "right"
    return ends.drop("len").with_columns(place=pl.col("method").replace_strict(places, return_dtype=pl.String))


def _places_of_lines(lines: Sequence[tuple[float, float, str]]) -> dict[str, str]:
    """Return where the names of frontiers are written: below their ends, else above, else nowhere.

    Args:
        lines: energy and time of each end, in spans of the axes, and its method.
    """
    places: dict[str, str] = {}
    names: list[tuple[float, float]] = []
    for kj, s, method in sorted(lines, key=lambda line: (line[2] in ABLATIONS, *line)):
        ends = [end for end, other_s, other in lines if other != method and abs(other_s - s) < NEAR[0]
                and other not in ABLATIONS]  # fmt: skip
        near = [level for level, other_s in names if abs(other_s - s) < NEAR[0]]
        levels = {place: kj - dy * PIXEL for place, _, _, dy in PLACES[:2]}
        free = [place for place, level in levels.items()
                if all(abs(level - end) > 8 * PIXEL for end in ends)
                and all(abs(level - name) > 12 * PIXEL for name in near)]  # fmt: skip
        places[method] = free[0] if free else "nowhere"
        if free:
            names.append((levels[free[0]], s))
    return places


def _polygon(data: str, *, fill: str, opacity: float) -> alt.Chart:
    return (
        chart_of(data, f"frontier_{data}")
        .mark_line(filled=True, fill=fill, stroke=None, opacity=opacity, clip=True, tooltip=None)
        .encode(x=alt.X("time_s:Q"), y=alt.Y("energy_kj:Q"), order=alt.Order("order:Q"))
    )


def gain_polygon(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the corners of the area between the frontiers of `sequential+perseus` and `kareus`.

    No rows if `kareus` was not planned.
    """
    ours, theirs = (rows.filter(pl.col("method") == method) for method in (OURS, FRONTIER_BASELINE))
    if ours.is_empty() or theirs.is_empty():
        return _corners([])
    below, above = _steps(ours), _steps(theirs)
    if above[0][0] > below[0][0]:  # nothing of theirs is as fast: their fastest plan is the alternative
        above.insert(0, (below[0][0], above[0][1]))
    if above[-1][0] > below[-1][0]:
        below.append((above[-1][0], below[-1][1]))
    return _corners([*above, *reversed(below)])


def _band(rows: pl.DataFrame, uncertainty: Uncertainty) -> pl.DataFrame:
    """Return the corners of the band in which nine of ten frontiers of `kareus` would be measured."""
    steps = _steps(rows.filter(pl.col("method") == OURS))
    low, high = (
        [(t * (1 + sign * uncertainty.time_percent / 100), e * (1 + sign * uncertainty.energy_percent / 100))
         for t, e in steps]
        for sign in (-1, 1)
    )  # fmt: skip
    return _corners([*low, *reversed(high)])


def _steps(rows: pl.DataFrame) -> list[tuple[float, float]]:
    """Return the corners of a frontier: a plan's energy holds until the next plan's time."""
    points = list(rows.select("time_s", "energy_kj").iter_rows())
    corners = [((time_s, energy_kj), (next_s, energy_kj)) for (time_s, energy_kj), (next_s, _) in pairwise(points)]
    return [*chain.from_iterable(corners), *points[-1:]]


def _corners(corners: Sequence[tuple[float, float]]) -> pl.DataFrame:
    schema = {"time_s": pl.Float64, "energy_kj": pl.Float64}
    return pl.DataFrame(corners, schema=schema, orient="row").with_row_index("order")


def microbatch_figure(microbatch: pl.DataFrame) -> Figure:
    """Return the microbatch frontiers; stages, or chunks of them, with equal frontiers share a panel."""
    rows = _microbatch_rows(microbatch)
    panels = rows["panel"].unique(maintain_order=True).to_list()
    present = rows["kind"].unique().to_list()
    kinds = {kind: look for kind, look in KINDS.items() if kind in present}
    selection, encodings = legend_filter("kind", list(kinds)), looks("kind", kinds)
    tips = (
        ("panel", "instruction", ""),
        ("kind", "", ""),
        ("frequency_mhz", "clock (MHz)", ""),
        ("time_ms", "time (ms)", ".2f"),
        ("energy_j", "energy of one GPU (J)", ".2f"),
        ("effective_j", "less blocking energy (J)", ".2f"),
    )
    base = (
        chart_of(None, "microbatch_lines")
        .encode(
            x=alt.X("time_ms:Q", title="time (ms)", scale=alt.Scale(zero=False)),
            y=alt.Y("effective_j:Q", title="energy less blocking, per GPU (J)", scale=alt.Scale(zero=False)),
            color=encodings["color"],
        )
        .transform_filter(selection)
    )
    lines = (
        base.transform_filter("datum.is_line")
        .mark_line(interpolate="step-after", strokeWidth=1.4, opacity=0.7)
        .encode(order=alt.Order("time_ms:Q"))
    )
    points = (
        base.transform_filter("!datum.is_line")
        .mark_point(filled=True, size=34, opacity=0.95)
        .encode(shape=encodings["shape"], tooltip=tooltip(tips))
        .properties(name="microbatch_points")
        .add_params(selection)
    )
    return Figure(
        name="microbatch",
        title="Microbatch frontiers, points of kareus by execution",
        table="microbatch",
        spec=spec_of(facet_of("microbatch", "panel", panels, lines, points)),
        data={"microbatch": rows},
        heads={name: title or "plan" for name, title, _ in tips},
    )


def _microbatch_rows(microbatch: pl.DataFrame) -> pl.DataFrame:
    passed = pl.Enum([str(direction) for direction in Direction])  # which sorts as a microbatch passes them
    points = microbatch.filter("on_frontier").with_columns(pl.col("direction").cast(passed))
    order, is_chunked = ("direction", "stage", "chunk"), microbatch["chunk"].max() != 0
    shared: list[tuple[str, pl.DataFrame, list[str]]] = []
    for (_, stage, chunk), rows in points.sort(*order, "time_s", maintain_order=True).group_by(
        *order, maintain_order=True
    ):
        place = f"{stage} chunk {chunk}" if is_chunked else str(stage)
        direction, costs = rows["direction"][0], rows.drop("stage", "chunk", "point", "choices")
        places = next((places for _, alike, places in shared if alike.equals(costs)), None)
        if places is None:
            shared.append((direction, costs, [place]))
        else:
            places.append(place)
    return pl.concat(
        costs.filter(~pl.col("method").is_in(ABLATIONS) if is_line else pl.col("method") == OURS).select(
            pl.lit(f"{direction}, stage {', '.join(places)}").alias("panel"),
            pl.format("frontier of {}" if is_line else "kareus: {}", "method" if is_line else "execution").alias(
                "kind"
            ),
            pl.lit(is_line).alias("is_line"),
            "frequency_mhz",
            (1e3 * pl.col("time_s")).alias("time_ms"),
            "energy_j",
            pl.col("effective_energy_j").alias("effective_j"),
        )
        for direction, costs, places in shared
        for is_line in (True, False)
    )
