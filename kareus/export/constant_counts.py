"""The best constant SM counts of a plan, as software takes them that sets them once.

There are two of them. A collective beside computation takes SMs from it and wants few; one that nothing runs beside
wants as many as move its data faster. For the first, every choice of counts is put in place of the plan's own; for the
second, instructions run whole, and collectives are on the count in place of NCCL's own. Each is evaluated on the GPU
model at the planned clocks and in the planned order, as the plan itself is, so that a loss is that of the counts and
not that of the model.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from kareus.errors import ConfigError
from kareus.gpu_model.model import KnownSteps
from kareus.gpu_model.thermal import sustained_j
from kareus.gpu_model.waiting import effective_energy_j, least_waiting_w, waiting_above_w
from kareus.graph.records import Batch, BlockGraph
from kareus.partition.extract import partitions_of
from kareus.pipeline.instructions import instructions_by_stage, instructions_of
from kareus.pipeline.iteration import ComposedIteration, clocked_iteration_cost
from kareus.pipeline.solver.dag import iteration_dag
from kareus.plans.document import Plan, PlannedInstruction
from kareus.plans.simulated_run import instruction_costs
from kareus.profile.programs import Execution
from kareus.schedule.config import sm_allocations
from kareus.workload.config import Workload, with_sm_count
from kareus.workload.slices import cut

Graphs = Mapping[Batch, BlockGraph]
SmCounts = Mapping[str, int]
"""SMs of the collectives of each group: `tp`, `cp`, `ep` or `etp`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantCounts:
    """The constants with the least product of time and energy, and what departing from the plan costs."""

    beside: SmCounts
    """Of collectives that computation runs beside, as planned."""
    alone: int | None
    """Of all groups, where instructions run whole; None if each count takes more time or energy than NCCL's own."""
    planned: ComposedIteration
    """Of the plan as it is."""
    constant: ComposedIteration
    """Of the plan with the counts `beside` in place of its own."""
    whole: ComposedIteration
    """Of the plan's clocks with every instruction run whole, collectives on NCCL's own number of SMs."""
    whole_set: ComposedIteration
    """As `whole`, collectives on the count `alone`; neither more time nor more energy than `whole`."""


def constant_counts(plan: Plan, workload: Workload, graphs: Graphs) -> ConstantCounts:
    """Return the best constant SM counts of a plan.

    Args:
        plan: of partitioned overlap, in one instruction at least.
        workload: the one that it is for.
        graphs: operator graphs of its block.

    Raises:
        ConfigError: no instruction of the plan overlaps, so that no SM count is planned.
    """
    step_costs: KnownSteps = {}
    partitions = {p.name: p.collective for p in partitions_of(dict(graphs), workload)}
    groups = {name: partitions[name].group for name in overlapping(plan)}
    sizes = {partitions[name].group: partitions[name].group_size for name in groups}
    names = sorted(sizes)
    allowed = [sm_allocations(sizes[name], workload.space) for name in names]

    def cost(changed: Plan, at: Workload = workload) -> ComposedIteration:
        return plan_cost(changed, at, graphs, step_costs)

    constants = [dict(zip(names, counts, strict=True)) for counts in itertools.product(*allowed)]
    costs = [cost(with_counts(plan, groups, counts)) for counts in constants]
    best = min(range(len(costs)), key=lambda n: costs[n].product)
    run_whole = _whole(plan)
    whole = cost(run_whole)
    common = sorted(set(allowed[0]).intersection(*allowed))
    settings = {count: cost(run_whole, with_sm_count(workload, count)) for count in common}
    better = {
        n: counted
        for n, counted in settings.items()
        if counted.time_s <= whole.time_s and counted.energy_j <= whole.energy_j
    }
    alone = min(better, key=lambda n: better[n].product, default=None)
    return ConstantCounts(
        beside=constants[best],
        alone=alone,
        planned=cost(plan),
        constant=costs[best],
        whole=whole,
        whole_set=whole if alone is None else better[alone],
    )


def overlapping(plan: Plan) -> list[str]:
    """Return the names of the partitions whose SM counts a plan has.

    Raises:
        ConfigError: no instruction of the plan overlaps, so that no SM count is planned.
    """
    used = {choice.partition for _, i in plan.keyed for choice in i.partitions}
    if not used:
        raise ConfigError(
            f"plan '{plan.selector}' of {plan.method}: no instruction overlaps, so that collectives take NCCL's own SM "
            "counts and there is nothing to limit; its clocks are followed by kareus.adapters.megatron."
        )
    return sorted(used)


def plan_cost(plan: Plan, workload: Workload, graphs: Graphs, steps: KnownSteps) -> ComposedIteration:
    """Evaluate a plan on the GPU model."""
    gpu, gpus, least_w = workload.gpu, workload.parallelism.gpus_per_stage, least_waiting_w(workload.gpu)
    costs = [
        (time_s, sustained_j(gpu, time_s * power_w, time_s))
        for time_s, power_w in instruction_costs(plan.keyed, workload, graphs, steps)
    ]
    pipeline = cut(workload, "pipeline")
    return clocked_iteration_cost(
        iteration_dag(pipeline),
        [time_s for time_s, _ in costs],
        [gpus * effective_energy_j(energy_j, time_s, least_w) for time_s, energy_j in costs],
        least_w * workload.parallelism.gpus,
        instructions_by_stage(instructions_of(pipeline)),
        [gpus * waiting_above_w(gpu, i.frequency_mhz) for _, i in plan.keyed],
    )


def with_counts(plan: Plan, groups: Mapping[str, str], counts: SmCounts) -> Plan:
    """Return the plan with the SM counts of its partitions replaced."""

    def changed(instruction: PlannedInstruction) -> PlannedInstruction:
        partitions = tuple(
            dataclasses.replace(choice, sm_count=counts[groups[choice.partition]]) for choice in instruction.partitions
        )
        return dataclasses.replace(instruction, partitions=partitions)

    stages = (dataclasses.replace(s, instructions=tuple(map(changed, s.instructions))) for s in plan.stages)
    return dataclasses.replace(plan, stages=tuple(stages))


def _whole(plan: Plan) -> Plan:
    """Return the plan with every instruction executed sequentially at its clock."""

    def changed(instruction: PlannedInstruction) -> PlannedInstruction:
        return dataclasses.replace(instruction, execution=Execution.SEQUENTIAL, partitions=())

    stages = (dataclasses.replace(s, instructions=tuple(map(changed, s.instructions))) for s in plan.stages)
    return dataclasses.replace(plan, stages=tuple(stages))
