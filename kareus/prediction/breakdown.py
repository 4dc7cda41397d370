"""Breakdown of the time and energy of an instruction: operators by kind, collectives, and work outside the blocks.

The costs are those of the GPU model for whole instructions, divided up. What a collective adds to the operators beside
it is its exposed part; the operators of a step share the rest in proportion to what each costs alone. The power limit,
where it acts on a whole instruction, and waiting for the slowest GPU lengthen all parts alike; where the host launches
ahead of an instruction, what it adds is overhead.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.gpu_model.gpu import MOST_W, Gpu
from kareus.gpu_model.model import Behaviour, KnownSteps, Tally, run_tally, tally
from kareus.gpu_model.thermal import sustained_j
from kareus.graph.records import Direction, Program, Step

EMBEDDING, HEAD, COLLECTIVES, OVERHEAD = "embedding", "head", "collectives", "overhead"
"""Components beside the kinds of operator: what stands before and after the blocks, what collectives in blocks add, and
what the host adds and isolated steps miss of a whole instruction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionCost:
    """Cost of one instruction on one GPU at one clock."""

    behaviour: Behaviour
    parts: dict[str, Array]
    """Seconds and joules of each component, shape (2,); they add up to the instruction's."""
    collectives_alone_s: float
    """Time that the collectives of its blocks would take by themselves, in this instruction: the power limit and the
    slowest GPU lengthen it as they do all parts."""


def instruction_cost(
    gpu: Gpu, program: Program, direction: Direction, frequency_mhz: int, step_costs: KnownSteps
) -> InstructionCost:
    """Return what a whole instruction costs, and of what that is made.

    Args:
        gpu: what runs it.
        program: of the instruction.
        direction: of the instruction; a forward begins with the embedding, any other ends with it.
        frequency_mhz: requested clock.
        step_costs: costs of steps on this GPU, taken from and added to.
    """
    clock = np.array(float(frequency_mhz))
    first, last = program.blocks or (0, 0)
    ends = (EMBEDDING, HEAD) if direction is Direction.FORWARD else (HEAD, EMBEDDING)
    counted = tally(program)
    whole = run_tally(gpu, counted, clock, step_costs)
    within = _within_instruction(gpu)
    parts: dict[str, Array] = defaultdict(lambda: np.zeros(2))
    for name, steps in zip(ends, (program.steps[:first], program.steps[last:]), strict=True):
        parts[name] = _cost(within, Counter(steps), clock, step_costs)
    alone_s = 0.0
    for step, count in Counter(program.steps[first:last]).items():
        for name, cost in _step_parts(within, step, clock, step_costs).items():
            parts[name] = parts[name] + count * cost
        for part in (part for part in step.parts if part.collective is not None):
            collective = Step(collective=part.collective, sm_count=part.sm_count)
            alone_s += count * float(_cost(within, Counter([collective]), clock, step_costs)[0])
    if gpu.coefficients.limiter_s or gpu.job_gpus > 1:
        limited = _cost(_without_host(gpu), counted.steps, clock, step_costs)
        longer = limited / np.sum(list(parts.values()), axis=0)
        parts = {name: longer * part for name, part in parts.items()}
        alone_s *= float(longer[0])
    accounted = np.sum(list(parts.values()), axis=0)
    parts[OVERHEAD] = np.array([float(whole.time_s), float(whole.energy_j)]) - accounted
    return InstructionCost(behaviour=whole, parts=dict(parts), collectives_alone_s=alone_s)


def sustained_cost(cost: InstructionCost, gpu: Gpu) -> InstructionCost:
    """Return the cost of an instruction with the energies, of its parts too, of a GPU that trains for long."""

    def changed(part: Array) -> Array:
        return np.array([part[0], sustained_j(gpu, part[1], part[0])])

    whole = cost.behaviour
    energy_j = sustained_j(gpu, whole.energy_j, whole.time_s)
    parts = {name: changed(part) for name, part in cost.parts.items()}
    return replace(cost, behaviour=replace(whole, energy_j=energy_j), parts=parts)


def _without_host(gpu: Gpu) -> Gpu:
    """Return the GPU without a host that launches ahead of more than a step, which no step shows by itself."""
    if gpu.launches_ahead is LaunchesAhead.STEP:
        return gpu
    return replace(gpu, coefficients=replace(gpu.coefficients, host_launch_s=0.0, host_collective_s=0.0))


def _within_instruction(gpu: Gpu) -> Gpu:
    """Return the GPU on which a step costs what it does amid others, but for what acts on all of them together.

    That is the power limit, and waiting for the slowest GPU that it holds back.
    """
    free = replace(gpu, power_limit_w=float(MOST_W)) if gpu.coefficients.limiter_s else gpu
    return _without_host(replace(free, job_gpus=1))


def _step_parts(gpu: Gpu, step: Step, clock: Array, step_costs: KnownSteps) -> dict[str, Array]:
    """Seconds and joules of one step by kind of operator, and what its collective adds."""
    parts: dict[str, Array] = defaultdict(lambda: np.zeros(2))
    total, computing = _cost(gpu, Counter([step]), clock, step_costs), np.zeros(2)
    if operators := tuple(operator for part in step.parts for operator in part.operators):
        computing = _cost(gpu, Counter([Step(operators=operators)]), clock, step_costs)
        alone = [_cost(gpu, Counter([Step(operators=(o,))]), clock, step_costs) for o in operators]
        shares = computing / np.sum(alone, axis=0)
        for operator, cost in zip(operators, alone, strict=True):
            parts[str(operator.kind)] = parts[str(operator.kind)] + shares * cost
    if step.along or step.collective is not None:
        parts[COLLECTIVES] = total - computing
    return parts


def _cost(gpu: Gpu, steps: Counter[Step], clock: Array, step_costs: KnownSteps) -> Array:
    """Seconds and joules of steps that are no whole instruction, shape (2,)."""
    behaviour = run_tally(gpu, Tally(Counter(), steps, whole_instruction=False), clock, step_costs)
    return np.array([float(behaviour.time_s), float(behaviour.energy_j)])
