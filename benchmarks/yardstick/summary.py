"""What the runs say: the figures that are asked for, and a table for people."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from yardstick.score import Trajectory, gpu_time_ratio, gpu_time_ratio_to_end
from yardstick.truths import TruthKind

OURS = "informed"
STRATEGIES = ("random", "paper", OURS)
"""In the order of tables."""
RUN = ("workload", "partition", "truth", "seed")
Runs = dict[tuple[str, str, str, int], dict[str, Trajectory]]
"""Trajectories by run (partition and seed) and strategy."""
Ratio = Callable[[Trajectory, Trajectory], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a benchmark; None where no run has such a truth."""

    gpu_time_ratio_median: float | None
    """GPU-seconds of ours over those of `paper`, where only coefficients are wrong."""
    gpu_time_ratio_wrong_prior: float | None
    """The same where laws are wrong, too."""
    gpu_time_ratio_to_end_median: float | None
    """As the first, over all that `paper` spends until it stops."""
    gpu_time_ratio_to_end_wrong_prior: float | None
    final_hypervolume_share_min: float
    """Of the partitions' median final shares of ours, the lowest."""
    paper_hypervolume_share_median: float


def read_runs(frame: pl.DataFrame) -> Runs:
    """Trajectories of a table of runs."""
    runs: Runs = {}
    for key, rows in frame.sort("measured").group_by(*RUN, "strategy", maintain_order=True):
        *run, strategy = key
        trajectory = Trajectory(rows["gpu_s"].to_numpy(), rows["hypervolume_share"].to_numpy())
        runs.setdefault(tuple(run), {})[str(strategy)] = trajectory
    return runs


def figures(runs: Runs) -> Figures:
    """The figures of all runs."""
    return Figures(
        gpu_time_ratio_median=median_ratio(runs, TruthKind.PERTURBED, gpu_time_ratio),
        gpu_time_ratio_wrong_prior=median_ratio(runs, TruthKind.OTHER_LAWS, gpu_time_ratio),
        gpu_time_ratio_to_end_median=median_ratio(runs, TruthKind.PERTURBED, gpu_time_ratio_to_end),
        gpu_time_ratio_to_end_wrong_prior=median_ratio(runs, TruthKind.OTHER_LAWS, gpu_time_ratio_to_end),
        final_hypervolume_share_min=min(final_share_medians(runs, OURS).values()),
        paper_hypervolume_share_median=statistics.median(float(r["paper"].shares[-1]) for r in runs.values()),
    )


def median_ratio(runs: Runs, truth: TruthKind, ratio: Ratio) -> float | None:
    """Median over partitions and seeds of ours against `paper`."""
    ratios = [ratio(r[OURS], r["paper"]) for (*_, kind, _), r in runs.items() if kind == truth]
    return statistics.median(ratios) if ratios else None


def final_share_medians(runs: Runs, strategy: str) -> dict[tuple[str, str], float]:
    """Median over seeds of a strategy's final share, by partition."""
    finals: dict[tuple[str, str], list[float]] = {}
    for (workload, partition, *_), strategies in runs.items():
        finals.setdefault((workload, partition), []).append(float(strategies[strategy].shares[-1]))
    return {place: statistics.median(shares) for place, shares in finals.items()}


def strategy_lines(runs: Runs) -> list[str]:
    """One line for each truth and strategy: median, and the middle half, over partitions and seeds."""
    lines = [f"{'truth':<11} {'strategy':<10} runs  measured  GPU-seconds  share of exhaustive hypervolume %"]
    for truth in dict.fromkeys(kind for (*_, kind, _) in runs):
        for strategy in STRATEGIES:
            scored = [strategies[strategy] for (*_, kind, _), strategies in runs.items() if kind == truth]
            measured = statistics.median(len(trajectory.shares) for trajectory in scored)
            gpu_s = statistics.median(float(trajectory.gpu_s[-1]) for trajectory in scored)
            lines.append(
                f"{truth:<11} {strategy:<10} {len(scored):>4}  {measured:>8.0f}  {gpu_s:>11.0f}"
                f"  {_spread([100 * float(t.shares[-1]) for t in scored])}"
            )
    return lines


def partition_lines(runs: Runs) -> list[str]:
    """One line for each partition: medians over seeds of the final shares, and of the ratio of GPU-seconds."""
    medians = [final_share_medians(runs, strategy) for strategy in STRATEGIES]
    lines = [f"{'partition (final share %, median over seeds)':<78}" + "".join(f"{s:>11}" for s in STRATEGIES)]
    for place in medians[0]:
        row = "".join(f"{100 * shares[place]:>11.2f}" for shares in medians)
        ours = [(r[OURS], r["paper"]) for run, r in runs.items() if run[:2] == place]
        lowest = 100 * min(float(trajectory.shares[-1]) for trajectory, _ in ours)
        ratio = statistics.median(gpu_time_ratio(*pair) for pair in ours)
        tail = f"{OURS}'s lowest {lowest:.2f}, GPU-seconds to paper's end x {ratio:.2f}"
        lines.append(f"{' '.join(place):<78}{row}  {tail}")
    return lines


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({first:.2f} to {third:.2f}, lowest {min(values):.2f})"


def finite(value: float | None) -> float | None:
    """The number, or None for infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
