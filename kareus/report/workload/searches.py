"""Figures of the searches: every measured candidate of each partition, and which pass found the frontiers."""

from collections.abc import Sequence

import polars as pl

from kareus.report.charts import UNKNOWN, Axis, Bar, BarPart, Form, Line, Panel, Plot, Series, Shape, Shares, Style, Tip
from kareus.report.workload.effort import SearchEffort
from kareus.report.workload.inputs import PartitionSearch

PASSES = {
    "initial": ("initial design", Style(color="gray", shape=Shape.RING)),
    "random": ("random", Style(color="gray", shape=Shape.RING)),
    "all": ("exhaustive", Style(color="gray", shape=Shape.RING)),
    "total": ("total-energy pass", Style(color="blue", shape=Shape.CIRCLE)),
    "dynamic": ("dynamic-energy pass", Style(color="orange", shape=Shape.SQUARE)),
    "static": ("static-energy pass", Style(color="green", shape=Shape.TRIANGLE)),
    "improvement": ("expected improvement", Style(color="blue", shape=Shape.CIRCLE)),
    "uncertainty": ("exploration (uncertainty)", Style(color="purple", shape=Shape.DIAMOND)),
}
"""Name and style of a pass."""
NOTHING = "Nothing was searched: a block has no collectives, or an odd microbatch no halves."
TIPS = (
    Tip(name="chosen in round", column="round", form=Form.COUNT),
    Tip(name="time", column="time_s", form=Form.MILLISECONDS),
    Tip(name="predicted", column="predicted_time_s", form=Form.MILLISECONDS),
    Tip(name="dynamic energy", column="dynamic_energy_j", form=Form.JOULES),
    Tip(name="predicted", column="predicted_dynamic_energy_j", form=Form.JOULES),
    Tip(name="total energy", column="energy_j", form=Form.JOULES),
    Tip(name="on the frontier", column="found", form=Form.TEXT),
)


def pass_name(chosen_by: str) -> str:
    """Return the name of a pass for the text in the column `chosen_by`."""
    return PASSES.get(chosen_by, (chosen_by, UNKNOWN))[0]


def search_plot(searches: Sequence[PartitionSearch]) -> Plot:
    """Candidates of every partition by the pass that chose them, and their frontier."""
    return Plot(
        name="search",
        title="Measured candidates of each partition",
        table="candidates",
        empty=NOTHING,
        panels=tuple(
            Panel(
                title=search.partition,
                note=_note(search),
                x=Axis(column="time_s", label="time (ms)", scale=1e3),
                y=Axis(column="dynamic_energy_j", label="dynamic energy, one GPU (J)"),
                series=tuple(_series(search.candidates)),
            )
            for search in searches
        ),
    )


def _series(candidates: pl.DataFrame) -> list[Series]:
    named = candidates.with_columns(
        title=pl.format("{} MHz, {} SMs, beside {}", "frequency_mhz", "sm_count", "launch"),
        found=pl.when("on_frontier").then(pl.lit("yes")).otherwise(pl.lit("no")),
    )
    marks = [
        Series(name=pass_name(chosen_by), points=own, style=pass_style(chosen_by), tips=TIPS, title="title")
        for (chosen_by,), own in named.group_by("chosen_by", maintain_order=True)
    ]
    frontier = candidates.filter("on_frontier").sort("time_s", "dynamic_energy_j")
    return [*marks, Series(name="measured frontier", points=frontier, style=Style(color="ink"), line=Line.STEPS)]


def pass_style(chosen_by: str) -> Style:
    """Return the style of a pass."""
    return PASSES.get(chosen_by, (chosen_by, UNKNOWN))[1]


def _note(search: PartitionSearch) -> str:
    minutes = search.rounds["measuring_s"].sum() / 60
    clock = f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"  # noqa: PLR2004
    rounds, stop = len(search.rounds), search.rounds["stop"][-1]
    said = f"{len(search.candidates)} candidates in {rounds} round{'s'[: rounds != 1]}, {clock} of the testbed's clock"
    return f"{said}; ended: {stop}" if stop else said


def passes_figure(efforts: Sequence[SearchEffort]) -> Shares:
    """Shares of each partition's frontier, and of all together, by the pass that chose them."""
    return Shares(
        name="passes",
        title="Who found the frontier",
        table="candidates",
        empty=NOTHING,
        bars=tuple(
            Bar(
                name=f"{effort.partition}, {effort.on_frontier} candidates on the frontier",
                parts=tuple(
                    BarPart(
                        name=pass_name(found.name),
                        style=pass_style(found.name),
                        count=found.on_frontier,
                        tips=(("candidates measured", str(found.measured)),),
                    )
                    for found in effort.passes
                ),
            )
            for effort in efforts
        ),
    )
