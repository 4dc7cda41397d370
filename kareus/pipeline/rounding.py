"""From the relaxation to a plan: every instruction gets a real point, and the makespan stays within the deadline.

Two roundings start: down, which keeps the deadline by itself, and to the nearest point, repaired where it is late. Then
slack is reclaimed, and single instructions are sped up wherever others can use the time better. Every choice here is an
index into an instruction's point set: a higher index is slower and cheaper.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import cycle, islice

from kareus.pipeline.dag import earliest_starts, latest_ends
from kareus.pipeline.problem import PointSet, Problem

TOLERANCE = 1e-11
"""Share of the deadline by which sums of floats may miss it."""
SNAP = 1e-6
"""Relative distance below which the relaxation, solved to HiGHS' tolerances, means a real point."""
EXCHANGE_EFFORT = 200_000
"""Attempts times instructions that `exchange` spends on one plan."""


def plan_within(problem: Problem, relaxed_s: Sequence[float], deadline_s: float) -> list[int]:
    """Choose a point for every instruction, near the relaxed times and within the deadline.

    Args:
        problem: what to plan.
        relaxed_s: seconds of each instruction in the relaxation's optimum for this deadline.
        deadline_s: bound on the makespan; at least that of the fastest plan.

    Returns:
        Index into each instruction's point set; never more energy than rounding down alone.
    """
    down = [_at_most(points, t) for points, t in zip(problem.point_sets, relaxed_s, strict=True)]
    nearest = [_nearest(points, t) for points, t in zip(problem.point_sets, relaxed_s, strict=True)]
    plans = [reclaim(problem, repair(problem, start, deadline_s), deadline_s) for start in (down, nearest)]
    return exchange(problem, min(plans, key=problem.effective_energy_j), deadline_s)


def repair(problem: Problem, choice: Sequence[int], deadline_s: float) -> list[int]:
    """Speed up what is late, step by step where a second costs least, until the deadline is kept."""
    choice = list(choice)
    while True:
        times_s, windows_s = problem.times_s(choice), available_s(problem, choice, deadline_s)
        late = [i for i, time_s in enumerate(times_s) if choice[i] and time_s > windows_s[i]]
        if not late:
            return choice
        cheapest = min(late, key=lambda i: _loss_j_per_s(problem.point_sets[i], choice[i], times_s[i] - windows_s[i]))
        choice[cheapest] -= 1


def reclaim(problem: Problem, choice: Sequence[int], deadline_s: float, held: int | None = None) -> list[int]:
    """Slow instructions into the slack around them, the largest saving first, until nothing fits any more.

    Args:
        problem: what to plan.
        choice: a plan within the deadline.
        deadline_s: bound on the makespan.
        held: an instruction to leave alone.
    """
    choice = list(choice)
    while True:
        best, saving_j = None, 0.0
        for i, window_s in enumerate(available_s(problem, choice, deadline_s)):
            points, now = problem.point_sets[i], choice[i]
            if i == held or now + 1 == len(points.times_s) or points.times_s[now + 1] > window_s:
                continue
            slower = bisect_right(points.times_s, window_s) - 1
            if points.energies_j[now] - points.energies_j[slower] > saving_j:
                best, saving_j = (i, slower), points.energies_j[now] - points.energies_j[slower]
        if best is None:
            return choice
        choice[best[0]] = best[1]


def exchange(problem: Problem, choice: Sequence[int], deadline_s: float) -> list[int]:
    """Speed up one instruction by one step where others, slowed into the time won, save more; until none is left.

    The number of attempts is bounded, so that long pipelines, whose gaps are small anyway, stay quick.
    """
    choice, attempts, since_improved = list(choice), EXCHANGE_EFFORT // len(choice), 0
    for i in islice(cycle(range(len(choice))), attempts):
        if since_improved == len(choice):
            break
        since_improved += 1
        if choice[i]:
            faster = [*choice[:i], choice[i] - 1, *choice[i + 1 :]]
            trial = reclaim(problem, faster, deadline_s, held=i)
            if problem.effective_energy_j(trial) < problem.effective_energy_j(choice) * (1 - TOLERANCE):
                choice, since_improved = trial, 0
    return choice


def available_s(problem: Problem, choice: Sequence[int], deadline_s: float) -> list[float]:
    """Longest time each instruction may take while all others stay as they are."""
    times_s = problem.times_s(choice)
    starts = earliest_starts(problem.dag, times_s)
    ends = latest_ends(problem.dag, times_s, deadline_s * (1 + TOLERANCE))
    return [end - start for start, end in zip(starts, ends, strict=True)]


def _at_most(points: PointSet, time_s: float) -> int:
    return max(bisect_right(points.times_s, time_s * (1 + SNAP)) - 1, 0)


def _nearest(points: PointSet, time_s: float) -> int:
    return min(range(len(points.times_s)), key=lambda c: abs(points.times_s[c] - time_s))


def _loss_j_per_s(points: PointSet, now: int, late_s: float) -> float:
    """Energy of one step faster, for each second by which it makes up lateness."""
    gained_s = min(points.times_s[now] - points.times_s[now - 1], late_s)
    return (points.energies_j[now - 1] - points.energies_j[now]) / gained_s
