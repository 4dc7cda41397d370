"""The figure: share of the exhaustive hypervolume against candidates measured and against virtual GPU-seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from yardstick.score import Trajectory
from yardstick.summary import Runs

STYLES = {
    "random": ("#6f7782", (2, 2)),
    "paper": ("#0067a8", (1, 0)),
    "informed": ("#c8420a", (1, 0)),
    "nsga2": ("#00855f", (6, 3)),
    "qlognehvi": ("#a8518a", (6, 3, 2, 3)),
}
"""Colour and dashes of each strategy; dashes differ for those who do not see the colours."""
LEAST_MISSING = 1e-4
"""Share at which a logarithmic axis ends: all but this of the hypervolume counts as all."""
Effort = Callable[[Trajectory], NDArray[np.float64]]
EFFORTS: dict[str, Effort] = {
    "candidates measured": lambda t: np.arange(1.0, len(t.shares) + 1),
    "virtual GPU-seconds": lambda t: t.gpu_s,
}


def draw(runs: Runs, path: Path, what: str) -> None:
    """Draw all runs, and below them those that peers searched, too; medians, with the middle half shaded."""
    import altair as alt  # noqa: PLC0415 - slow to import, and workers do not draw

    panels = {"all partitions": list(runs.values())}
    everyone = {strategy for strategies in runs.values() for strategy in strategies}
    compared = [strategies for strategies in runs.values() if everyone <= strategies.keys()]
    if compared and len(compared) < len(runs):
        panels["partitions searched by peers, too"] = compared
    rows = [
        alt.hconcat(
            *(_panel(chosen, effort, label, f"{title} ({len(chosen)} runs)") for label, effort in EFFORTS.items())
        )
        for title, chosen in panels.items()
    ]
    title = f"Simulated testbed, {what}: median over partitions and seeds, middle half shaded"
    path.parent.mkdir(parents=True, exist_ok=True)
    alt.vconcat(*rows, title=title).save(str(path))


def _panel(runs: list[dict[str, Trajectory]], effort: Effort, label: str, title: str) -> Any:
    """Chart of one effort: the median of each strategy as a line over the middle half of its runs as a band."""
    import altair as alt  # noqa: PLC0415 - as above

    x = alt.X("spent:Q", title=label, scale=alt.Scale(type="log"))
    share = alt.Scale(type="log", domain=[LEAST_MISSING, 1.0], clamp=True)
    legend = alt.Legend(title=None, symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=2)
    colours, dashes = ([style[place] for style in STYLES.values()] for place in (0, 1))
    colour = alt.Color("strategy:N", scale=alt.Scale(domain=list(STYLES), range=colours), legend=legend)
    dash = alt.StrokeDash("strategy:N", scale=alt.Scale(domain=list(STYLES), range=dashes), legend=legend)
    base = alt.Chart(_quartiles(runs, effort), width=420, height=260, title=title)
    y = alt.Y("middle:Q", title="missing of the exhaustive hypervolume", scale=share)
    band = base.mark_area(opacity=0.12).encode(x=x, y=alt.Y("first:Q", scale=share), y2="third:Q", color=colour)
    return band + base.mark_line().encode(x=x, y=y, color=colour, strokeDash=dash)


def _quartiles(runs: list[dict[str, Trajectory]], effort: Effort) -> pl.DataFrame:
    """Return the quartiles of what is missing at each effort of a grid, by strategy."""
    longest = max(float(effort(t)[-1]) for strategies in runs for t in strategies.values())
    shortest = min(float(effort(t)[0]) for strategies in runs for t in strategies.values())
    grid = np.geomspace(shortest, longest, 200)
    frames = []
    for strategy in STYLES:
        found = [strategies[strategy] for strategies in runs if strategy in strategies]
        if found:
            missing = 1 - np.array([shares_at(t, effort(t), grid) for t in found])
            first, middle, third = np.maximum(np.quantile(missing, (0.25, 0.5, 0.75), axis=0), LEAST_MISSING)
            frames.append(
                pl.DataFrame({"spent": grid, "first": first, "middle": middle, "third": third}).with_columns(
                    strategy=pl.lit(strategy)
                )
            )
    return pl.concat(frames)


def shares_at(trajectory: Trajectory, spent: NDArray[np.float64], grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share at each effort of `grid`: that of the last measurement within it, 0 before the first."""
    last = np.searchsorted(spent, grid, side="right") - 1
    return np.where(last >= 0, trajectory.shares[np.maximum(last, 0)], 0.0)
