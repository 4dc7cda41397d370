"""Stragglers: one pipeline is slow, and the others take the plan that just meets it (the use case of Perseus)."""

import dataclasses
from typing import Any

from kareus.emulate.fleet import Scale
from kareus.emulate.joined import plan_beside_slow_pipeline
from kareus.gpu_model.waiting import total_energy_j
from kareus.pipeline.solver.frontier import PlannedIteration, sound_bound_j
from kareus.pipeline.solver.problem import Problem


def straggler_columns(
    slowdown: float,
    fastest: PlannedIteration,
    problem: Problem,
    scale: Scale,
    joined: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Return the columns of `STRAGGLERS` for one slowdown.

    Pipelines that finish before the slow one wait at their last clock until it is done too. That energy is spent in any
    case, so that the others take the plan of least effective energy within its time, which is slower than the plan of
    least total energy where the time allows. The slow pipeline does the work of the fastest plan at that plan's energy,
    and draws blocking power for the time that it loses.

    Args:
        slowdown: time of the slow pipeline over that of the fastest plan, 1 or more.
        fastest: plan of all pipelines where none is slow.
        problem: what one pipeline plans.
        scale: of the fleet.
        joined: numbers of the instructions that all pipelines have together (`joining`), which wait for the slow one.
    """
    time_s, others = slowdown * fastest.time_s, scale.pipelines - 1
    waited_j = fastest.energy_j + problem.waits_after_w(fastest.points) * (time_s - fastest.time_s)
    unpaid = dataclasses.replace(problem, waiting_power_w=0.0)
    effective = plan_beside_slow_pipeline(unpaid, joined, fastest, slowdown)
    adapted_j = total_energy_j(effective.energy_j, time_s, problem.waiting_power_w)
    if not joined:  # else the end of the slow pipeline is in the plan
        least_w = problem.waits_after_w(effective.points) - problem.waiting_power_w
        adapted_j += least_w * (time_s - effective.time_s)
    bound_j = total_energy_j(effective.lower_bound_j, time_s, problem.waiting_power_w)
    if adapted_j > waited_j:  # both are of real points, and rounding may find a worse one than the fastest plan
        effective, adapted_j = fastest, waited_j
    fleet_time_s, waiting_j = scale.cost(time_s, waited_j)
    energy_j, least_j = (
        waited_j + others * each_j + scale.pipelines * scale.reduction_energy_j
        for each_j in (adapted_j, sound_bound_j(bound_j, adapted_j))
    )
    return {
        "slowdown": slowdown,
        "time_s": fleet_time_s,
        "plan_time_s": effective.time_s,
        "waiting_energy_j": waiting_j,
        "energy_j": energy_j,
        "saving_percent": 100 * (1 - energy_j / waiting_j),
        "gap": energy_j / least_j - 1,
        "points": effective.points,
    }
