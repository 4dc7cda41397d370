"""What the update of the weights costs as a software runs it: gradients in buckets or in one piece, gathers hidden."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kareus.gpu_model.energy import collective_switching, idle_power_w
from kareus.gpu_model.network import placed_collective_s
from kareus.graph.records import Direction, Scope
from kareus.model.parameters import embedding_parameters, scope_parameters
from kareus.model.precision import FP32_BYTES
from kareus.profile.programs import chunk_shapes
from kareus.update.collectives import Placed, exchange_collectives, reduction_collectives
from kareus.update.costs import stage_parameters, step_costs
from kareus.update.directions import update_directions
from kareus.update.reduction import Slowdown, added_time_s
from kareus.workload.config import Workload
from kareus.workload.software import Reduction, Software


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """Cost of one instruction of the update."""

    time_s: float
    energy_j: float
    communication_s: float
    """Time of it that collectives take."""


def stage_update(
    workload: Workload,
    software: Software,
    stage: int,
    times_s: Mapping[tuple[tuple[int, int], Direction], float],
) -> dict[Direction, UpdateCost]:
    """Return the instructions of a stage's update."""
    clocks = np.array([float(workload.gpu.maximum_clock_mhz)])
    backward_s = [times_s[(stage, chunk), Direction.BACKWARD] for chunk in range(workload.chunks)]
    costs: dict[Direction, UpdateCost] = {}
    for direction in update_directions(workload, stage):
        if direction is Direction.UPDATE:
            parts = step_costs(workload, stage, clocks)
            gathering = parts.pop("weight gathering", np.zeros((2, 1)))
            if software.gather_beside_forward:
                forward_s = sum(times_s[(stage, chunk), Direction.FORWARD] for chunk in range(workload.chunks))
                hidden_s = gathering[0] * (1 - _exposed_share(workload, float(gathering[0, 0]), forward_s))
                # The forward beside it has the idle power of this time; moving weights costs the same.
                gathering = gathering - [hidden_s, idle_power_w(workload.gpu, clocks) * hidden_s]
            time_s, energy_j = np.sum([*parts.values(), gathering], axis=0)[:, 0]
            costs[direction] = UpdateCost(float(time_s), float(energy_j), float(gathering[0, 0]))
        elif direction is Direction.GRADIENT_REDUCTION and software.reduction is Reduction.BUCKETS:
            costs[direction] = _bucketed(workload, software, stage, backward_s)
        else:
            costs[direction] = _exchanged(workload, software, stage, direction)
    return costs


def _bucketed(workload: Workload, software: Software, stage: int, backward_s: Sequence[float]) -> UpdateCost:
    """Cost of summing gradients block by block beside the last backwards of the stage's chunks.

    Blocks of a chunk complete their gradients at equal distances. Between the last backwards of two chunks as many
    backwards run as there are stages. That both are slower beside each other is left out: links are mostly idle.
    """
    parallelism, gpu = workload.parallelism, workload.gpu
    shapes = chunk_shapes(parallelism.split, workload.chunks)
    parts = scope_parameters(workload.model, parallelism)
    costs = {scope: _summed(workload, software, stage, parts[scope]) for scope in Scope}
    began_s, ready_s, buckets = 0.0, list[float](), list[Scope]()
    for chunk in reversed(range(workload.chunks)):
        shape, own_s = shapes[stage, chunk], backward_s[chunk]
        layers = max(shape.layers, 1)
        ready_s += [began_s + own_s * (n + 1) / layers for n in range(shape.layers)]
        buckets += [Scope.BLOCK] * shape.layers
        ends = [Scope.HEAD] * shape.last + [Scope.EMBEDDING] * shape.first
        ready_s += [began_s + own_s] * len(ends)
        buckets += ends
        began_s += own_s if chunk == 0 else parallelism.pp * own_s
    added_s = added_time_s(began_s, ready_s, [costs[scope].time_s for scope in buckets], Slowdown(1.0, 1.0))
    idle_w = float(idle_power_w(gpu, np.array(float(gpu.maximum_clock_mhz))))
    moving_j = sum(costs[scope].energy_j - idle_w * costs[scope].time_s for scope in buckets)
    return UpdateCost(added_s, moving_j + idle_w * added_s, added_s)


def _exposed_share(workload: Workload, gathering_s: float, forward_s: float) -> float:
    """Share of a gather of weights that a forward does not hide: the first bucket, and what exceeds the forward."""
    first = workload.chunks / max(workload.parallelism.split[0], 1)
    if not gathering_s:
        return 0.0
    return min(1.0, max(first, 1 - forward_s / gathering_s))


def _exchanged(workload: Workload, software: Software, stage: int, direction: Direction) -> UpdateCost:
    """Cost of summing gradients in one piece, with nothing beside it."""
    if direction is Direction.GRADIENT_REDUCTION:
        return _summed(workload, software, stage, stage_parameters(workload, stage))
    embedding = embedding_parameters(workload.model, workload.parallelism)
    return _sum(workload, software, exchange_collectives(workload.parallelism, workload.gpu, embedding))


def _summed(workload: Workload, software: Software, stage: int, parameters: int) -> UpdateCost:
    """Cost of summing the gradients of as many parameters over the replicas of a stage."""
    return _sum(workload, software, reduction_collectives(workload.parallelism, workload.gpu, stage, parameters))


def _sum(workload: Workload, software: Software, found: Sequence[Placed]) -> UpdateCost:
    gpu = workload.gpu
    clock = np.array([float(gpu.maximum_clock_mhz)])
    sm_count = np.full_like(clock, workload.default_collective_sm_count)
    time_s = energy_j = 0.0
    for whole, placement in found:
        one = replace(whole, message_bytes=whole.message_bytes * software.gradient_bytes // FP32_BYTES)
        own_s = float(placed_collective_s(gpu, one, placement, clock, sm_count)[0])
        time_s += own_s
        energy_j += float(collective_switching(gpu, one).at_j(gpu, clock)[0] + idle_power_w(gpu, clock)[0] * own_s)
    return UpdateCost(time_s, energy_j, time_s)
