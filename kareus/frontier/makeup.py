"""What an overlapped instruction consists of, and what the parts measured alone miss of the whole.

Between the partitions of a block streams synchronise, the host keeps up and caches are cold; measured again and again
alone, partitions have less of that. Default nanobatching consists of the same parts and is measured both ways: as whole
instructions, and part by part. So what isolation misses of it is measured, and holds for other schedules of the same
partitions.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kareus.errors import StageInputError
from kareus.gpu_model.thermal import mean_temperature_c
from kareus.graph.interleave import block_segments, interleave, partition_of
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, Direction
from kareus.profile.programs import StageShape, component_name, outer_segments, unpaired_name


class ExecutionCost(NamedTuple):
    """Cost of one execution on one GPU."""

    time_s: float
    energy_j: float
    temperature_c: float | None = None
    """Mean temperature of the GPU while the energy was measured; None where it is not known."""
    time_error_s: float = 0.0
    """Standard error, as the next; 0 where costs are known."""
    energy_error_j: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Makeup:
    """What one overlapped instruction consists of."""

    partitions: Mapping[str, int]
    """How often each kind of partition occurs."""
    edges: Mapping[str, int]
    """How often each unpaired part of a block occurs, as the first segment and the last collective."""
    outer: Mapping[str, int]
    """How often each component outside the blocks occurs."""


def overlap_makeup(
    nanobatch: BlockGraph,
    microbatch: BlockGraph,
    shape: StageShape,
    direction: Direction,
    *,
    recomputation: Recomputation,
) -> Makeup:
    """Count partitions and components of an overlapped instruction by walking its staggered nanobatches."""
    segments = block_segments(nanobatch, shape.layers, direction, recomputation=recomputation)
    partitions: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    for pair in interleave(segments):
        if pair.segment is None or pair.collective is None:
            edges[unpaired_name(pair)] += 1
        else:
            partitions[partition_of(pair.segment, pair.collective).name] += 1
    outer = Counter(component_name(s) for s in outer_segments(microbatch, shape, direction))
    return Makeup(partitions=partitions, edges=edges, outer=outer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What a whole instruction costs beyond its parts measured alone; the same at all clocks."""

    time_scale: float
    """Time of its blocks, over the sum of their parts."""
    energy_scale: float
    around: ExecutionCost
    """Beside all parts, whatever they are."""
    time_scale_error: float = 0.0
    """Standard error from the noise of measuring, as the next; 0 where costs are known."""
    energy_scale_error: float = 0.0


def cost_of_parts(
    counts: Mapping[str, int], components: Mapping[str, Mapping[int, ExecutionCost]], frequency_mhz: int
) -> ExecutionCost:
    """Return the cost of parts at a clock, `counts` times each."""
    costs = [(n, components[name][frequency_mhz]) for name, n in counts.items()]
    return ExecutionCost(
        sum(n * cost.time_s for n, cost in costs),
        sum(n * cost.energy_j for n, cost in costs),
        mean_temperature_c((n * cost.time_s, cost.temperature_c) for n, cost in costs),
        math.hypot(*(n * cost.time_error_s for n, cost in costs)),
        math.hypot(*(n * cost.energy_error_j for n, cost in costs)),
    )


def measured_overheads(
    makeup: Makeup,
    components: Mapping[str, Mapping[int, ExecutionCost]],
    whole: Mapping[int, ExecutionCost],
    around: ExecutionCost,
) -> Overheads:
    """Return what default nanobatching tells of the overheads of an instruction.

    Args:
        makeup: what the instruction consists of.
        components: measured costs by component and clock; partitions under their default schedules are among them.
        whole: measured costs of the instruction under default nanobatching, by clock.
        around: what a whole instruction costs beside its parts, whatever they are.

    Raises:
        StageInputError: partitions were measured under their default schedules at no common clock, or the whole costs
            less than what is outside its blocks.
    """
    clocks = sorted(set(whole).intersection(*(components.get(name, {}) for name in makeup.partitions)))
    if not clocks:
        raise StageInputError(
            "components",
            f"{', '.join(makeup.partitions)}: not measured under their default schedules at a common clock; rerun the "
            "stage 'profile'.",
        )
    alone = [cost_of_parts({**makeup.partitions, **makeup.edges}, components, clock) for clock in clocks]
    outer = [cost_of_parts(makeup.outer, components, clock) for clock in clocks]
    blocks = [_difference(whole[clock], own, around) for clock, own in zip(clocks, outer, strict=True)]
    if min(min(cost.time_s, cost.energy_j) for cost in blocks) <= 0:
        raise StageInputError(
            "instructions",
            f"an instruction with {', '.join(makeup.outer)} costs less than these alone; measure both again.",
        )
    alone_s, alone_j = sum(cost.time_s for cost in alone), sum(cost.energy_j for cost in alone)
    time, energy = sum(cost.time_s for cost in blocks) / alone_s, sum(cost.energy_j for cost in blocks) / alone_j
    time_errors_s = [*(cost.time_error_s for cost in blocks), *(time * cost.time_error_s for cost in alone)]
    energy_errors_j = [*(cost.energy_error_j for cost in blocks), *(energy * cost.energy_error_j for cost in alone)]
    return Overheads(
        time_scale=time,
        energy_scale=energy,
        around=around,
        time_scale_error=math.hypot(*time_errors_s) / alone_s,
        energy_scale_error=math.hypot(*energy_errors_j) / alone_j,
    )


def _difference(whole: ExecutionCost, part: ExecutionCost, around: ExecutionCost) -> ExecutionCost:
    return ExecutionCost(
        whole.time_s - part.time_s - around.time_s,
        whole.energy_j - part.energy_j - around.energy_j,
        None,
        math.hypot(whole.time_error_s, part.time_error_s),
        math.hypot(whole.energy_error_j, part.energy_error_j),
    )
