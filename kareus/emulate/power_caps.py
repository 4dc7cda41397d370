"""Power caps: the fastest plan of a fleet within a mean power of all its GPUs."""

from collections.abc import Sequence
from typing import Any

from kareus.emulate.fleet import Scale, fleet_columns
from kareus.pipeline.solver.frontier import PlannedIteration
from kareus.pipeline.solver.problem import Problem
from kareus.plans.limits import fastest_under

COLUMNS = ("time_s", "energy_j", "power_w", "points")


def power_cap_columns(
    gpu_cap_w: float, plans: Sequence[PlannedIteration], problem: Problem, scale: Scale
) -> dict[str, Any]:
    """Return the columns of `POWER_CAPS` for one cap; those of the plan are empty where no plan draws so little.

    Equal pipelines that wait for one another are fastest when each takes an equal share of the cap: a pipeline with
    more would only wait for the others.

    Args:
        gpu_cap_w: mean power that each GPU may draw.
        plans: frontier of one pipeline, by rising time and falling power.
        problem: what one pipeline plans.
        scale: of the fleet.
    """
    cap_w = gpu_cap_w * scale.gpus
    within = [n for n, plan in enumerate(plans) if fleet_columns(scale, plan)["power_w"] <= cap_w]
    if not within:
        return {"cap_w": cap_w, **dict.fromkeys(COLUMNS)}
    chosen = plans[within[0]]
    if within[0] > 0:
        thirsty, pipeline_cap_w = plans[within[0] - 1], gpu_cap_w * scale.pipeline_gpus
        allowance = (pipeline_cap_w * scale.exposed_s - scale.reduction_energy_j, pipeline_cap_w)
        ends = ((plan.time_s, plan.energy_j) for plan in (thirsty, chosen))
        chosen = fastest_under(problem, allowance, *ends) or chosen
    columns = fleet_columns(scale, chosen)
    return {"cap_w": cap_w, **{name: columns[name] for name in COLUMNS}}
