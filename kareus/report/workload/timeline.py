"""Pipelines over one iteration: two plans above each other and the power of both on one axis of time; their tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np
import polars as pl

from kareus.arrays import Array
from kareus.artifacts.records import to_plain
from kareus.gpu_model.gpu import Gpu
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import UPDATING, Direction
from kareus.plans.document import Plan, PlannedInstruction
from kareus.plans.grid_power import PowerSeries, power_series
from kareus.plans.power import power_over_time
from kareus.plans.units import significant
from kareus.report.charts import Figure, Tip, chart_of, spec_of, tooltip, zoom_of
from kareus.report.contents import BASELINE_PLAN
from kareus.report.theme import CLOCK_RAMP, PALETTE
from kareus.report.workload.tables import TIMELINE

TIMELINES = "timelines"
"""Folder of the figures, which are named after plans."""
LANE_PX, POWER_PX = 34, 120
MOST_LANES_PX = 420
"""Height of the lanes of all stages at which they begin to get flatter."""
WATTS = 3
"""Decimals of a kilowatt."""
MEANS = 121
"""Moments whose second before is shown."""
TEXT_PX = 22
"""Least width of an instruction whose name fits."""
MICROSECONDS = 6
"""Decimals of a second: an instruction ends in the one in which the next starts."""
LETTERS = {
    Direction.FORWARD: "F",
    Direction.BACKWARD: "B",
    Direction.INPUT_GRADIENT: "B",
    Direction.WEIGHT_GRADIENT: "W",
    Direction.GRADIENT_REDUCTION: "R",
    Direction.EMBEDDING_EXCHANGE: "E",
    Direction.UPDATE: "U",
}
"""Names of instructions; B is a whole backward or, where it is split, that of inputs."""
DARK = 0.45
"""Share of the colours, from the darkest, on which text is white."""
TIPS: tuple[Tip, ...] = (
    ("label", "instruction", ""),
    ("stage", "stage", ""),
    ("start_s", "from (s)", ".4f"),
    ("time_ms", "time (ms)", ".2f"),
    ("frequency_mhz", "clock (MHz)", ""),
    ("power_w", "power of a GPU (W)", ".0f"),
    ("energy_j", "energy of a GPU (J)", ".1f"),
    ("runs", "runs as", ""),
)


ClockSpan = tuple[int, int]
"""ClockSpan (MHz) of the darkest and the lightest colour of instructions."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plan as a figure draws it."""

    data: str
    """Name of its data, which those of its power begin with."""
    name: str
    """What the figure calls it."""
    plan: Plan
    gpu: Gpu

    @property
    def frames(self) -> dict[str, pl.DataFrame]:
        """Its data."""
        series = power_series(self.plan, self.gpu)
        return {
            self.data: instruction_rows(self.plan),
            f"{self.data}_powers": _powers(series),
            f"{self.data}_means": _means(series),
        }


def timeline_figures(plans: Mapping[str, Plan], microbatch: pl.DataFrame, gpu: Gpu) -> list[Figure]:
    """Return the figure of every chosen plan beside the baseline.

    Args:
        plans: plans by name; one is the baseline's.
        microbatch: a table `MICROBATCH`; colours span the clocks in it, so that all plans can be compared.
        gpu: that runs them.
    """
    clocks = _spanned(microbatch["frequency_mhz"].to_list())
    baseline = Drawn("baseline", "baseline", plans[BASELINE_PLAN], gpu)
    return [
        paired_figure(
            name,
            f"Pipeline of {plan.method}, {plan.selector}, and of the baseline",
            (Drawn("plan", "this plan", plan, gpu), baseline),
            (plan_words(plan), f"Baseline: {plan_words(baseline.plan)}"),
            clocks,
        )
        for name, plan in plans.items()
        if name != BASELINE_PLAN
    ]


def paired_figure(
    name: str,
    title: str,
    drawn: tuple[Drawn, Drawn],
    headings: tuple[str, str],
    clocks: ClockSpan,
    *,
    has_files: bool = True,
) -> Figure:
    """Return the figure of two plans on one axis of time, with the power of both.

    Args:
        name: of the figure.
        title: of the figure.
        drawn: the plans, the first above.
        headings: above the lanes of each.
        clocks: that colours span.
        has_files: whether the figure and its table are downloads.
    """
    return Figure(
        name=name,
        title=title,
        table=TIMELINE.name if has_files else "",
        folder=TIMELINES,
        spec=spec_of(_chart(drawn, headings, clocks)),
        data=drawn[0].frames | drawn[1].frames,
        heads={name: title for name, title, _ in TIPS},
        zooms={"x": "start_s"},
        note="Dashed: the mean power of the second before, of iterations that repeat.",
    )


def plan_words(plan: Plan) -> str:
    """Return method, selector, time and energy of a plan."""
    cost = plan.prediction
    return f"{plan.method}, {plan.selector}: {significant(cost.time_s)} s, {significant(cost.energy_j / 1e3)} kJ"


def plan_figure(plan: Plan) -> Figure:
    """Return the figure of a plan by itself; colours span the clocks of its instructions."""
    rows = instruction_rows(plan)
    x = alt.X("start_s:Q", title="time (s)", scale=alt.Scale(nice=False, zero=True))
    rows = instruction_rows(plan)
    lanes = _lanes("plan", x, clocks_of([plan]), plan_words(plan), has_legend=True)
    return Figure(
        name="plan",
        title=f"Pipeline of {plan.method}, {plan.selector}",
        table="",
        spec=spec_of(lanes.properties(height=_height(plan), width=900)),
        data={"plan": rows},
    )


def _height(plan: Plan) -> int:
    return min(LANE_PX * len(plan.stages), MOST_LANES_PX)


def clocks_of(plans: Sequence[Plan]) -> ClockSpan:
    """Return the clocks that colours of plans span."""
    return _spanned([i.frequency_mhz for plan in plans for _, i in plan.keyed])


def _spanned(clocks_mhz: Sequence[int]) -> ClockSpan:
    return min(clocks_mhz), max(*clocks_mhz, min(clocks_mhz) + 1)


def power_w(instruction: PlannedInstruction) -> float:
    """Mean power of one GPU."""
    return instruction.energy_j / instruction.time_s


def instruction_rows(plan: Plan) -> pl.DataFrame:
    """Return the instructions of a plan as the figure shows them."""
    is_chunked = chunks(plan) > 1
    return pl.DataFrame(
        [
            {
                "stage": stage.stage,
                "label": instruction_label(i, is_chunked=is_chunked),
                "start_s": round(i.start_s, MICROSECONDS),
                "end_s": round(i.start_s + i.time_s, MICROSECONDS),
                "time_ms": 1e3 * i.time_s,
                "frequency_mhz": i.frequency_mhz,
                "power_w": power_w(i),
                "energy_j": i.energy_j,
                "runs": how_it_runs(i),
            }
            for stage in plan.stages
            for i in stage.instructions
        ]
    )


def instruction_label(i: PlannedInstruction | InstructionKey, *, is_chunked: bool) -> str:
    """Return the short name of an instruction, such as `F3`; those of the update have no number."""
    if i.direction in UPDATING:
        return LETTERS[i.direction]
    return f"{LETTERS[i.direction]}{i.microbatch}{f'.{i.chunk}' if is_chunked else ''}"


def how_it_runs(i: PlannedInstruction) -> str:
    """Return the execution of an instruction and, of overlap, the schedule of every partition."""
    choices = (f"{c.partition}: {c.sm_count} SMs, beside {c.launch}" for c in i.partitions)
    return "; ".join([str(i.execution), *choices])


def _chart(drawn: tuple[Drawn, Drawn], headings: tuple[str, str], clocks: ClockSpan) -> alt.VConcatChart:
    x = alt.X("start_s:Q", title=None, axis=alt.Axis(labels=False, ticks=False), scale=alt.Scale(nice=False, zero=True))
    lanes = [  # the legend of the first is for both
        _lanes(lane.data, x, clocks, heading, has_legend=lane is drawn[0]).properties(
            height=_height(lane.plan), width=900
        )
        for lane, heading in zip(drawn, headings, strict=True)
    ]
    power = _power(drawn, x).properties(height=POWER_PX, width=900)
    first, second = (lane.data for lane in drawn)
    views = (f"{first}_bars_0", f"{second}_bars_1", f"{first}_power_2")  # Altair numbers views of several
    return (
        alt.vconcat(*lanes, power, spacing=14, params=[zoom_of(views, "x")])
        .resolve_scale(x="shared", color="independent")
        .properties(padding=4)
    )


def _colour(clocks: ClockSpan, *, has_legend: bool) -> alt.Color:
    legend = alt.Legend(
        title="clock (MHz)",
        orient="top",
        direction="horizontal",
        gradientLength=140,
        gradientThickness=9,
        titleOrient="left",
    )
    scale = alt.Scale(domain=clocks, range=list(CLOCK_RAMP), clamp=True)
    return alt.Color("frequency_mhz:Q", scale=scale, legend=legend if has_legend else None)


def _lanes(data: str, x: alt.X, clocks: ClockSpan, heading: str, *, has_legend: bool) -> alt.LayerChart:
    y = alt.Y("stage:O", title="stage", axis=alt.Axis(ticks=False, domain=False, grid=False))
    base = chart_of(data, f"{data}_bars").encode(x=x, x2=alt.X2("end_s:Q"), y=y)
    waiting = (
        chart_of(data, f"{data}_waiting")
        .transform_joinaggregate(last_s="max(end_s)")
        .transform_aggregate(last_s="max(last_s)", groupby=["stage"])
        .transform_calculate(first_s="0")
        .mark_bar(style="waiting", height=alt.RelativeBandSize(band=0.86), clip=True)
        .encode(x=_x_of("first_s", x), x2=alt.X2("last_s:Q"), y=y)
    )
    bars = base.mark_bar(style="bar", strokeWidth=0.7, height=alt.RelativeBandSize(band=0.86), clip=True).encode(
        color=_colour(clocks, has_legend=has_legend), tooltip=tooltip(TIPS)
    )
    fits = f"scale('x', datum.end_s) - scale('x', datum.start_s) > {TEXT_PX}"
    dark = clocks[0] + DARK * (clocks[1] - clocks[0])
    text = (
        chart_of(data, f"{data}_names")
        .transform_calculate(
            middle_s="(datum.start_s + datum.end_s) / 2", name="datum.label + ' ' + datum.frequency_mhz"
        )
        .mark_text(fontSize=9, lineBreak=" ", lineHeight=10, baseline="middle", dy=-5, clip=True)
        .encode(
            x=_x_of("middle_s", x),
            y=y,
            text=alt.Text("name:N"),
            opacity=alt.condition(fits, alt.value(1), alt.value(0)),
            color=alt.condition(f"datum.frequency_mhz < {dark}", alt.value("white"), alt.value("#16191d")),
        )
    )
    return alt.layer(waiting, bars, text).properties(title=alt.TitleParams(heading))


def _x_of(column: str, x: alt.X) -> alt.X:
    return alt.X(f"{column}:Q", title=x["title"], axis=x["axis"], scale=x["scale"])


def _powers(series: PowerSeries) -> pl.DataFrame:
    """Return the power of all GPUs from each change on, as the figure shows it."""
    return _power_frame(series.edges_s, np.append(series.powers_w, series.powers_w[-1]))


def _means(series: PowerSeries) -> pl.DataFrame:
    """Return the mean power of the second before each moment, as the grid sees it, of iterations that repeat."""
    moments_s = seen_moments_s(series)
    return _power_frame(moments_s, series.seen_w(moments_s))


def seen_moments_s(series: PowerSeries) -> Array:
    """Return the moments of an iteration whose second before is shown."""
    return np.linspace(0.0, series.period_s, MEANS)


def _power_frame(moments_s: Array, powers_w: Array) -> pl.DataFrame:
    frame = pl.DataFrame({"start_s": moments_s, "power_kw": powers_w / 1e3})
    return frame.with_columns(pl.col("start_s").round(MICROSECONDS), pl.col("power_kw").round(WATTS))


def _power(drawn: tuple[Drawn, Drawn], x: alt.X) -> alt.LayerChart:
    """Return the power of all GPUs: instructions draw their mean, stages that wait what waiting at their clock does.

    Dashed, the means of a second.
    """
    names = {pipeline.data: pipeline.name for pipeline in drawn}
    scale = alt.Scale(domain=list(names.values()), range=[PALETTE["blue"], PALETTE["gray"]])
    tips = (("drawn", "of", ""), ("start_s", "from (s)", ".4f"), ("power_kw", "power of all GPUs (kW)", ".2f"))
    lines = [
        chart_of(f"{data}_powers", f"{data}_power")
        .transform_calculate(drawn=f"'{names[data]}'")
        .mark_line(interpolate="step-after", strokeWidth=1.6, clip=True)
        .encode(
            x=alt.X("start_s:Q", title="time (s)", axis=alt.Axis(), scale=x["scale"]),
            y=alt.Y("power_kw:Q", title="all GPUs (kW)", axis=alt.Axis(tickCount=4)),
            color=alt.Color("drawn:N", scale=scale, legend=alt.Legend(title=None, orient="top")),
            tooltip=tooltip(tips),
        )
        for data in reversed(names)
    ]
    means = [
        chart_of(f"{data}_means", f"{data}_seen")
        .transform_calculate(drawn=f"'{names[data]}'")
        .mark_line(strokeDash=[4, 3], strokeWidth=1.2, clip=True)
        .encode(
            x=alt.X("start_s:Q", title="time (s)", axis=alt.Axis(), scale=x["scale"]),
            y=alt.Y("power_kw:Q", title="all GPUs (kW)", axis=alt.Axis(tickCount=4)),
            color=alt.Color("drawn:N", scale=scale, legend=alt.Legend(title=None, orient="top")),
            tooltip=tooltip((tips[0], ("start_s", "the second before (s)", ".2f"), ("power_kw", "mean (kW)", ".2f"))),
        )
        for data in reversed(names)
    ]
    return alt.layer(*lines, *means)


def chunks(plan: Plan) -> int:
    """Chunks of each stage's layers."""
    return 1 + max(i.chunk for stage in plan.stages for i in stage.instructions)


def timeline_table(plans: Mapping[str, Plan]) -> pl.DataFrame:
    """The table `TIMELINE` of plans by name."""
    return TIMELINE.frame(
        [
            {
                "plan_name": name,
                "method": plan.method,
                "stage": stage.stage,
                "position": position,
                **{key: value for key, value in to_plain(instruction).items() if key != "partitions"},
                "power_w": power_w(instruction),
                "choices": to_plain(instruction.partitions),
            }
            for name, plan in plans.items()
            for stage in plan.stages
            for position, instruction in enumerate(stage.instructions)
        ]
    )


def power_table(plans: Mapping[str, Plan], gpu: Gpu) -> pl.DataFrame:
    """The table `POWER` of plans by name, run by such GPUs."""
    frames = [
        power_over_time(plan, gpu).select(
            pl.lit(name).alias("plan_name"), pl.lit(plan.method).alias("method"), "time_s", "power_w"
        )
        for name, plan in plans.items()
    ]
    return pl.concat(frames)
