"""Microbatch frontiers: every point that an instruction of a stage can run at, by method.

Sequential execution competes with partitioned overlap at every frequency (execution model switching), so
the frontier of `kareus` is the Pareto set of the union.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.frontier.compose import ComposedPoint, Option, RepeatedPartition, compose, effective
from kareus.frontier.makeup import ExecutionCost, Makeup, Overheads, cost_of_parts
from kareus.gpu_model.thermal import mean_temperature_c
from kareus.pareto import pareto_mask
from kareus.profile.programs import Execution
from kareus.schedule.records import Choice


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


def overlap_points(
    makeup: Makeup,
    options: Mapping[str, Mapping[int, tuple[Option, ...]]],
    components: Mapping[str, Mapping[int, ExecutionCost]],
    overheads: Overheads,
    blocking_power_w: float,
) -> list[Point]:
    """Points of partitioned overlap, at every frequency at which all partitions were measured.

    The sum over the isolated parts of blocks is scaled by what isolation misses of them, then the rest is added.

    Args:
        makeup: what the instruction consists of.
        options: measured options by partition and frequency.
        components: measured costs by component and frequency.
        overheads: what isolation misses of the whole.
        blocking_power_w: what waiting for other stages draws.
    """
    frequencies = set.intersection(*(set(options.get(name, {})) for name in makeup.partitions))
    points = []
    for frequency_mhz in sorted(frequencies):
        parts = [
            RepeatedPartition(multiplicity=n, options=options[name][frequency_mhz])
            for name, n in makeup.partitions.items()
        ]
        edges = cost_of_parts(makeup.edges, components, frequency_mhz)
        outer = cost_of_parts(makeup.outer, components, frequency_mhz)
        points += [
            _point(composed, edges, outer, overheads, frequency_mhz) for composed in compose(parts, blocking_power_w)
        ]
    return points


def _point(
    composed: ComposedPoint, edges: ExecutionCost, outer: ExecutionCost, overheads: Overheads, frequency_mhz: int
) -> Point:
    blocks_s, blocks_j = composed.time_s + edges.time_s, composed.energy_j + edges.energy_j
    return Point(
        execution=Execution.OVERLAP,
        frequency_mhz=frequency_mhz,
        time_s=overheads.time_scale * blocks_s + outer.time_s + overheads.around.time_s,
        energy_j=overheads.energy_scale * blocks_j + outer.energy_j + overheads.around.energy_j,
        temperature_c=mean_temperature_c(
            [
                (overheads.time_scale * composed.time_s, composed.temperature_c),
                (overheads.time_scale * edges.time_s, edges.temperature_c),
                (outer.time_s, outer.temperature_c),
            ]
        ),
        choices=composed.choices,
        is_thinned=composed.is_thinned,
        time_error_s=math.hypot(
            overheads.time_scale * composed.time_error_s,
            overheads.time_scale * edges.time_error_s,
            overheads.time_scale_error * blocks_s,
            outer.time_error_s,
        ),
        energy_error_j=math.hypot(
            overheads.energy_scale * composed.energy_error_j,
            overheads.energy_scale * edges.energy_error_j,
            overheads.energy_scale_error * blocks_j,
            outer.energy_error_j,
        ),
    )


def frontier(points: Sequence[Point], blocking_power_w: float) -> list[Point]:
    """The points that no other dominates in (time, effective energy), by rising time."""
    mask = frontier_mask(points, blocking_power_w)
    return sorted((p for p, kept in zip(points, mask, strict=True) if kept), key=lambda p: p.time_s)


def frontier_mask(points: Sequence[Point], blocking_power_w: float) -> list[bool]:
    """Whether each point is on the frontier of all of them."""
    costs = np.array([(p.time_s, p.energy_j) for p in points]).reshape(-1, 2)
    mask: list[bool] = pareto_mask(effective(costs, blocking_power_w)).tolist()
    return mask
