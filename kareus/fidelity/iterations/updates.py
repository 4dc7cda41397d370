"""What the update of the weights costs as a software runs it: gradients in buckets or in one piece, gathers hidden."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kareus.arrays import Array
from kareus.fidelity.iterations.number_formats import CAST_BYTES
from kareus.fidelity.iterations.workloads import IterationSubject
from kareus.gpu_model.energy import collective_switching, held_power_w, idle_power_w
from kareus.gpu_model.model import step_cost
from kareus.gpu_model.network import placed_collective_s
from kareus.graph.records import Direction, Operator, OperatorKind, Scope
from kareus.model.parameters import embedding_parameters, scope_parameters
from kareus.model.precision import BF16_BYTES, FP32_BYTES
from kareus.profile.programs import chunk_shapes
from kareus.update.collectives import Placed, exchange_collectives, reduction_collectives
from kareus.update.costs import stage_parameters, step_costs
from kareus.update.directions import update_directions
from kareus.update.reduction import Slowdown, added_time_s, even_buckets, stage_buckets, window_s
from kareus.workload.config import Workload
from kareus.workload.software import Reduction, Software

ALONE = Slowdown(1.0, 1.0)
"""Of passes and collectives that do not slow each other."""


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """Cost of one instruction of the update."""

    time_s: float
    energy_j: float
    communication_s: float
    """Time of it that collectives take."""


def stage_update(
    subject: IterationSubject,
    stage: int,
    times_s: Mapping[tuple[tuple[int, int], Direction], float],
) -> dict[Direction, UpdateCost]:
    """Return the instructions of a stage's update.

    Args:
        subject: what is predicted, with the GPU that is charged for it.
        stage: from 0.
        times_s: time of each pass, by its place and direction.
    """
    workload, software = subject.workload, subject.software
    clocks = np.array([float(workload.gpu.maximum_clock_mhz)])
    forward_s, backward_s = (
        [times_s[(stage, chunk), direction] for chunk in range(workload.chunks)]
        for direction in (Direction.FORWARD, Direction.BACKWARD)
    )
    costs: dict[Direction, UpdateCost] = {}
    for direction in update_directions(workload, stage):
        if direction is Direction.UPDATE:
            parts = step_costs(workload, stage, clocks)
            gathering = parts.pop("weight gathering", np.zeros((2, 1)))
            if software.gather_beside_forward and gathering.any():
                hidden_s = gathering[0] - _exposed_s(workload, stage, forward_s, float(gathering[0, 0]))
                # The forward beside it has the idle power of this time; moving weights costs the same.
                gathering = gathering - [hidden_s, idle_power_w(workload.gpu, clocks) * hidden_s]
            casting = _weight_casts(workload, stage, clocks) if subject.in_fp8 else np.zeros((2, 1))
            time_s, energy_j = np.sum([*parts.values(), gathering, casting], axis=0)[:, 0]
            costs[direction] = UpdateCost(float(time_s), float(energy_j), float(gathering[0, 0]))
        elif direction is Direction.GRADIENT_REDUCTION and software.reduction is Reduction.BUCKETS:
            costs[direction] = _bucketed(workload, software, stage, backward_s)
        else:
            costs[direction] = _exchanged(workload, software, stage, direction)
    return costs


def _bucketed(workload: Workload, software: Software, stage: int, backward_s: Sequence[float]) -> UpdateCost:
    """Cost of summing gradients bucket by bucket beside the last backwards of the stage's chunks.

    That both are slower beside each other is left out: links are mostly idle.
    """
    gpu, parts = workload.gpu, scope_parameters(workload.model, workload.parallelism)
    costs = {scope: _summed(workload, software, stage, parts[scope]) for scope in Scope}
    buckets = _buckets(workload, stage, backward_s)
    times_s = [costs[scope].time_s for scope, _ in buckets]
    added_s = added_time_s(window_s(workload.parallelism.pp, backward_s), [at_s for _, at_s in buckets], times_s, ALONE)
    idle_w = float(idle_power_w(gpu, np.array(float(gpu.maximum_clock_mhz))))
    moving_j = sum(costs[scope].energy_j - idle_w * costs[scope].time_s for scope, _ in buckets)
    return UpdateCost(added_s, moving_j + idle_w * added_s, added_s)


def _exposed_s(workload: Workload, stage: int, forward_s: Sequence[float], gathering_s: float) -> float:
    """Time that gathering weights bucket by bucket adds to the first forwards of the stage's chunks.

    A forward needs buckets in the opposite order of that in which a backward completes them: it is the reduction
    beside the last backwards, run from its end.
    """
    parts = scope_parameters(workload.model, workload.parallelism)
    buckets = _buckets(workload, stage, forward_s)
    of_parameter_s = gathering_s / sum(parts[scope] for scope, _ in buckets)
    times_s = [of_parameter_s * parts[scope] for scope, _ in buckets]
    return added_time_s(window_s(workload.parallelism.pp, forward_s), [at_s for _, at_s in buckets], times_s, ALONE)


def _buckets(workload: Workload, stage: int, passes_s: Sequence[float]) -> list[tuple[Scope, float]]:
    """Buckets of a stage and when its backwards complete them, each taking the same time of a pass."""
    shapes = chunk_shapes(workload.parallelism.split, workload.chunks)
    chunks = [even_buckets(shapes[stage, chunk]) for chunk in range(workload.chunks)]
    return stage_buckets(workload.parallelism.pp, chunks, passes_s)


def _weight_casts(workload: Workload, stage: int, clocks_mhz: Array) -> Array:
    """Cost of casting the weights of a stage's blocks to fp8, once an iteration (Transformer Engine keeps them)."""
    values = workload.parallelism.split[stage] * scope_parameters(workload.model, workload.parallelism)[Scope.BLOCK]
    cast = Operator(
        name="cast",
        kind=OperatorKind.MEMORY,
        shape=(values,),
        flops=0,
        bytes_read=BF16_BYTES * values,
        bytes_written=(CAST_BYTES - BF16_BYTES) * values,
        kernels=1,
    )
    return step_cost(workload.gpu, (cast,), None, clocks_mhz, 0, 0)[:2]


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
        own_w = idle_power_w(gpu, clock)[0] + held_power_w(gpu, sm_count, clock)[0]
        energy_j += float(collective_switching(gpu, one).at_j(gpu, clock)[0] + own_w * own_s)
    return UpdateCost(time_s, energy_j, time_s)
