"""The makeup of an overlapped instruction: its parts, and what they, measured alone, miss of the whole.

Between operators streams synchronise, the host keeps up and caches are cold; measured again and again alone, partitions
have less of that. Default nanobatching consists of the same parts and is measured both ways: as whole instructions, and
part by part. So what isolation misses is measured, and is taken to be the same under other schedules of the partitions:
they move collectives beside the operators, and change nothing between these.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kareus.errors import StageInputError
from kareus.graph.interleave import partition_of, staggered
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, Direction
from kareus.profile.programs import StageShape, component_name, outer_segments, unpaired_name

WithError = tuple[float, float]
"""A value and its standard error."""


class ExecutionCost(NamedTuple):
    """Cost of one execution on one GPU that does such work for long."""

    time_s: float
    energy_j: float
    time_error_s: float = 0.0
    """Standard error, as the next; 0 where costs are known."""
    energy_error_j: float = 0.0
    is_power_limited: bool = False
    """Whether the power limit kept the GPU below the clock."""


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
    partitions: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    for pair in staggered(nanobatch, shape.layers, direction, recomputation=recomputation, dense=shape.dense):
        if pair.segment is None or pair.collective is None:
            edges[unpaired_name(pair)] += 1
        else:
            partitions[partition_of(pair.segment, pair.collective).name] += 1
    outer = Counter(
        component_name(s) for s in outer_segments(microbatch, shape, direction, recomputation=recomputation)
    )
    return Makeup(partitions=partitions, edges=edges, outer=outer)


def cost_of_parts(
    counts: Mapping[str, int], components: Mapping[str, Mapping[int, ExecutionCost]], frequency_mhz: int
) -> ExecutionCost:
    """Return the cost of parts at a clock, `counts` times each."""
    return _sum_of_parts([(n, components[name][frequency_mhz]) for name, n in counts.items()])


def missed_costs(
    makeup: Makeup, components: Mapping[str, Mapping[int, ExecutionCost]], whole: Mapping[int, ExecutionCost]
) -> dict[int, ExecutionCost]:
    """Return what default nanobatching tells an instruction to cost beyond its parts, by clock.

    That is a share of its cost as a whole: the same share at all clocks, so that a few tell it.

    Args:
        makeup: what the instruction consists of.
        components: measured costs by component and clock; partitions under their default schedules are among them.
        whole: measured costs of the instruction under default nanobatching, by clock.

    Raises:
        StageInputError: partitions were measured under their default schedules at no common clock.
    """
    clocks = sorted(set(whole).intersection(*(components.get(name, {}) for name in makeup.partitions)))
    if not clocks:
        raise StageInputError(
            "components",
            f"{', '.join(makeup.partitions)}: not measured under their default schedules at a common clock; rerun the "
            "stage 'profile'.",
        )
    counts = {**makeup.partitions, **makeup.edges, **makeup.outer}
    parts = _sum_of_parts([(n, _sum_over_clocks(components[name], clocks)) for name, n in counts.items()])
    measured = _sum_over_clocks(whole, clocks)
    time_share, time_error = _missed_share((parts.time_s, parts.time_error_s), (measured.time_s, measured.time_error_s))
    energy_share, energy_error = _missed_share(
        (parts.energy_j, parts.energy_error_j), (measured.energy_j, measured.energy_error_j)
    )
    return {
        f: ExecutionCost(
            time_share * cost.time_s,
            energy_share * cost.energy_j,
            time_error * cost.time_s,
            energy_error * cost.energy_j,
            cost.is_power_limited,
        )
        for f, cost in whole.items()
    }


def _sum_of_parts(costs: Sequence[tuple[int, ExecutionCost]]) -> ExecutionCost:
    """Return the cost of parts that were measured independently, each as often as it is counted."""
    return ExecutionCost(
        sum(n * cost.time_s for n, cost in costs),
        sum(n * cost.energy_j for n, cost in costs),
        math.hypot(*(n * cost.time_error_s for n, cost in costs)),
        math.hypot(*(n * cost.energy_error_j for n, cost in costs)),
        any(cost.is_power_limited for _, cost in costs),
    )


def _sum_over_clocks(curve: Mapping[int, ExecutionCost], clocks_mhz: Sequence[int]) -> ExecutionCost:
    """Return the cost of one program once at each clock.

    Errors add up: estimates of a program share the error of the level of its curve.
    """
    costs = [curve[f] for f in clocks_mhz]
    return ExecutionCost(
        sum(cost.time_s for cost in costs),
        sum(cost.energy_j for cost in costs),
        time_error_s=sum(cost.time_error_s for cost in costs),
        energy_error_j=sum(cost.energy_error_j for cost in costs),
    )


def _missed_share(parts: WithError, whole: WithError) -> WithError:
    """Return what parts alone miss of the whole, as a share of it."""
    remaining = parts[0] / whole[0]
    return 1 - remaining, math.hypot(parts[1], remaining * whole[1]) / whole[0]
