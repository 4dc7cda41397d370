"""From the relaxation to a plan: every instruction gets a real point, and the makespan stays within the deadline.

Two roundings start: down, which keeps the deadline by itself, and to the nearest point, repaired where it is late. Then
slack is reclaimed, and single instructions are moved wherever the others can make more of it. Every choice here is an
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
EXCHANGE_EFFORT = 40_000
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


def repair(problem: Problem, choice: Sequence[int], deadline_s: float, held: int | None = None) -> list[int]:
    """Speed up what is late, step by step where a second costs least, until the deadline is kept or nothing is left.

    Args:
        problem: what to plan.
        choice: any plan.
        deadline_s: bound on the makespan; kept for certain if it is at least that of the fastest plan and none is held.
        held: an instruction to leave alone.
    """
    choice = list(choice)
    while True:
        times_s, windows_s = problem.times_s(choice), available_s(problem, choice, deadline_s)
        late = [i for i, time_s in enumerate(times_s) if time_s > windows_s[i] and choice[i] and i != held]
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
    """Move one instruction by one step wherever the others, adapting to it, then cost less; until no move helps.

    The number of attempts is bounded, so that long pipelines, whose gaps are small anyway, stay quick.
    """
    choice = list(choice)
    moves = [(i, step) for step in (-1, 1) for i in range(len(choice))]
    failed = 0
    for i, step in islice(cycle(moves), EXCHANGE_EFFORT // len(choice)):
        trial = _moved(problem, choice, i, step, deadline_s)
        if trial is not None and _saves(problem, trial, choice):
            choice, failed = trial, 0
        else:
            failed += 1
        if failed == len(moves):
            break
    return choice


def _moved(problem: Problem, choice: Sequence[int], i: int, step: int, deadline_s: float) -> list[int] | None:
    """The plan after moving one instruction and letting the others adapt, or None where it cannot move so."""
    target = choice[i] + step
    if not 0 <= target < len(problem.point_sets[i].times_s):
        return None
    adapted = repair(problem, [*choice[:i], target, *choice[i + 1 :]], deadline_s, held=i)
    if problem.point_sets[i].times_s[target] > available_s(problem, adapted, deadline_s)[i]:
        return None
    return reclaim(problem, adapted, deadline_s, held=i)


def _saves(problem: Problem, trial: Sequence[int], choice: Sequence[int]) -> bool:
    return problem.effective_energy_j(trial) < problem.effective_energy_j(choice) * (1 - TOLERANCE)


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
