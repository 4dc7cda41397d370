"""Plots of time-energy frontiers: of the iteration by method, and of the microbatch by stage and direction."""

from collections.abc import Sequence

import polars as pl

from kareus.graph.records import Direction
from kareus.pipeline.compare import with_reductions
from kareus.report.charts import Axis, Form, Line, Panel, Plot, Series, Shape, Style, Tip, method_style
from kareus.report.workload.summary import PlanRow

CHOSEN = Style(color="ink", shape=Shape.NUMBER)
EXECUTION_STYLES = {
    "sequential": Style(color="orange", shape=Shape.SQUARE),
    "nanobatching": Style(color="green", shape=Shape.TRIANGLE),
    "overlap": Style(color="blue", shape=Shape.CIRCLE),
}
PLAN_TIPS = (
    Tip(name="time", column="time_s", form=Form.SECONDS),
    Tip(name="energy", column="energy_j", form=Form.KILOJOULES),
    Tip(name="of it static", column="static_energy_j", form=Form.KILOJOULES),
    Tip(name="dynamic", column="dynamic_energy_j", form=Form.KILOJOULES),
    Tip(name="against sequential: time", column="time_reduction_percent", form=Form.LESS_OR_MORE),
    Tip(name="energy", column="energy_reduction_percent", form=Form.LESS_OR_MORE),
    Tip(name="gap to lower bound", column="gap_percent", form=Form.PERCENT),
)
MICROBATCH_TIPS = (
    Tip(name="time", column="time_s", form=Form.MILLISECONDS),
    Tip(name="energy of one GPU", column="energy_j", form=Form.JOULES),
    Tip(name="less blocking energy", column="effective_energy_j", form=Form.JOULES),
)


def iteration_plot(iteration: pl.DataFrame, plans: Sequence[PlanRow]) -> Plot:
    """Frontiers of all methods, with the chosen plans on them."""
    rows = with_reductions(iteration, iteration).with_columns(gap_percent=100 * pl.col("gap")).sort("time_s")
    chosen = pl.DataFrame(
        [
            {
                **{tip.column: getattr(plan, tip.column, None) for tip in PLAN_TIPS},
                "gap_percent": 100 * plan.gap,
                "number": str(number),
                "title": f"{number}: {plan.method}, {plan.selector}",
            }
            for number, plan in enumerate(plans, 1)
        ]
    )
    return Plot(
        name="iteration",
        title="Iteration time and energy by method",
        table="iteration",
        panels=(
            Panel(
                x=Axis(column="time_s", label="iteration time (s)"),
                y=Axis(column="energy_j", label="iteration energy, all GPUs (kJ)", scale=1e-3),
                series=(
                    *(frontier(rows, method) for method in iteration["method"].unique(maintain_order=True)),
                    Series(name="chosen plan", points=chosen, style=CHOSEN, tips=PLAN_TIPS, title="title"),
                ),
            ),
        ),
    )


def frontier(rows: pl.DataFrame, method: str, tips: tuple[Tip, ...] = PLAN_TIPS) -> Series:
    """Plans of one method, by rising time."""
    own = rows.filter(pl.col("method") == method)
    return Series(name=method, points=own, style=method_style(method), line=Line.STEPS, tips=tips)


def microbatch_plot(microbatch: pl.DataFrame) -> Plot:
    """Return the figure of microbatch frontiers; stages, or chunks of them, with equal frontiers share a panel."""
    passed = pl.Enum([str(direction) for direction in Direction])  # which sorts as a microbatch passes them
    points = microbatch.filter("on_frontier").with_columns(pl.col("direction").cast(passed))
    order, is_chunked = ("direction", "stage", "chunk"), microbatch["chunk"].max() != 0
    shared: list[tuple[str, pl.DataFrame, list[str]]] = []
    for (_, stage, chunk), rows in points.sort(*order, "time_s", maintain_order=True).group_by(
        *order, maintain_order=True
    ):
        place = f"{stage} chunk {chunk}" if is_chunked else str(stage)
        direction, costs = rows["direction"][0], rows.drop("stage", "chunk", "point", "choices")
        places = next((places for _, known, places in shared if known.equals(costs)), None)
        if places is None:
            shared.append((direction, costs, [place]))
        else:
            places.append(place)
    return Plot(
        name="microbatch",
        title="Microbatch frontiers, points of kareus by execution",
        table="microbatch",
        panels=tuple(
            Panel(
                title=f"{direction}, stage {', '.join(places)}",
                x=Axis(column="time_s", label="time (ms)", scale=1e3),
                y=Axis(column="effective_energy_j", label="energy less blocking, per GPU (J)"),
                series=tuple(_microbatch_series(costs)),
            )
            for direction, costs, places in shared
        ),
    )


def _microbatch_series(costs: pl.DataFrame) -> list[Series]:
    lines = [
        Series(
            name=f"frontier of {method}",
            points=own,
            style=Style(color=EXECUTION_STYLES.get(method, method_style(method)).color),
            line=Line.STEPS,
            faint=method == "kareus",  # its points are drawn on top
        )
        for (method,), own in costs.group_by("method", maintain_order=True)
    ]
    named = costs.filter(pl.col("method") == "kareus").with_columns(
        title=pl.format("{}, {} MHz", "execution", "frequency_mhz")
    )
    marks = [
        Series(
            name=execution,
            points=named.filter(pl.col("execution") == execution),
            style=style,
            tips=MICROBATCH_TIPS,
            title="title",
        )
        for execution, style in EXECUTION_STYLES.items()
    ]
    return [*lines, *marks]
