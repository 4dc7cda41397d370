"""Microbatch frontiers: every point that an instruction of a stage can run at, by method.

Sequential execution competes with partitioned overlap at every frequency (execution model switching), so
the frontier of `kareus` is the Pareto set of the union.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.frontier.compose import Option, Part, compose, effective
from kareus.pareto import pareto_mask
from kareus.partition.graph import BlockGraph, Direction
from kareus.partition.interleave import block_segments, interleave, partition_of
from kareus.profile.programs import (
    Execution,
    StageShape,
    component_name,
    first_edge,
    last_edge,
    outer_segments,
)
from kareus.schedule.choice import Choice
from kareus.workload.config import Gpu

Cost = tuple[float, float]
"""Time in seconds and energy in joules of one execution on one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One way to run an instruction."""

    execution: Execution
    frequency_mhz: int
    time_s: float
    energy_j: float
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Makeup:
    """What one overlapped instruction consists of."""

    partitions: Mapping[str, int]
    """How often each kind of partition occurs."""
    components: Mapping[str, int]
    """How often each non-partition component occurs."""


def overlap_makeup(
    nanobatch: BlockGraph, microbatch: BlockGraph, shape: StageShape, direction: Direction, *, recompute: bool
) -> Makeup:
    """Count partitions and components of an overlapped instruction by walking its staggered nanobatches."""
    segments = block_segments(nanobatch, shape.layers, direction, recompute=recompute)
    partitions: Counter[str] = Counter()
    components = Counter(component_name(s) for s in outer_segments(microbatch, shape, direction))
    for pair in interleave(segments):
        if pair.segment is None:
            components[last_edge(segments[-1])] += 1
        elif pair.collective is None:
            components[first_edge(pair.segment)] += 1
        else:
            partitions[partition_of(pair.segment, pair.collective).name] += 1
    return Makeup(partitions=partitions, components=components)


def overlap_points(
    makeup: Makeup,
    options: Mapping[str, Mapping[int, tuple[Option, ...]]],
    components: Mapping[str, Mapping[int, Cost]],
    gpu: Gpu,
) -> list[Point]:
    """Points of partitioned overlap, at every frequency at which all partitions were measured.

    The sum over isolated parts is scaled by what isolation misses, then fixed costs are added.

    Args:
        makeup: what the instruction consists of.
        options: measured options by partition and frequency.
        components: measured costs by component and frequency.
        gpu: whose powers and overheads apply.
    """
    frequencies = set.intersection(*(set(options.get(name, {})) for name in makeup.partitions))
    points = []
    for frequency_mhz in sorted(frequencies):
        parts = [Part(multiplicity=n, options=options[name][frequency_mhz]) for name, n in makeup.partitions.items()]
        fixed_s, fixed_j = _component_cost(makeup, components, frequency_mhz)
        for composed in compose(parts, gpu.blocking_power_w):
            time_s, energy_j = gpu.whole_instruction(composed.time_s + fixed_s, composed.energy_j + fixed_j)
            points.append(
                Point(
                    execution=Execution.OVERLAP,
                    frequency_mhz=frequency_mhz,
                    time_s=time_s,
                    energy_j=energy_j,
                    choices=composed.choices,
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
    makeup: Makeup, components: Mapping[str, Mapping[int, Cost]], frequency_mhz: int
) -> tuple[float, float]:
    costs: Iterable[Cost] = [
        (n * components[name][frequency_mhz][0], n * components[name][frequency_mhz][1])
        for name, n in makeup.components.items()
    ]
    return sum(time_s for time_s, _ in costs), sum(energy_j for _, energy_j in costs)
