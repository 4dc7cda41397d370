"""The figure of the adviser: the frontier over layouts, with the margin of ties as bands, and layouts that are tied."""

import altair as alt
import polars as pl

from kareus.adviser.answers import Advice, Depth, LayoutAnswer, SizeAnswer
from kareus.adviser.predictions import LayoutCost
from kareus.adviser.rows import YOURS
from kareus.pareto import pareto_order
from kareus.report.charts import Figure, Tip, chart_of, drawn, legend_filter, looks, spec_of, tooltip
from kareus.report.theme import PALETTE, Look
from kareus.workload.model_flops import tokens_per_iteration

TIES = "tied or behind"
"""Entry of the legend for layouts that were predicted and not planned."""
COLORS = [PALETTE[name] for name in ("blue", "orange", "green", "purple", "vermilion", "olive")]
MOST_COLORS = len(COLORS)
"""Layouts of the frontier that have a colour of their own; further ones share the last."""
NEAR = 1.2
"""Layouts whose fastest plan takes longer than this many times the slowest plan of the frontier are not drawn."""
TIPS: tuple[Tip, ...] = (
    ("words", "layout", ""),
    ("state", "", ""),
    ("tokens_per_s", "tokens/s", ",.0f"),
    ("millijoules_per_token", "mJ/token", ".1f"),
    ("time_s", "iteration time (s)", ".3f"),
    ("energy_kj", "energy, all GPUs (kJ)", ",.1f"),
)


def frontier_figure(advice: Advice, size: SizeAnswer) -> Figure:
    """Return the frontier over layouts of one number of GPUs."""
    rows, marked = _points(advice, size), _marked(advice, size)
    names = [name for name in rows["layout"].unique(maintain_order=True) if name != TIES]
    given = {name: Look(COLORS[min(n, MOST_COLORS - 1)]) for n, name in enumerate(names)}
    if TIES in rows["layout"]:
        given[TIES] = Look(PALETTE["gray"], "diamond")
    return Figure(
        name=f"layouts_{size.gpus}",
        title=f"Plans of layouts on {size.gpus} GPUs: throughput and energy",
        table="",
        spec=spec_of(_chart(f"layouts_{size.gpus}", given, _sides(rows, marked))),
        data={f"layouts_{size.gpus}": rows, f"layouts_{size.gpus}_marked": marked},
        heads={name: head or "how far" for name, head, _ in TIPS},
        note="A colour for each layout that is best at some speed. Bands: energies may be off by "
        f"{size.ties.energy_words}.",
    )


def short_name(answer: LayoutAnswer) -> str:
    """Return a name of a layout for legends, such as `#1 tp8 pp4 dp2 interleaved x5 mbs1`."""
    layout = answer.candidate.layout
    degrees = (("tp", layout.tp), ("cp", layout.cp), ("pp", layout.pp), ("dp", layout.dp))
    schedule = [layout.schedule_words] if layout.pp > 1 else []
    shown = [f"{name}{degree}" for name, degree in degrees if degree > 1]
    return " ".join([f"#{answer.number}", *shown, *schedule, f"mbs{layout.microbatch_size}"])


def _points(advice: Advice, size: SizeAnswer) -> pl.DataFrame:
    on_frontier = {choice.layout.number for choice in size.frontier}
    most_s = NEAR * size.frontier[-1].cost.time_s
    rows = []
    for answer in size.layouts:
        is_planned = answer.depth is Depth.PLANNED and answer.number in on_frontier
        tokens, (_, percent) = tokens_per_iteration(answer.candidate.workload), size.ties.of(answer.candidate.workload)
        for plan in _on_line(answer) if is_planned else [plan for plan in answer.plans[:1] if plan.time_s <= most_s]:
            millijoules = 1e3 * plan.energy_j / tokens
            rows.append(
                {
                    "layout": short_name(answer) if is_planned else TIES,
                    "words": f"#{answer.number} {answer.candidate.words}",
                    "state": "planned" if is_planned else "tied" if answer.is_tied else "behind others",
                    "tokens_per_s": tokens / plan.time_s,
                    "millijoules_per_token": millijoules,
                    "least": millijoules * (1 - percent / 100),
                    "most": millijoules * (1 + percent / 100),
                    "time_s": plan.time_s,
                    "energy_kj": plan.energy_j / 1e3,
                }
            )
    return pl.DataFrame(rows)


def _on_line(answer: LayoutAnswer) -> list[LayoutCost]:
    """Return the plans of a layout that no other dominates as they are drawn: a solver's times may differ by less."""
    tokens = tokens_per_iteration(answer.candidate.workload)
    points = [(-drawn(tokens / plan.time_s), drawn(plan.energy_j)) for plan in answer.plans]
    return [answer.plans[n] for n in pareto_order(points)]


def _marked(advice: Advice, size: SizeAnswer) -> pl.DataFrame:
    """Return what is named in the figure: the chosen plan, and what plans are compared with."""
    whose = advice.question.trainer.title if size.job is None else f"{YOURS} layout"
    marked = [(f"{whose} without a plan", size.reference.layout, size.reference.cost, False)]
    if size.gpus == advice.chosen_gpus:
        marked.append((f"chosen: {advice.selector}", advice.chosen.layout, advice.chosen.cost, True))
    return pl.DataFrame(
        [
            {
                "name": name,
                "is_chosen": is_chosen,
                "tokens_per_s": tokens_per_iteration(layout.candidate.workload) / cost.time_s,
                "millijoules_per_token": 1e3 * cost.energy_j / tokens_per_iteration(layout.candidate.workload),
            }
            for name, layout, cost, is_chosen in marked
        ]
    )


def _sides(rows: pl.DataFrame, marked: pl.DataFrame) -> dict[bool, str]:
    """Return on which side of their rules names end, of the chosen plan and of the other: the one with more room."""
    speeds = pl.concat([rows["tokens_per_s"], marked["tokens_per_s"]])
    middle = (speeds.min() + speeds.max()) / 2  # type: ignore[operator]
    return {row["is_chosen"]: "left" if row["tokens_per_s"] < middle else "right" for row in marked.to_dicts()}


def _chart(data: str, given: dict[str, Look], sides: dict[bool, str]) -> alt.LayerChart:
    selection = legend_filter("layout", list(given))
    encodings = looks("layout", given)
    scale = alt.Scale(zero=False, nice=False, padding=24)
    x = alt.X("tokens_per_s:Q", title="tokens/s, all GPUs (more is better)", scale=scale, axis=alt.Axis(tickCount=6))
    base = chart_of(data, f"{data}_bands").transform_filter(selection)
    planned = f"datum.layout !== '{TIES}'"
    bands = (
        base.transform_filter(planned)
        .mark_area(fillOpacity=0.14)
        .encode(x=x, y=alt.Y("least:Q", scale=scale), y2=alt.Y2("most:Q"), color=encodings["color"])
    )
    y = alt.Y("millijoules_per_token:Q", title="mJ/token (less is better)", scale=scale)
    lines = (
        base.transform_filter(planned)
        .mark_line(strokeWidth=1.5)
        .encode(x=x, y=y, color=encodings["color"], order=alt.Order("tokens_per_s:Q"))
        .properties(name=f"{data}_lines")
    )
    points = (
        base.mark_point(filled=True, opacity=0.95, size=60)
        .encode(x=x, y=y, **encodings, tooltip=tooltip(TIPS))
        .properties(name=f"{data}_points")
        .add_params(selection)
    )
    marks = chart_of(f"{data}_marked", f"{data}_marks").encode(x=x, y=y)
    rings = marks.mark_point(style="ink-line", size=190, strokeWidth=2, filled=False)
    named = [  # at the edges, where no point is: the chosen plan below, the trainer's layout above
        (marks.transform_filter(f"{'' if is_chosen else '!'}datum.is_chosen"), name, edge, dy, sides[is_chosen])
        for is_chosen, name, edge, dy in ((True, "chosen", "height", -10), (False, "trainer", 0, 10))
        if is_chosen in sides
    ]
    rules = [
        mark.mark_rule(style="ink-line", strokeDash=[2, 3])
        .encode(y2=alt.Y2Value(edge))
        .properties(name=f"{data}_{name}_rule")
        for mark, name, edge, _, _ in named
    ]
    names = [
        mark.mark_text(align=side, dx=5 if side == "left" else -5, dy=dy, style="name")
        .encode(text=alt.Text("name:N"), y=alt.YValue(edge))
        .properties(name=f"{data}_{name}")
        for mark, name, edge, dy, side in named
    ]
    return alt.layer(bands, lines, points, rings, *rules, *names).properties(width=720, height=380)
