"""The figure: share of the exhaustive hypervolume against candidates measured and against virtual GPU-seconds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from yardstick.score import Trajectory
from yardstick.summary import Runs

STYLES = {
    "random": ("#6f7782", ":"),
    "paper": ("#0067a8", "-"),
    "informed": ("#c8420a", "-"),
    "nsga2": ("#00855f", "--"),
    "qlognehvi": ("#a8518a", "-."),
}
"""Colour and line of each strategy; lines differ for those who do not see the colours."""
LEAST_MISSING = 1e-4
"""Share at which a logarithmic axis ends: all but this of the hypervolume counts as all."""
Effort = Callable[[Trajectory], NDArray[np.float64]]
EFFORTS: dict[str, Effort] = {
    "candidates measured": lambda t: np.arange(1.0, len(t.shares) + 1),
    "virtual GPU-seconds": lambda t: t.gpu_s,
}


def draw(runs: Runs, path: Path, what: str) -> None:
    """Draw all runs, and below them those that peers searched, too; medians, with the middle half shaded."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and workers do not draw

    panels = {"all partitions": list(runs.values())}
    everyone = {strategy for strategies in runs.values() for strategy in strategies}
    compared = [strategies for strategies in runs.values() if everyone <= strategies.keys()]
    if compared and len(compared) < len(runs):
        panels["partitions searched by peers, too"] = compared
    figure = Figure(figsize=(11, 1 + 3.6 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), len(EFFORTS), squeeze=False, sharey=True)
    for row, (title, chosen) in zip(axes, panels.items(), strict=True):
        for axis, (label, effort) in zip(row, EFFORTS.items(), strict=True):
            _panel(axis, chosen, effort)
            axis.set(title=f"{title} ({len(chosen)} runs)", xlabel=label)
        row[0].set_ylabel("missing of the exhaustive hypervolume")
        row[0].legend()
    figure.suptitle(f"Simulated testbed, {what}: median over partitions and seeds, middle half shaded")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _panel(axis, runs: list[dict[str, Trajectory]], effort: Effort) -> None:  # type: ignore[no-untyped-def]
    longest = max(float(effort(t)[-1]) for strategies in runs for t in strategies.values())
    shortest = min(float(effort(t)[0]) for strategies in runs for t in strategies.values())
    grid = np.geomspace(shortest, longest, 200)
    for strategy, (colour, line) in STYLES.items():
        found = [strategies[strategy] for strategies in runs if strategy in strategies]
        if not found:
            continue
        missing = 1 - np.array([shares_at(t, effort(t), grid) for t in found])
        first, middle, third = np.quantile(missing, (0.25, 0.5, 0.75), axis=0)
        axis.plot(grid, np.maximum(middle, LEAST_MISSING), color=colour, linestyle=line, label=strategy)
        axis.fill_between(grid, np.maximum(first, LEAST_MISSING), third, color=colour, alpha=0.12, linewidth=0)
    axis.set(xscale="log", yscale="log", ylim=(LEAST_MISSING, 1.0))
    axis.grid(alpha=0.3)


def shares_at(trajectory: Trajectory, spent: NDArray[np.float64], grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share at each effort of `grid`: that of the last measurement within it, 0 before the first."""
    last = np.searchsorted(spent, grid, side="right") - 1
    return np.where(last >= 0, trajectory.shares[np.maximum(last, 0)], 0.0)
