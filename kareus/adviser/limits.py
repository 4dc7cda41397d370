"""Limits of a question: GPUs that keep theirs, plans that keep them, and what comes nearest where none does."""

from collections.abc import Sequence
from dataclasses import replace

from kareus.adviser.answers import LayoutAnswer, LayoutChoice, iterations_of, limits_of, plans_of
from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.adviser.question import Question
from kareus.errors import ConfigError
from kareus.gpu_model.waiting import least_waiting_w
from kareus.plans.units import duration, scaled
from kareus.software.record import driven
from kareus.testbed.config import TestbedKind
from kareus.workload.config import Workload

DIGITS = 4
"""Of powers and times beside a limit, from which they may differ by little."""


def limited(question: Question) -> Workload:
    """Return what is trained, on GPUs whose driver keeps the cap of each GPU.

    Raises:
        ConfigError: the testbed is not simulated, or a cap is below the power of a GPU that does nothing.
    """
    base, goals = question.base, question.goals
    if base.testbed.kind is not TestbedKind.SIMULATED:
        raise ConfigError(
            f"testbed.kind={base.testbed.kind}: must be simulated; layouts are compared by the GPU model."
        )
    gpu = base.gpu
    if goals.gpu_w is None:
        return base
    if goals.gpu_w <= least_waiting_w(gpu):
        raise ConfigError(
            f"--max-gpu-power {goals.gpu_w:g}W: must be more than the {least_waiting_w(gpu):.3g} W that a waiting "
            f"{gpu.name} takes."
        )
    capped = replace(gpu, power_limit_w=min(goals.gpu_w, gpu.power_limit_w))
    return replace(base, gpu=driven(capped, base.software, base.parallelism.gpus))


def idle_limit_line(question: Question) -> str:
    """Return that a power limit of GPUs is no less than what they have anyway; or nothing."""
    gpu, limit_w = question.base.gpu, question.goals.gpu_w
    if limit_w is None or limit_w < gpu.power_limit_w:
        return ""
    return f"--max-gpu-power {limit_w:g}W limits nothing: the power limit of {gpu.name} is {gpu.power_limit_w:g} W"


def check_cap(question: Question, base: Workload, gpus: int) -> None:
    """Check that GPUs which only wait keep the caps; all plans take more.

    Raises:
        ConfigError: they do not; with what is nearest.
    """
    goals, waiting_w = question.goals, least_waiting_w(base.gpu)
    per_node = min(gpus, base.gpu.gpus_per_node)
    for option, cap_w, asked_gpus, where in (
        ("--max-power", goals.site_w, gpus, f"{gpus} GPUs"),
        ("--max-node-power", goals.node_w, per_node, f"the {per_node} GPUs of a node"),
    ):
        if cap_w is not None and cap_w <= asked_gpus * waiting_w:
            most = int(cap_w / waiting_w)
            fewer = f", or give at most {most:,} GPUs" if most and option == "--max-power" else ""
            raise ConfigError(
                f"{option} {scaled(cap_w, 'W')}: {where} draw {scaled(asked_gpus * waiting_w, 'W')} even while they "
                f"wait; allow more{fewer}."
            )


def keeps(question: Question, choice: LayoutChoice) -> bool:
    """Whether a plan keeps the limits of a question."""
    return _keeps_caps(question, choice) and _keeps_deadline(question, choice)


def _keeps_caps(question: Question, choice: LayoutChoice) -> bool:
    cap_w, _ = limits_of(question, choice.layout)
    return cap_w is None or choice.cost.power_w <= cap_w


def _keeps_deadline(question: Question, choice: LayoutChoice) -> bool:
    _, most_s = limits_of(question, choice.layout)
    return most_s is None or choice.cost.time_s <= most_s


def broken_words(question: Question, choice: LayoutChoice) -> str:
    """Return which limits a plan breaks, such as ` (42.3 kW, over the limit)`, or nothing."""
    broken = []
    if not _keeps_caps(question, choice):
        broken.append(f"{scaled(choice.cost.power_w, 'W')}, over the limit")
    if not _keeps_deadline(question, choice):
        broken.append("after the deadline")
    return f" ({'; '.join(broken)})" if broken else ""


def unkept_words(question: Question, layout: LayoutAnswer) -> str:
    """Return that no plan of a layout keeps the limits, and what the nearest to them takes; or nothing."""
    choices = plans_of([layout])
    if not choices or any(keeps(question, choice) for choice in choices):
        return ""
    timely = [choice for choice in choices if _keeps_deadline(question, choice)]
    if timely:
        within = "" if question.goals.deadline_s is None else " within the deadline"
        least = f"{scaled(min(choice.cost.power_w for choice in timely), 'W', digits=DIGITS)}{within}"
    else:
        least = scaled(min(choice.cost.time_s for choice in choices), "s", digits=DIGITS)
    return f", no plan keeps the limits: at least {least}"


def nearest_words(question: Question, choices: Sequence[LayoutChoice]) -> str:
    """Return that no plan keeps the limits, and what comes nearest: to each limit among plans that keep the other."""
    goals, said, more = question.goals, list[str](), list[str]()
    capped = [choice for choice in choices if _keeps_caps(question, choice)]
    timely = [choice for choice in choices if _keeps_deadline(question, choice)]
    if goals.deadline_s is not None:
        fastest = min(capped or choices, key=lambda choice: choice.cost.time_s)
        within = f"within {' and '.join(goals.caps)} " if goals.caps and capped else ""
        whole = duration(iterations_of(question, fastest) * fastest.cost.time_s)
        said.append(f"{within}the fastest takes {scaled(fastest.cost.time_s, 's')} an iteration, {whole} in all")
        more.append("time")
    if goals.caps:
        frugal = min(timely or choices, key=lambda choice: choice.cost.power_w)
        within = "within the deadline " if goals.deadline_s is not None and timely else ""
        gpus = frugal.layout.candidate.layout.gpus
        said.append(
            f"{within}the least power of a plan is {scaled(frugal.cost.power_w, 'W', digits=DIGITS)} on {gpus} GPUs"
        )
        more.append("power")
    return (
        f"no plan keeps the limits ({', '.join(goals.limits)}): {'; '.join(said)}; allow more {' or '.join(more)}, or "
        f"give other --gpus{_by_limits_of_gpus(question, choices)}."
    )


def _by_limits_of_gpus(question: Question, choices: Sequence[LayoutChoice]) -> str:
    """Return the power limit of each GPU with which plans of the same layouts keep the limits, or nothing.

    A GPU that its driver slows down goes below the clocks that plans set.
    """
    layout, gpu = choices[0].layout, question.base.gpu
    cap_w, _ = limits_of(question, layout)
    limit_w = gpu.power_limit_w if cap_w is None else float(int(cap_w / layout.candidate.layout.gpus))
    if not least_waiting_w(gpu) < limit_w < min(gpu.power_limit_w, question.goals.gpu_w or gpu.power_limit_w):
        return ""
    at_limit = replace(question, goals=replace(question.goals, gpu_w=limit_w))
    base = limited(at_limit)
    predictor = LayoutPredictor(base, InstructionPrices(base, trainer=question.trainer), question.trainer)
    kept = list[LayoutChoice]()
    for layout in {choice.layout.number: choice.layout for choice in choices}.values():
        workload = layout.candidate.workload
        gpu = replace(workload.gpu, power_limit_w=limit_w)
        gpu = driven(gpu, workload.software, workload.parallelism.gpus, workload.parallelism.pp)
        candidate = replace(layout.candidate, workload=replace(workload, gpu=gpu))
        prediction = predictor.predict(candidate, predictor.bound(candidate.workload))
        plans = plans_of([replace(layout, candidate=candidate, plans=prediction.plans)])
        kept += [choice for choice in plans if keeps(question, choice)]
    if not kept:
        return ""
    fastest = min(kept, key=lambda choice: choice.cost.time_s)
    return (
        f", or --max-gpu-power {limit_w:g}W, if the driver takes it, with which {fastest.layout.candidate.words} takes "
        f"{scaled(fastest.cost.time_s, 's')} at {scaled(fastest.cost.power_w, 'W', digits=DIGITS)}"
    )
