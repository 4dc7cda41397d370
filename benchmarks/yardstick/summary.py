"""What the runs say: the figures that are asked for, and a table for people."""

import math
import statistics
from collections.abc import Callable, Iterable
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
    """The figures of a benchmark; None where ours did not run."""

    gpu_time_ratio_median: float | None
    """GPU-seconds of ours over those of `paper`, where only coefficients are wrong."""
    gpu_time_ratio_wrong_prior: float | None
    """The same where laws are wrong, too."""
    gpu_time_ratio_to_end_median: float | None
    """As the first, over all that `paper` spends until it stops."""
    gpu_time_ratio_to_end_wrong_prior: float | None
    final_hypervolume_share_min: float | None
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
    lowest = [share for share in final_share_medians(runs, OURS).values() if share is not None]
    return Figures(
        gpu_time_ratio_median=median_ratio(runs, TruthKind.PERTURBED, gpu_time_ratio),
        gpu_time_ratio_wrong_prior=median_ratio(runs, TruthKind.OTHER_LAWS, gpu_time_ratio),
        gpu_time_ratio_to_end_median=median_ratio(runs, TruthKind.PERTURBED, gpu_time_ratio_to_end),
        gpu_time_ratio_to_end_wrong_prior=median_ratio(runs, TruthKind.OTHER_LAWS, gpu_time_ratio_to_end),
        final_hypervolume_share_min=min(lowest, default=None),
        paper_hypervolume_share_median=statistics.median(float(r["paper"].shares[-1]) for r in runs.values()),
    )


def median_ratio(runs: Runs, truth: TruthKind, ratio: Ratio) -> float | None:
    """Median over partitions and seeds of ours against `paper`."""
    ratios = [ratio(r[OURS], r["paper"]) for (*_, kind, _), r in runs.items() if kind == truth and OURS in r]
    return statistics.median(ratios) if ratios else None


def final_share_medians(runs: Runs, strategy: str) -> dict[tuple[str, str], float | None]:
    """Median over seeds of a strategy's final share, by partition; None where it did not run."""
    finals: dict[tuple[str, str], list[float]] = {}
    for (workload, partition, *_), strategies in runs.items():
        found = finals.setdefault((workload, partition), [])
        if strategy in strategies:
            found.append(float(strategies[strategy].shares[-1]))
    return {place: statistics.median(shares) if shares else None for place, shares in finals.items()}


def strategy_lines(runs: Runs) -> list[str]:
    """One line for each truth and strategy: median, and the middle half, over partitions and seeds."""
    lines = [f"{'truth':<11} {'strategy':<10} runs  measured  GPU-seconds  share of exhaustive hypervolume %"]
    for truth in TruthKind:
        chosen = [strategies for (*_, kind, _), strategies in runs.items() if kind == truth]
        for strategy in _present(chosen):
            found = [strategies[strategy] for strategies in chosen if strategy in strategies]
            shares = [100 * float(t.shares[-1]) for t in found]
            lines.append(
                f"{truth.value:<11} {strategy:<10} {len(found):>4}  {_median(len(t.shares) for t in found):>8.0f}"
                f"  {_median(float(t.gpu_s[-1]) for t in found):>11.0f}  {_spread(shares)}"
            )
    return lines


def partition_lines(runs: Runs) -> list[str]:
    """One line for each partition: medians over seeds of the final shares, and of the ratio of GPU-seconds."""
    strategies = _present(runs.values())
    medians = {strategy: final_share_medians(runs, strategy) for strategy in strategies}
    lines = [f"{'partition (final share %, median over seeds)':<78}" + "".join(f"{s:>11}" for s in strategies)]
    for place in dict.fromkeys(run[:2] for run in runs):
        cells = (medians[strategy][place] for strategy in strategies)
        row = "".join(f"{'-' if cell is None else f'{100 * cell:.2f}':>11}" for cell in cells)
        ours = [(r[OURS], r["paper"]) for run, r in runs.items() if run[:2] == place and OURS in r]
        tail = ""
        if ours:
            lowest = 100 * min(float(trajectory.shares[-1]) for trajectory, _ in ours)
            ratio = statistics.median(gpu_time_ratio(*pair) for pair in ours)
            tail = f"  {OURS}'s lowest {lowest:.2f}, GPU-seconds to paper's end x {ratio:.2f}"
        lines.append(f"{' '.join(place):<78}{row}{tail}")
    return lines


def _present(runs: Iterable[dict[str, Trajectory]]) -> list[str]:
    everyone = {name for strategies in runs for name in strategies}
    return [name for name in STRATEGIES if name in everyone]


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({first:.2f} to {third:.2f}, lowest {min(values):.2f})"


def finite(value: float | None) -> float | None:
    """The number, or None for infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
