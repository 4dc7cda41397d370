"""The pipeline of a plan as a figure, the power that it draws over time, and the tables of both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from kareus.artifacts.records import to_plain
from kareus.plans.document import Plan, PlannedInstruction
from kareus.report.charts import Axis, Form, Line, Panel, Plot, Series, Style, Tip, method_style
from kareus.report.contents import BASELINE
from kareus.report.workload.power import power_over_time
from kareus.report.workload.tables import POWER, TIMELINE

STEP_W = 20.0
"""Powers that the colours span are rounded to this."""
POWER_TIPS = (
    Tip(name="from", column="time_s", form=Form.SECONDS),
    Tip(name="power of all GPUs", column="power_w", form=Form.KILOWATTS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A figure: one lane for each stage, instructions coloured by the mean power of a GPU."""

    name: str
    title: str
    plan: Plan
    powers_w: tuple[float, float]
    """Range of power of the colours: the same for all plans of a report, so that they can be compared."""

    @property
    def file(self) -> str:
        """Files of the drawing, without suffixes; in a folder of their own, since they are named after plans."""
        return f"timelines/{self.name}"


def timelines(plans: Mapping[str, Plan]) -> list[Timeline]:
    """Figures of plans by name; the last is the baseline's."""
    powers = [power_w(i) for plan in plans.values() for stage in plan.stages for i in stage.instructions]
    low = min(powers) // STEP_W * STEP_W
    span = (low, max(-(-max(powers) // STEP_W) * STEP_W, low + STEP_W))
    return [
        Timeline(name=name, title=f"Pipeline of {plan.method}, {plan.selector}", plan=plan, powers_w=span)
        for name, plan in plans.items()
    ]


def power_w(instruction: PlannedInstruction) -> float:
    """Mean power of one GPU."""
    return instruction.energy_j / instruction.time_s


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """A timeline as plain data; instructions name one of its few different schedules by number."""
    numbers: dict[str, int] = {}
    schedules: list[Any] = []
    stages = []
    for stage in timeline.plan.stages:
        instructions = []
        for instruction in stage.instructions:
            schedule = to_plain(instruction)
            placed = {key: schedule.pop(key) for key in ("direction", "microbatch", "chunk", "start_s")}
            if (text := repr(schedule)) not in numbers:
                numbers[text] = len(schedules)
                schedules.append(schedule)
            instructions.append({**placed, "schedule": numbers[text]})
        stages.append({"stage": stage.stage, "instructions": instructions})
    return {
        "file": timeline.file,
        "title": timeline.title,
        "table": TIMELINE.name,
        "powers_w": list(timeline.powers_w),
        "method": timeline.plan.method,
        "selector": timeline.plan.selector,
        "time_s": timeline.plan.prediction.time_s,
        "energy_j": timeline.plan.prediction.energy_j,
        "chunks": chunks(timeline.plan),
        "schedules": schedules,
        "stages": stages,
    }


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


def power_table(plans: Mapping[str, Plan], blocking_power_w: float) -> pl.DataFrame:
    """The table `POWER` of plans by name; `blocking_power_w` is of one GPU."""
    frames = [
        power_over_time(plan, blocking_power_w).select(
            pl.lit(name).alias("plan_name"), pl.lit(plan.method).alias("method"), "time_s", "power_w"
        )
        for name, plan in plans.items()
    ]
    return pl.concat(frames)


def power_plot(plans: Mapping[str, Plan], power: pl.DataFrame) -> Plot:
    """Power of the whole pipeline over time, of each plan and the baseline; `power` is a table `POWER`."""
    baseline = _power_series(BASELINE, plans[BASELINE], power)
    return Plot(
        name="power",
        title="Power of the whole pipeline over one iteration",
        table=POWER.name,
        panels=tuple(
            Panel(
                title=f"{plan.method}, {plan.selector}",
                x=Axis(column="time_s", label="time (s)", from_zero=True),
                y=Axis(column="power_w", label="power, all GPUs (kW)", scale=1e-3, from_zero=True),
                series=(baseline, _power_series(name, plan, power)),
            )
            for name, plan in plans.items()
            if name != BASELINE
        ),
    )


def _power_series(name: str, plan: Plan, power: pl.DataFrame) -> Series:
    return Series(
        name=f"{plan.method}, fastest" if name == BASELINE else plan.method,
        points=power.filter(pl.col("plan_name") == name),
        style=Style(color=method_style(plan.method).color),
        line=Line.STEPS,
        tips=POWER_TIPS,
    )
