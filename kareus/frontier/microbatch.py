"""Microbatch frontiers: every point that an instruction of a stage can run at, by method.

Sequential execution competes with partitioned overlap at every frequency (execution model switching), so
the frontier of `kareus` is the Pareto set of the union.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kareus.frontier.compose import Option, RepeatedPartition, compose, effective
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.thermal import mean_temperature_c
from kareus.graph.interleave import block_segments, interleave, partition_of
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, Direction
from kareus.pareto import pareto_mask
from kareus.profile.programs import (
    Execution,
    StageShape,
    component_name,
    outer_segments,
    unpaired_name,
)
from kareus.schedule.records import Choice


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
class Point:
    """One way to run an instruction."""

    execution: Execution
    frequency_mhz: int
    time_s: float
    energy_j: float
    temperature_c: float | None = None
    """Mean temperature of the GPU while what it is composed of was measured; None where it is not known."""
    choices: tuple[Choice, ...] = ()
    is_thinned: bool = False
    """Whether non-dominated points of its clock were left out (see `ComposedPoint`)."""
    time_error_s: float = 0.0
    """Standard error from the noise of measuring, as the next; 0 where costs are known."""
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


def overlap_points(
    makeup: Makeup,
    options: Mapping[str, Mapping[int, tuple[Option, ...]]],
    components: Mapping[str, Mapping[int, ExecutionCost]],
    gpu: Gpu,
) -> list[Point]:
    """Points of partitioned overlap, at every frequency at which all partitions were measured.

    The sum over the isolated parts of blocks is scaled by what isolation misses, then the rest is added.

    Args:
        makeup: what the instruction consists of.
        options: measured options by partition and frequency.
        components: measured costs by component and frequency.
        gpu: whose powers and overheads apply.
    """
    frequencies = set.intersection(*(set(options.get(name, {})) for name in makeup.partitions))
    points = []
    for frequency_mhz in sorted(frequencies):
        parts = [
            RepeatedPartition(multiplicity=n, options=options[name][frequency_mhz])
            for name, n in makeup.partitions.items()
        ]
        edges = _component_cost(makeup.edges, components, frequency_mhz)
        outer = _component_cost(makeup.outer, components, frequency_mhz)
        for composed in compose(parts, gpu.blocking_power_w):
            blocks = composed.time_s + edges.time_s, composed.energy_j + edges.energy_j
            time_s, energy_j = gpu.whole_instruction(blocks, (outer.time_s, outer.energy_j))
            scale = 1 + gpu.coefficients.isolation_overhead
            points.append(
                Point(
                    execution=Execution.OVERLAP,
                    frequency_mhz=frequency_mhz,
                    time_s=time_s,
                    energy_j=energy_j,
                    temperature_c=mean_temperature_c(
                        [
                            (scale * composed.time_s, composed.temperature_c),
                            (scale * edges.time_s, edges.temperature_c),
                            (outer.time_s, outer.temperature_c),
                        ]
                    ),
                    choices=composed.choices,
                    is_thinned=composed.is_thinned,
                    time_error_s=math.hypot(
                        scale * composed.time_error_s, scale * edges.time_error_s, outer.time_error_s
                    ),
                    energy_error_j=math.hypot(
                        scale * composed.energy_error_j, scale * edges.energy_error_j, outer.energy_error_j
                    ),
                )
            )
    return points


def frontier(points: Sequence[Point], blocking_power_w: float) -> list[Point]:
    """The points that no other dominates in (time, effective energy), by rising time."""
    mask = frontier_mask(points, blocking_power_w)
    return sorted((p for p, kept in zip(points, mask, strict=True) if kept), key=lambda p: p.time_s)


def frontier_mask(points: Sequence[Point], blocking_power_w: float) -> list[bool]:
    """Whether each point is on the frontier of all of them."""
    costs = np.array([(p.time_s, p.energy_j) for p in points]).reshape(-1, 2)
    mask: list[bool] = pareto_mask(effective(costs, blocking_power_w)).tolist()
    return mask


def _component_cost(
    counts: Mapping[str, int], components: Mapping[str, Mapping[int, ExecutionCost]], frequency_mhz: int
) -> ExecutionCost:
    costs = [(n, components[name][frequency_mhz]) for name, n in counts.items()]
    return ExecutionCost(
        sum(n * cost.time_s for n, cost in costs),
        sum(n * cost.energy_j for n, cost in costs),
        mean_temperature_c((n * cost.time_s, cost.temperature_c) for n, cost in costs),
        math.hypot(*(n * cost.time_error_s for n, cost in costs)),
        math.hypot(*(n * cost.energy_error_j for n, cost in costs)),
    )
