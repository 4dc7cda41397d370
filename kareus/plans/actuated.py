"""Plans for machines whose clocks may not be locked: at a power limit, under the vendor's profiles, or as they are.

Their instructions run at the maximum clock, which the driver lowers as the limit asks: what is left to choose is the
layout, SMs, launches, and the limit. A limit is part of the workload (`gpu.power_limit_w`), whose costs it changes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from kareus.device.actuators import Actuator, ActuatorKind
from kareus.errors import ConfigError
from kareus.gpu_model.gpu import Gpu
from kareus.graph.number_formats import TensorCores
from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE
from kareus.pipeline.methods import METHODS
from kareus.plans.answer import LITTLE_SLOWER, answer_of, beyond_reach
from kareus.plans.build import select_plan
from kareus.plans.document import Plan
from kareus.plans.frontiers import Frontiers
from kareus.plans.selectors import OVER_TIME, Goal, absolute_limit, parse_selector, select
from kareus.plans.units import compared, less
from kareus.prediction.workload_prediction import predict
from kareus.profile.programs import Execution
from kareus.software.trainers import ObeyingTrainer, trainer_of
from kareus.workload.combinations import check_combinations
from kareus.workload.config import Workload, run_by
from kareus.workload.naming import name_at_limit

if TYPE_CHECKING:
    from kareus.plans.planning import PlannedTables

LIMIT_STEP, LARGEST_CUT = 0.01, 0.3
"""Steps of power limits that are priced, as shares of the GPU's own, and the largest share that is taken away."""
SLOWER = f"{Goal.STRAGGLER}={LITTLE_SLOWER:g}x"
"""Selector of plans that take a little longer."""
VENDOR_WORDS = (
    "what profiles do is neither measured nor modelled here: the figures are those of default clocks (NVIDIA speaks of "
    "up to 15 % less energy in up to 3 % more time for Max-Q training)"
)
"""What is said of profiles (NVIDIA Mission Control's workload power profiles)."""


def clock_goal(selector: str) -> str:
    """Return the selector that one clock, or one limit, for all steps is chosen by, where `selector` asked for a plan.

    Full speed has little to gain by one clock, and limits on how power moves are kept by plans alone.

    Example:
        >>> from kareus.plans.actuated import clock_goal
        >>> [clock_goal(selector) for selector in ("fastest", "swing=10percent", "power=4kW")]
        ['straggler=1.05x', 'straggler=1.05x', 'power=4kW']
    """
    return SLOWER if selector.partition("=")[0] in (Goal.FASTEST, *OVER_TIME) else selector


def limited(workload: Workload, limit_w: float) -> Workload:
    """Return the workload as if resolved with another power limit of its GPUs, which heats them less or more."""
    gpu: Gpu = replace(workload.gpu, power_limit_w=limit_w)
    return run_by(replace(workload, gpu=gpu), workload.software)


def best_power_limit(workload: Workload, selector: str) -> float:
    """Return the power limit that suits a selector, of those up to the GPU's own, in W.

    The GPU model prices the trainer's own execution at the maximum clock.

    Raises:
        ConfigError: no limit keeps what the selector asks for.
    """
    wanted, most_w = parse_selector(clock_goal(selector)), workload.gpu.power_limit_w
    limits_w = [float(round(most_w * (1 - LIMIT_STEP * step))) for step in range(round(LARGEST_CUT / LIMIT_STEP) + 1)]
    costs: list[tuple[float, float]] = []
    for limit_w in limits_w:
        cost = predict(limited(workload, limit_w))
        costs.append((cost.time_s, cost.energy_j))
        if wanted.goal is Goal.STRAGGLER and wanted.limit and cost.time_s > wanted.limit * costs[0][0]:
            break  # lower limits are slower still
    frame = pl.DataFrame(costs, schema=["time_s", "energy_j"], orient="row")
    return limits_w[select(wanted, frame, workload.parallelism.gpus)]


def actuated_method(actuator: Actuator, method: str, planned: Sequence[str]) -> str:
    """Return a method, or the nearest planned one whose instructions all run at the maximum clock where none is locked.

    Example:
        >>> from kareus.device.actuators import parse_actuator
        >>> from kareus.plans.actuated import actuated_method
        >>> planned = ["sequential", "kareus", "kareus-without-frequency"]
        >>> [actuated_method(parse_actuator(text), "kareus", planned) for text in ("clocks", "none")]
        ['kareus', 'kareus-without-frequency']
    """
    if actuator.sets_clocks or method not in planned:
        return method
    nearest = next(each.at_default_clocks for each in METHODS if each.name == method)
    return nearest if nearest in planned else THROUGHPUT_BASELINE


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlans:
    """Plans of a workload, at one power limit, and what they were selected from."""

    workload: Workload
    """At the limit."""
    name: str
    """Its readable name, with a limit that was chosen for it."""
    planned: "PlannedTables | Frontiers"
    """Of measurements there are frontiers alone."""
    plans: tuple[Plan, ...]

    @property
    def frontiers(self) -> Frontiers:
        """What the plans were selected from."""
        return self.planned if isinstance(self.planned, Frontiers) else self.planned.frontiers


def plans_at_limits(
    actuator: Actuator,
    workload: Workload,
    frontiers: Frontiers,
    selectors: Sequence[str],
    method: str,
    name: str,
    tables: "Callable[[Workload], PlannedTables]",
) -> list[WorkloadPlans]:
    """Return the plans of some selectors, each at the power limit that suits it, those of one limit together.

    A multiple of the least time is one of that at the GPU's own limit: such a selector becomes a deadline.

    Args:
        actuator: a power limit, that is given or yet to be chosen.
        workload: at the GPU's own power limit, like the next.
        frontiers: of the workload.
        selectors: the requests.
        method: whose frontier to select from, or the nearest one without clocks.
        name: readable name of the workload.
        tables: what plans a workload.

    Raises:
        ConfigError: the limit is above the GPU's own, or no limit keeps what a selector asks for.
    """
    made: dict[float, tuple[Workload, PlannedTables]] = {}
    plans: dict[float, list[Plan]] = {}
    for text in selectors:
        wanted = _at_own_limit(text, frontiers, method)
        limit_w = actuator.limit_w or best_power_limit(workload, text)
        while True:
            if limit_w not in made:
                at_limit = checked_at(workload, limit_w)
                made[limit_w] = at_limit, tables(at_limit)
            at_limit, planned = made[limit_w]
            try:
                plan = plan_for(actuator, at_limit, planned.frontiers, wanted, method, name_at_limit(name, limit_w))
            except ConfigError:  # what is planned may take a little more than what was predicted
                if actuator.limit_w or limit_w >= workload.gpu.power_limit_w:
                    raise
                step_w = float(round(LIMIT_STEP * workload.gpu.power_limit_w))
                limit_w = min(limit_w + step_w, workload.gpu.power_limit_w)
                continue
            plans.setdefault(limit_w, []).append(plan)
            break
    return [
        WorkloadPlans(workload=made[w][0], name=name_at_limit(name, w), planned=made[w][1], plans=tuple(selected))
        for w, selected in plans.items()
    ]


def full_power_baseline(at_limit: Workload, workload: Workload, frontiers: Frontiers, name: str) -> Plan | None:
    """Return the trainer's own execution of a workload, which plans of it at another power limit are compared with."""
    if at_limit.gpu.power_limit_w == workload.gpu.power_limit_w:
        return None
    return select_plan(workload, frontiers, Goal.FASTEST, THROUGHPUT_BASELINE, name=name)


def _at_own_limit(selector: str, frontiers: Frontiers, method: str) -> str:
    """Return a selector that says of itself how long a plan may take, where it says so relative to others.

    Raises:
        ConfigError: it is not understood.
    """
    wanted = parse_selector(selector)
    if wanted.goal is not Goal.STRAGGLER:
        return selector
    limit_s = absolute_limit(wanted, frontiers.plans(method))
    return f"{Goal.DEADLINE}={limit_s:.5g}s"


def checked_at(workload: Workload, limit_w: float) -> Workload:
    """Return the workload at a power limit that its GPU has.

    Raises:
        ConfigError: it is above the GPU's own.
    """
    most_w = workload.gpu.power_limit_w
    if limit_w > most_w:
        raise ConfigError(
            f"--actuator power={limit_w:g}W: must be at most the {most_w:g} W of {workload.gpu.name}; where yours may "
            "have more, give gpu.power_limit_w as well."
        )
    at_limit = limited(workload, limit_w)
    check_combinations(at_limit)
    return at_limit


def plan_for(
    actuator: Actuator, workload: Workload, frontiers: Frontiers, selector: str, method: str, name: str
) -> Plan:
    """Return the plan of a selector for what the machine lets be set.

    Args:
        actuator: what is set; a power limit is the workload's.
        workload: what is planned.
        frontiers: those of the workload.
        selector: the request.
        method: whose frontier to select from, or the nearest one without clocks.
        name: readable name of the workload.

    Raises:
        ConfigError: as `select_plan`, or the limit is not the workload's.
    """
    plan = select_plan(workload, frontiers, selector, actuated_method(actuator, method, frontiers.methods), name=name)
    return plan if actuator.sets_clocks else replace(plan, actuator=actuator_at(actuator, workload))


def actuator_at(actuator: Actuator, workload: Workload) -> Actuator:
    """Return what is set for plans of a workload: a power limit is the workload's.

    Raises:
        ConfigError: another limit is asked for.
    """
    limit_w = workload.gpu.power_limit_w
    if actuator.limit_w and abs(actuator.limit_w - limit_w) > 1e-6 * limit_w:
        raise ConfigError(
            f"--actuator power={actuator.limit_w:g}W: this was planned at {limit_w:g} W; plan with "
            f"gpu.power_limit_w={actuator.limit_w:g}."
        )
    return replace(actuator, limit_w=limit_w) if actuator.kind is ActuatorKind.POWER else actuator


def runs_whole(plan: Plan) -> bool:
    """Return whether a plan runs all instructions whole, as other trainers than Kareus' engine do."""
    return all(i.execution is Execution.SEQUENTIAL for _, i in plan.keyed)


def actuated_lines(
    plan: Plan,
    workload: Workload,
    frontiers: Frontiers,
    locked: tuple[Workload, Frontiers],
    command: Callable[[str, str], str],
) -> Iterator[str]:
    """Yield what a plan that locks no clock sets, what is lost against locks, and what its trainer runs of it.

    Args:
        plan: the one that was asked for.
        workload: what it is for, whose trainer is spoken of.
        frontiers: of the workload.
        locked: workload and frontiers at the GPU's own power limit.
        command: what makes the plan of a selector and a method.
    """
    actuator, trainer = plan.actuator, trainer_of(workload.software.name)
    yield f"{actuator}: {_what_sets(actuator, trainer, workload.software.name)}"
    if actuator.profiles:
        if workload.gpu.speedup(TensorCores.MXFP8) == 1:  # which came with Blackwell, too
            yield f"{workload.gpu.name} should have no power profiles: NVIDIA's drivers have them from Blackwell on"
        yield VENDOR_WORDS
    if locked[0].gpu.power_limit_w == workload.gpu.power_limit_w and actuator.kind is ActuatorKind.POWER:
        yield (
            "the trainer's own execution is at this limit, too, as are locked clocks; `kareus plan` with --actuator "
            "power compares with the GPU's own limit"
        )
    yield _lost(plan, *locked)
    if not (trainer.overlaps or runs_whole(plan)):
        said = f"{trainer.title}, which runs instructions whole"
        whole = alternative(plan, workload, frontiers, THROUGHPUT_BASELINE)
        if isinstance(whole, str):
            yield f"{said}, {whole}"
            return
        typed = f"{command(plan.selector, THROUGHPUT_BASELINE)} --actuator {actuator.option}"
        yield f"in {said}: {answer_of(whole, locked[1].iteration).savings}: {typed}"


def alternative(plan: Plan, workload: Workload, frontiers: Frontiers, method: str) -> Plan | str:
    """Return what another method has for the selector of a plan, or in words that it has no plan, and why."""
    try:
        why = beyond_reach(parse_selector(plan.selector), frontiers.plans(method))
        if not why:
            return select_plan(workload, frontiers, plan.selector, method, name=plan.workload)
    except ConfigError as error:
        why = str(error)
    return f"has no plan for {plan.selector}: {why}"


def _what_sets(actuator: Actuator, trainer: ObeyingTrainer, software: str) -> str:
    """Return what sets an actuator in a trainer: its adapter, or the user where there is none that reads plans."""
    if trainer.follows_plans and software in trainer.software:
        if not actuator.lasts:
            return "adapters set nothing, and say at the end which clocks they saw"
        return "adapters set it, put back what was there before, and say at the end whether it held"
    if not actuator.lasts:
        return "nothing is to be set"
    given = f"{actuator.limit_w:g}" if actuator.limit_w else f'"{actuator.option}"'
    by_hand = f", or nvidia-smi -pl {actuator.limit_w:.0f}" if actuator.limit_w else ""
    return f"no adapter follows plans in {software}: call kareus.adapters.power_cap.cap_power({given}, model){by_hand}"


def _lost(plan: Plan, workload: Workload, frontiers: Frontiers) -> str:
    """Return what locked clocks would save beside a plan in the same time."""
    locked = [each.name for each in METHODS if each.has_frontier and each.at_default_clocks == plan.method]
    method = next((name for name in locked if name in frontiers.methods), OURS)
    planned = plan.prediction
    within = f"deadline={planned.time_s * (1 + 1e-6):.9g}s"
    try:
        best = select_plan(workload, frontiers, within, method, name=plan.workload).prediction
    except ConfigError:
        return "no plan of locked clocks is as fast"
    time, energy = 100 * (1 - best.time_s / planned.time_s), 100 * (1 - best.energy_j / planned.energy_j)
    return f"locked clocks ({method}) would take {compared(less(time, 'time'), less(energy, 'energy'), 'this plan')}"
