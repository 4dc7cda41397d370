"""The figures of a campaign: frontiers of all its workloads and fleets, who found them, and the profiler's sweeps."""

from collections.abc import Sequence

import polars as pl

from kareus.pipeline.compare import with_reductions
from kareus.report.campaign.inputs import CampaignInputs
from kareus.report.charts import Axis, Bar, BarPart, Form, Line, Panel, Plot, Series, Shape, Shares, Style, Tip
from kareus.report.contents import frontiers_name
from kareus.report.fleet.inputs import FLEET_TIPS
from kareus.report.workload.frontiers import PLAN_TIPS, frontier
from kareus.report.workload.searches import NOTHING, pass_name, pass_style
from kareus.report.workload.tables import PASSES, PROFILER

COMPARED = ("sequential", "sequential+perseus", "nanobatching+perseus", "kareus")
"""Methods whose frontiers the paper shows, and the plain baseline."""
SHOWN = ("time_s", "energy_j", "time_reduction_percent", "energy_reduction_percent")
"""Details of a plan; its workload's page has all of them."""


def campaign_figures(inputs: CampaignInputs, passes: pl.DataFrame, profiler: pl.DataFrame) -> list[Plot | Shares]:
    """Every figure of a campaign; `passes` and `profiler` are its tables `PASSES` and `PROFILER`."""
    parts: dict[str, list[str]] = {}
    for member in inputs.of_kind("workload"):
        parts.setdefault(member["part"], []).append(member["workload"])
    return [
        *(_frontiers(part, {name: inputs.iteration[name] for name in names}) for part, names in parts.items()),
        *([_fleets(inputs)] if inputs.fleet else []),
        *([_passes(passes)] if parts else []),
        *([_profiler(inputs, profiler)] if inputs.trials else []),
    ]


def _frontiers(part: str, workloads: dict[str, pl.DataFrame]) -> Plot:
    return Plot(
        name=frontiers_name(part),
        title=f"Iteration frontiers, {part}",
        table="iteration",
        panels=tuple(_panel(name, rows, 1e-3, "kJ", _shown(PLAN_TIPS)) for name, rows in workloads.items()),
    )


def _fleets(inputs: CampaignInputs) -> Plot:
    return Plot(
        name="fleets",
        title="Iteration frontiers of emulated fleets",
        table="fleet",
        panels=tuple(
            _panel(f"{workload}, {fleet}", rows, 1e-6, "MJ", _shown(FLEET_TIPS))
            for (workload, fleet), rows in inputs.fleet.items()
        ),
    )


def _shown(tips: Sequence[Tip]) -> tuple[Tip, ...]:
    return tuple(tip for tip in tips if tip.column in SHOWN)


def _panel(title: str, iteration: pl.DataFrame, scale: float, unit: str, tips: tuple[Tip, ...]) -> Panel:
    rows = with_reductions(iteration, iteration).sort("time_s")
    return Panel(
        title=title,
        x=Axis(column="time_s", label="iteration time (s)"),
        y=Axis(column="energy_j", label=f"iteration energy, all GPUs ({unit})", scale=scale),
        series=tuple(frontier(rows, method, tips) for method in COMPARED if method in rows["method"]),
    )


def _passes(passes: pl.DataFrame) -> Shares:
    """One bar for each workload, and the first for all of them."""
    bars = [_bar(str(name), own) for (name,), own in passes.group_by("workload", maintain_order=True)]
    together = [_bar("all workloads", passes)] if bars else []
    return Shares(
        name="passes",
        title="Who found the frontiers",
        table=PASSES.name,
        bars=(*together, *bars),
        empty=NOTHING,
    )


def _bar(name: str, passes: pl.DataFrame) -> Bar:
    found = passes.group_by("chosen_by", maintain_order=True).agg(pl.sum("measured"), pl.sum("on_frontier"))
    return Bar(
        name=f"{name}, {found['on_frontier'].sum()} candidates on the frontiers",
        parts=tuple(
            BarPart(
                name=pass_name(chosen_by),
                style=pass_style(chosen_by),
                count=on_frontier,
                tips=(("candidates measured", str(measured)),),
            )
            for chosen_by, measured, on_frontier in found.iter_rows()
        ),
    )


def _profiler(inputs: CampaignInputs, profiler: pl.DataFrame) -> Plot:
    """Energies of all trials and temperatures, over what each sweep varied."""
    panels = []
    for (workload, sweep), trials in inputs.trials.items():
        means = profiler.filter((pl.col("workload") == workload) & (pl.col("sweep") == sweep))
        varied = "window_s" if means["window_s"].n_unique() > 1 else "cooldown_s"
        x = Axis(column=varied, label=f"{varied.removesuffix('_s')} (s)", from_zero=True)
        title = f"{trials['partition'][0]}, {sweep}"
        panels += [
            Panel(
                title=f"{title}: energy",
                note=workload,
                x=x,
                y=Axis(column="energy_j", label="energy of one execution, one GPU (mJ)", scale=1e3),
                series=_energies(trials, means.sort(varied)),
            ),
            Panel(
                title=f"{title}: temperature",
                note=workload,
                x=x,
                y=Axis(column="temperature_c", label="mean temperature of the GPU (\u00b0C)"),
                series=tuple(_temperature(means.sort(varied), when) for when in ("before", "after")),
            ),
        ]
    return Plot(name="profiler", title="The profiler under other protocols", table=PROFILER.name, panels=tuple(panels))


def _energies(trials: pl.DataFrame, means: pl.DataFrame) -> tuple[Series, ...]:
    tips = (
        Tip(name="trial", column="trial", form=Form.COUNT),
        Tip(name="energy", column="energy_j", form=Form.JOULES),
        Tip(name="before", column="temperature_before_c", form=Form.CELSIUS),
        Tip(name="after", column="temperature_after_c", form=Form.CELSIUS),
    )
    lines = [("mean", "energy_mean_j", "blue")]
    if means["reference_energy_j"].null_count() == 0:
        lines.append(("without noise, at the reference temperature", "reference_energy_j", "gray"))
    return (
        Series(name="trial", points=trials, style=Style(color="orange", shape=Shape.RING), tips=tips),
        *(
            Series(
                name=name,
                points=means.with_columns(energy_j=column),
                style=Style(color=color),
                line=Line.STRAIGHT,
            )
            for name, column, color in lines
        ),
    )


def _temperature(means: pl.DataFrame, when: str) -> Series:
    return Series(
        name=f"{when} the window",
        points=means.with_columns(temperature_c=f"temperature_{when}_c"),
        style=Style(
            color={"before": "purple", "after": "vermilion"}[when],
            shape={"before": Shape.SQUARE, "after": Shape.TRIANGLE}[when],
        ),
        line=Line.STRAIGHT,
        tips=(Tip(name="mean temperature", column="temperature_c", form=Form.CELSIUS),),
    )
