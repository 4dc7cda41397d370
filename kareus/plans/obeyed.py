"""The part of a plan that its trainer can run, and what that saves: said beside every plan that it cannot run whole."""

from collections.abc import Iterator

from kareus.errors import ConfigError
from kareus.pipeline.compare import THROUGHPUT_BASELINE, max_throughput_plan
from kareus.pipeline.one_clock import OneClock, one_clock_costs
from kareus.plans.answer import BASELINE, answer_of
from kareus.plans.build import select_plan
from kareus.plans.document import Plan
from kareus.plans.frontiers import Frontiers
from kareus.plans.units import compared, less, scaled
from kareus.software.trainers import ClockPace, ObeyingTrainer, trainer_of
from kareus.workload.config import Workload
from kareus.workload.slices import cut

LITTLE_SLOWER = 1.05
"""Of how much slower an iteration is spoken where there is nothing to gain at full speed."""
NOTHING_SAVED = 0.005
"""Share of energy below which nothing is gained."""


def obeyed_lines(plan: Plan, workload: Workload, frontiers: Frontiers, command: str) -> Iterator[str]:
    """Yield what the workload's trainer can run of a plan that needs Kareus' engine; nothing of other plans.

    Args:
        plan: the one that was asked for.
        workload: the one that it is for.
        frontiers: of the workload.
        command: what makes the plan that the trainer can run, without `--method`.
    """
    trainer, stages = trainer_of(workload.software.name), workload.parallelism.pp
    method = trainer.method(stages)
    whole = plan.method in (THROUGHPUT_BASELINE, "sequential+perseus")
    if trainer.overlaps or THROUGHPUT_BASELINE not in frontiers.methods:
        return
    if trainer.obeyed(stages) is ClockPace.STEP:
        if plan.method != THROUGHPUT_BASELINE:
            yield _one_clock_line(trainer, stages, workload, frontiers)
        return
    if whole or method not in frontiers.methods:
        return
    said = f"in {trainer.title}, which obeys {trainer.words(stages)}:"
    try:
        obeyed = select_plan(workload, frontiers, plan.selector, method, name=plan.workload)
    except ConfigError as error:
        yield f"{said} {error}"
        return
    yield f"{said} {answer_of(obeyed, frontiers.iteration).savings}: {command} --method {method}"


def _one_clock_line(trainer: ObeyingTrainer, stages: int, workload: Workload, frontiers: Frontiers) -> str:
    """Return what one clock for each step saves, at full speed and a little slower."""
    baseline = max_throughput_plan(frontiers.iteration, THROUGHPUT_BASELINE)
    clocks = one_clock_costs(cut(workload, "pipeline"), frontiers.microbatch)
    said = f"in {trainer.title}, which obeys {trainer.words(stages)}:"
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
    line = trainer.turn_on(stages, "", f"straggler={LITTLE_SLOWER:g}x")[-1]
    return (
        f"{said} {at_full}; {compared(time, energy, BASELINE)} at {slower.frequency_mhz} MHz "
        f"({scaled(slower.time_s, 's', digits=4)}, {scaled(slower.energy_j, 'J', digits=4)}): {line}"
    )


def _best(clocks: list[OneClock], within_s: float) -> OneClock | None:
    """Return the clock of the least energy within a time."""
    return min((one for one in clocks if one.time_s <= within_s), key=lambda one: one.energy_j, default=None)
