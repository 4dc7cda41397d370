"""The part of a plan that its trainer can run, what that saves, and what would save more: said beside plans."""

from collections.abc import Callable, Iterator

from kareus.errors import ConfigError
from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE, max_throughput_plan
from kareus.pipeline.methods import method_named
from kareus.pipeline.one_clock import OneClock, one_clock_costs
from kareus.plans.actuated import SLOWER, actuated_lines, alternative, best_power_limit, limited, runs_whole
from kareus.plans.answer import BASELINE, LITTLE_SLOWER, answer_of, little_to_gain
from kareus.plans.build import select_plan
from kareus.plans.document import Plan
from kareus.plans.exchanges import exchange_lines
from kareus.plans.frontiers import Frontiers
from kareus.plans.selectors import Goal
from kareus.plans.units import compared, less, scaled
from kareus.prediction.workload_prediction import predict
from kareus.software.trainers import ENGINE, ClockPace, ObeyingTrainer, trainer_of, trainers
from kareus.workload.config import Workload
from kareus.workload.slices import cut

NOTHING_SAVED = 0.005
"""Share of energy below which one clock saves nothing."""


def asked(selector: str, method: str, *places: str) -> str:
    """Return the arguments that ask for a plan.

    Example:
        >>> asked("straggler=1.05x", "kareus"), asked("fastest", "sequential", "results/mine")
        ('straggler=1.05x', 'fastest results/mine --method sequential')
    """
    return " ".join((selector, *places, *(() if method == OURS else ("--method", method))))


def obeyed_method(plan: Plan, trainer: ObeyingTrainer) -> str:
    """Return the method of a plan that a trainer can run, and that of what it can run instead of any other."""
    if not plan.actuator.sets_clocks:
        return plan.method if trainer.overlaps or runs_whole(plan) else THROUGHPUT_BASELINE
    if trainer.clocks is ClockPace.STEP:
        return trainer.method
    return plan.method if trainer.overlaps or runs_whole(plan) else trainer.method


def runner_of(plan: Plan, workload: Workload) -> ObeyingTrainer:
    """Return the trainer that runs all of a plan: the workload's, where it can, or Kareus' engine."""
    trainer = trainer_of(workload.software.name)
    can_set = trainer.clocks is ClockPace.INSTRUCTION or not method_named(plan.method).has_frontier
    return trainer if trainer.overlaps or (can_set and runs_whole(plan)) else trainers()[ENGINE]


def is_obeyable(plan: Plan, workload: Workload, frontiers: Frontiers, trainer: ObeyingTrainer) -> bool:
    """Return whether a trainer can run the plan, one of its own method for the same selector, or one clock instead."""
    method = obeyed_method(plan, trainer)
    if trainer.clocks is ClockPace.STEP or method == plan.method or method not in frontiers.methods:
        return True
    try:
        select_plan(workload, frontiers, plan.selector, method, name=plan.workload)
    except ConfigError:
        return False
    return True


def obeyed_lines(
    plan: Plan,
    workload: Workload,
    frontiers: Frontiers,
    command: Callable[[str, str], str],
    locked: tuple[Workload, Frontiers] | None = None,
) -> Iterator[str]:
    """Yield what the workload's trainer can run of a plan that it cannot run whole, and what is better than it.

    Args:
        plan: the one that was asked for.
        workload: the one that it is for.
        frontiers: of the workload.
        command: what makes the plan of a selector and a method.
        locked: workload and frontiers at the GPU's own power limit, which plans without clocks are compared with; None
            where those are the same.
    """
    if not plan.actuator.sets_clocks:
        yield from actuated_lines(plan, workload, frontiers, locked or (workload, frontiers), command)
        return
    trainer = trainer_of(workload.software.name)
    if THROUGHPUT_BASELINE not in frontiers.methods:
        return
    if trainer.clocks is ClockPace.STEP:
        if plan.method != THROUGHPUT_BASELINE:
            yield _one_clock_line(trainer, workload, frontiers)
        return
    method = obeyed_method(plan, trainer)
    is_obeyed = method == plan.method
    if method not in frontiers.methods:
        return
    said = f"{trainer.title}, which obeys {trainer.obeys}"
    obeyed = plan if is_obeyed else alternative(plan, workload, frontiers, method)
    if isinstance(obeyed, str):
        yield f"{said}, {obeyed}"
        return
    if not is_obeyed:
        yield f"in {said}: {answer_of(obeyed, frontiers.iteration).savings}: {command(plan.selector, method)}"
    if plan.selector == Goal.FASTEST:
        yield from _slower_lines(obeyed, workload, frontiers, command)
    if is_obeyed:
        yield from exchange_lines(workload)


def _slower_lines(
    fastest: Plan, workload: Workload, frontiers: Frontiers, command: Callable[[str, str], str]
) -> Iterator[str]:
    """Yield what a little more time saves, where the fastest plan saves little."""
    answer = answer_of(fastest, frontiers.iteration)
    if answer.is_large:
        return
    slower = select_plan(workload, frontiers, SLOWER, fastest.method, name=fastest.workload).prediction
    said = little_to_gain(
        answer.time_reduction_percent / 100,
        answer.energy_reduction_percent / 100,
        slower.time_s / answer.baseline_time_s - 1,
        1 - slower.energy_j / answer.baseline_energy_j,
    )
    if said is not None:
        yield f"{said}: {command(SLOWER, fastest.method)}"
        yield from _power_limit_lines(workload)


def _power_limit_lines(workload: Workload) -> Iterator[str]:
    """Yield what a power limit saves in as much more time, for machines whose clocks may not be locked."""
    default, best_w = predict(workload), best_power_limit(workload, SLOWER)
    if best_w < workload.gpu.power_limit_w:
        best = predict(limited(workload, best_w))
        more, saved = 100 * (best.time_s / default.time_s - 1), 100 * (1 - best.energy_j / default.energy_j)
        yield (
            f"where clocks may not be locked: a power limit of {best_w:.0f} W is {more:z.1f} % slower and saves "
            f"{saved:z.1f} % of energy (kareus plan with --actuator power, nvidia-smi -pl {best_w:.0f}, or "
            "kareus.adapters.power_cap in a loop of yours)"
        )


def _one_clock_line(trainer: ObeyingTrainer, workload: Workload, frontiers: Frontiers) -> str:
    """Return what one clock for each step saves, at full speed and a little slower."""
    baseline = max_throughput_plan(frontiers.iteration, THROUGHPUT_BASELINE)
    clocks = one_clock_costs(cut(workload, "pipeline"), frontiers.microbatch)
    said = f"in {trainer.title}, which obeys {trainer.obeys}:"
    full, slower = (_best(clocks, baseline["time_s"] * share) for share in (1.001, LITTLE_SLOWER))
    saved = 1 - full.energy_j / baseline["energy_j"] if full else 0.0
    at_full = (
        "at full speed nothing to gain"
        if full is None or saved < NOTHING_SAVED
        else f"at full speed {100 * saved:.1f} % less energy at {full.frequency_mhz} MHz"
    )
    if slower is None:
        return f"{said} {at_full}"
    time = less(100 * (1 - slower.time_s / baseline["time_s"]), "time")
    energy = less(100 * (1 - slower.energy_j / baseline["energy_j"]), "energy")
    line = trainer.turn_on("", SLOWER)[-1]
    return (
        f"{said} {at_full}; {compared(time, energy, BASELINE)} at {slower.frequency_mhz} MHz "
        f"({scaled(slower.time_s, 's', digits=4)}, {scaled(slower.energy_j, 'J', digits=4)}); {trainer.where}: `{line}`"
    )


def _best(clocks: list[OneClock], within_s: float) -> OneClock | None:
    """Return the clock of the least energy within a time."""
    return min((clock for clock in clocks if clock.time_s <= within_s), key=lambda clock: clock.energy_j, default=None)
