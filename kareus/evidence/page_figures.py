"""Figures of the page of `kareus validate`: predicted against measured by file, and all errors side by side."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl

from kareus.evidence.frontiers.answer import ReductionAnswer
from kareus.evidence.kernels.answer import KernelAnswer
from kareus.evidence.kernels.rows import KernelKind
from kareus.evidence.page_errors import GroupErrors
from kareus.evidence.page_points import RATIOS, points_of
from kareus.evidence.validation import Validation, ValidationAnswer
from kareus.report.charts import Figure, Tip, chart_of, facet_of, legend_filter, looks, spec_of, tooltip
from kareus.report.theme import METHODS, PALETTE, Look

POWER_PANEL = "power"
"""Word in the names of panels that come last."""
SI_AXIS = alt.Axis(format=".5~s", tickCount=5)
TICKS = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2)
AXIS_ENDS = (1.25, 1.5, RATIOS[1])
"""Largest ratios that axes may end at."""
SHOWN_SHARE = 0.99
"""Share of the points of a file that have to be within its axis."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
BAND = 1.1
"""Predictions within this factor of what was measured are between the dashed lines."""
MANY = 400
"""Points of a panel from which on marks are small."""
TIPS: tuple[Tip, ...] = (
    ("what", "of", ""),
    ("measured", "measured", ".4s"),
    ("predicted", "predicted", ".4s"),
    ("error", "error (%)", "+.1f"),
    ("rows", "rows drawn here", ",.0f"),
)
ERROR_TIPS: tuple[Tip, ...] = (
    ("group", "of", ""),
    ("rows", "rows", ",.0f"),
    ("mape", "mean absolute error (%)", ".1f"),
    ("low", "5 % of the rows are below (%)", "+.1f"),
    ("quarter", "a quarter is below (%)", "+.1f"),
    ("median", "half are below (%)", "+.1f"),
    ("most", "three quarters are below (%)", "+.1f"),
    ("high", "95 % are below (%)", "+.1f"),
)
ROW_PX = 32
"""Height of a group in the figure of all errors."""
DOMAIN_PCT = 40
"""Errors that its axis ends at; marks beyond are cut off."""


def comparison_figure(validation: Validation, name: str) -> Figure:
    """Return the points of a file in a panel for each GPU, family or quantity: how far off each prediction is."""
    points = points_of(validation.answer)
    panels = points["panel"].unique(maintain_order=True).to_list()
    panels.sort(key=lambda panel: (POWER_PANEL in panel, panel))
    groups = sorted(points["group"].unique().to_list())
    small = len(points) > MANY * len(panels)
    if isinstance(validation.answer, ReductionAnswer):
        layers = _savings_panel(name, groups, small=small)
    else:
        ratio = pl.col("predicted") / pl.col("measured")
        most = _axis_end(points.select(ratio).to_series())
        points = points.with_columns(ratio=ratio.clip(1 / most, most), error=100 * (ratio - 1))
        layers = _ratio_panel(name, groups, most, small=small)
    return Figure(
        name=name,
        title=f"{validation.answer.title}: predicted against measured",
        table="",
        spec=spec_of(facet_of("points", "panel", panels, *layers)),
        data={"points": points},
        note=_note(validation.answer),
    )


def _axis_end(ratios: pl.Series) -> float:
    """Return the least end of an axis of ratios that almost all of them are within."""
    off = np.abs(np.log(ratios.to_numpy()))
    return next((end for end in AXIS_ENDS if np.quantile(off, SHOWN_SHARE) <= np.log(end)), AXIS_ENDS[-1])


def _note(answer: ValidationAnswer) -> str:
    if isinstance(answer, ReductionAnswer):
        return "On the line, predictions are right."
    if isinstance(answer, KernelAnswer) and answer.kernels.kind is KernelKind.COLLECTIVE:
        return (
            "Dashed: 10 % off. What is off by more than the axis has is drawn at its end. Messages below 1 MiB and "
            "all-to-alls are drawn and do not count."
        )
    many = " Points that coincide are drawn once." if isinstance(answer, KernelAnswer) else ""
    return f"Dashed: 10 % off. What is off by more than the axis has is drawn at its end.{many}"


def _ratio_panel(name: str, groups: Sequence[str], most: float, *, small: bool) -> list[alt.Chart]:
    """Layers of a panel: the ratio of predicted to measured values over measured ones."""
    x = alt.X("measured:Q", title="measured", scale=alt.Scale(type="log", nice=False, padding=8), axis=SI_AXIS)
    scale = alt.Scale(type="log", domain=[1 / most, most], nice=False)
    ticks = alt.Axis(values=[tick for tick in TICKS if 1 / most <= tick <= most], format="~g")
    y = alt.Y("ratio:Q", title="predicted / measured", scale=scale, axis=ticks)
    return [_points(name, groups, x, y, TIPS, small=small), *(_rule(name, at) for at in (1 / BAND, 1, BAND))]


def _rule(name: str, at: float) -> alt.Chart:
    dash, width = ([1, 0], 1.6) if at == 1 else ([4, 4], 1.2)
    ruled = chart_of(None, f"{name}_at_{100 * at:.0f}").transform_aggregate(rows="count()")
    return ruled.mark_rule(color=PALETTE["gray"], strokeWidth=width, strokeDash=dash, aria=False).encode(
        y=alt.datum(at)
    )


def _savings_panel(name: str, groups: Sequence[str], *, small: bool) -> list[alt.Chart]:
    """Layers of a panel: predicted over measured savings, which may be 0 or less."""
    scale = alt.Scale(zero=False, nice=False, padding=8)
    x = alt.X("measured:Q", title="measured", scale=scale)
    y = alt.Y("predicted:Q", title="predicted", scale=scale)
    equal = (
        chart_of(None, f"{name}_equal")
        .mark_line(color=PALETTE["gray"], strokeWidth=1.6, aria=False)
        .encode(x=x, y=alt.Y("measured:Q", title="predicted"))
    )
    return [_points(name, groups, x, y, [tip for tip in TIPS if tip[0] != "error"], small=small), equal]


def _points(name: str, groups: Sequence[str], x: alt.X, y: alt.Y, tips: Sequence[Tip], *, small: bool) -> alt.Chart:
    selection = legend_filter("group", groups)
    return (
        chart_of(None, f"{name}_points")
        .transform_filter(selection)
        .mark_point(filled=True, opacity=0.6 if small else 0.8, size=8 if small else 34, aria=False)
        .encode(x=x, y=y, **looks("group", looks_of_groups(groups)), tooltip=tooltip(tips))
        .add_params(selection)
    )


def looks_of_groups(groups: Sequence[str]) -> dict[str, Look]:
    """Return a colour and a shape for each group: those of methods where groups are methods."""
    if all(group in METHODS for group in groups):
        return {group: METHODS[group] for group in groups}
    colors = [PALETTE[name] for name in ("blue", "orange", "green", "purple", "vermilion", "olive", "gray")]
    return {group: Look(colors[i % len(colors)], SHAPES[i % len(SHAPES)]) for i, group in enumerate(groups)}


def errors_figure(name: str, title: str, groups: Sequence[GroupErrors], kinds: Sequence[str]) -> Figure:
    """Return how the errors of each group are spread: 5 to 95 % of its rows, the middle half, the median.

    Args:
        name: of the figure.
        title: of the figure.
        groups: of one quantity.
        kinds: of all quantities, so that a kind has one colour in all figures.
    """
    rows = pl.DataFrame(
        [
            {
                "group": group.label,
                "kind": group.kind,
                "label": f"{group.group}: {group.mape_pct:.1f} %",
                "rows": len(group.errors_pct),
                "mape": group.mape_pct,
                **dict(zip(("low", "quarter", "median", "most", "high"), group.quantiles_pct, strict=True)),
            }
            for group in groups
        ]
    )
    colours, present = looks_of_groups(kinds), rows["kind"].unique(maintain_order=True).to_list()
    return Figure(
        name=name,
        title=title,
        table="",
        spec=spec_of(_spread(name, rows["group"].to_list(), {kind: colours[kind] for kind in present})),
        data={"errors": rows},
        heads={column: head for column, head, _ in ERROR_TIPS},
        note="Predicted less measured; thin: 5 to 95 % of the rows, thick: the middle half, disc: the median; names: "
        "with mean absolute errors.",
    )


def _spread(name: str, groups: list[str], kinds: dict[str, Look]) -> alt.LayerChart:
    y = alt.Y("group:N", title=None, sort=groups, axis=None)
    base = chart_of("errors", f"{name}_thin").encode(
        y=y, color=looks("kind", kinds)["color"], tooltip=tooltip(ERROR_TIPS)
    )
    scale = alt.Scale(domain=[-DOMAIN_PCT, DOMAIN_PCT], clamp=True)
    thin = base.mark_rule(strokeWidth=1.6).encode(x=alt.X("low:Q", title="error (%)", scale=scale), x2=alt.X2("high:Q"))
    middle, half = alt.X("median:Q"), {"x": alt.X("quarter:Q"), "x2": alt.X2("most:Q")}
    thick = base.mark_bar(height=9, opacity=0.75).encode(**half).properties(name=f"{name}_thick")
    median = base.mark_point(filled=True, size=70, opacity=1).encode(x=middle).properties(name=f"{name}_median")
    zero = (
        chart_of("errors", f"{name}_zero")
        .transform_aggregate(rows="count()")
        .mark_rule(color=PALETTE["gray"], strokeDash=[4, 4])
        .encode(x=alt.datum(0))
    )
    names = (
        chart_of("errors", f"{name}_names")
        .mark_text(align="left", dy=-13, fontSize=11)
        .encode(y=y, x=alt.value(2), text=alt.Text("label:N"))
    )
    return alt.layer(zero, thin, thick, median, names).properties(width=720, height=ROW_PX * len(groups))
