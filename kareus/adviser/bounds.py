"""Bounds of a layout: the time that no plan undercuts, and the energy that none undercuts within a time.

A stage waits for its first microbatch to pass the stages before it, computes all microbatches, reduces gradients and
updates its weights; its last backward passes the stages before it on the way back. So of a deadline T a stage has for
its instructions what these waits leave, and by duality its least effective energy within that is, at every price of
time, at least the sum of its instructions' least cost at that price, less the price times the time left.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from kareus.adviser.prices import FASTEST, NOTHING, PRICES_W, InstructionPrices, Priced, StructureCosts
from kareus.arrays import Array, Indices
from kareus.gpu_model.waiting import least_waiting_w, total_energy_j
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Direction, instruction_directions
from kareus.pareto import ROUNDING, pareto_front
from kareus.profile.programs import StageShape, laid_out_shapes
from kareus.profile.sharded import ShardedWeights
from kareus.workload.config import Workload

SLOWEST = 2.2
"""Largest deadline that is bounded by itself, relative to the least time."""
DEADLINES = 1 + (SLOWEST - 1) * np.linspace(0, 1, 48) ** 2
"""Deadlines that are bounded, relative to the least time: denser where frontiers are steep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One pipeline stage in one iteration, of one of its GPUs."""

    microbatch: Priced
    """All its instructions of one microbatch."""
    forward_s: float
    """Least time of a forward of its first chunk."""
    backward_s: float
    """Least time of a backward, or of an input gradient, of its first chunk."""
    update: Priced
    """Reduction of gradients and update of the weights."""
    reduction_s: float
    """Most time of the reduction, in which the gradient may still be on its way to the first stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUpdate:
    """The update of the weights of one stage, of one of its GPUs."""

    priced: Priced
    """All its instructions."""
    reduction_s: float
    """Most time of the reduction of gradients; 0 where there is none."""


NO_UPDATE = StageUpdate(priced=NOTHING, reduction_s=0.0)


@dataclass(frozen=True)
class Bound:
    """What no plan of a layout undercuts."""

    times_s: Array
    """Rising deadlines from the least time on."""
    falling_j: Array
    """Least energy beside waiting within each deadline, of all GPUs; never rises."""
    floor_j: float
    """Least energy beside waiting, however long an iteration takes."""
    waiting_w: float
    """Blocking power of all GPUs, which every second of the iteration costs on top."""

    @property
    def fastest_s(self) -> float:
        """Least time."""
        return float(self.times_s[0])

    @cached_property
    def energies_j(self) -> Array:
        """Energy that no plan undercuts that takes as long as each deadline."""
        return total_energy_j(self.falling_j, self.times_s, self.waiting_w)

    @property
    def least_j(self) -> float:
        """Least energy at any time."""
        return float(min(self.energies_j.min(), self.between_j[-1]))

    @cached_property
    def between_j(self) -> Array:
        """Energy that no plan undercuts that takes at least as long as a deadline, and less than the next."""
        return total_energy_j(np.append(self.falling_j[1:], self.floor_j), self.times_s, self.waiting_w)


def compute_together(workloads: Iterable[Workload], costs: InstructionPrices) -> None:
    """Price all that `computing_bound` of these workloads asks for, at once what differs in the number of blocks."""
    asked: dict[int, tuple[StructureCosts, set[tuple[StageShape, Direction, Recomputation]]]] = {}
    for workload in workloads:
        structure = costs.of(workload)
        directions = instruction_directions(split_backward=workload.split_backward)
        shapes = set(laid_out_shapes(workload).values())
        _, of_structure = asked.setdefault(id(structure), (structure, set()))
        of_structure.update(product(shapes, directions, [workload.recomputation]))
    for structure, instructions in asked.values():
        structure.compute(instructions)


def computing_bound(workload: Workload, costs: InstructionPrices) -> Bound:
    """Return the bound from operators alone: no collectives, no transfers, no update."""
    structure, stages = costs.of(workload), workload.parallelism.pp

    def priced(shape: StageShape, direction: Direction, _weights: ShardedWeights | None) -> Priced:
        return structure.computing(shape, direction, workload.recomputation)

    return bound_of(workload, stage_costs(workload, priced, [NO_UPDATE] * stages), [0.0] * stages)


def bound_of(workload: Workload, stages: Sequence[StageCost], boundaries_s: Sequence[float]) -> Bound:
    """Return the bound of a layout whose stages cost this.

    Args:
        workload: in its layout.
        stages: of one GPU each.
        boundaries_s: least seconds of a message over each boundary between stages.
    """
    idle_s = _idle_s(workload, stages, boundaries_s)
    all_work = _all_work(workload, stages)
    fastest_s = max(float(work.time_s[FASTEST]) + idle for work, idle in zip(all_work, idle_s, strict=True))
    times_s = fastest_s * DEADLINES

    duals_j = np.array([work.dual_j for work in all_work])  # [stages, prices]
    left_s = times_s[None, :] - idle_s[:, None]  # [stages, deadlines]
    least_j = (duals_j[:, :FASTEST, None] - PRICES_W[:FASTEST, None] * left_s[:, None, :]).max(axis=1)
    gpus = workload.parallelism.gpus_per_stage
    return Bound(
        times_s=times_s,
        falling_j=gpus * least_j.sum(axis=0),
        floor_j=gpus * float(duals_j[:, 0].sum()),
        waiting_w=least_waiting_w(workload.gpu) * workload.parallelism.gpus,
    )


def stage_prices(
    workload: Workload, stages: Sequence[StageCost], boundaries_s: Sequence[float], bound: Bound
) -> Indices:
    """Return the lowest price at which each stage keeps each deadline of its bound: indices, [stages, deadlines]."""
    left_s = bound.times_s[None, :] - _idle_s(workload, stages, boundaries_s)[:, None]
    work_s = np.array([work.time_s for work in _all_work(workload, stages)])
    keeps = work_s[:, :, None] <= left_s[:, None, :] * (1 + ROUNDING)  # times fall with the price
    lowest: Indices = np.where(keeps.any(axis=1), keeps.argmax(axis=1), len(PRICES_W) - 1)
    return lowest


def _all_work(workload: Workload, stages: Sequence[StageCost]) -> list[Priced]:
    """All that each stage has to do in an iteration; equal stages are one record."""
    alike = {
        id(s): s.microbatch.times(workload.num_microbatches) + s.update for s in {id(s): s for s in stages}.values()
    }
    return [alike[id(stage)] for stage in stages]


def _idle_s(workload: Workload, stages: Sequence[StageCost], boundaries_s: Sequence[float]) -> Array:
    """Least time in which each stage has nothing to do: its first microbatch and its last gradient are on their way."""
    ahead_s = np.cumsum([0.0, *(stage.forward_s + s for stage, s in zip(stages[:-1], boundaries_s, strict=False))])
    behind_s = np.cumsum([0.0, *(stage.backward_s + s for stage, s in zip(stages[:-1], boundaries_s, strict=False))])
    if workload.split_backward:  # weight gradients fill the time in which the last gradient is on its way
        behind_s = np.zeros_like(behind_s)
    on_its_way_s = np.maximum(behind_s - [stage.reduction_s for stage in stages], 0.0)
    idle: Array = ahead_s + on_its_way_s
    return idle


def stage_costs(
    workload: Workload,
    priced: Callable[[StageShape, Direction, ShardedWeights | None], Priced],
    updates: Sequence["StageUpdate"],
    weights_of: Callable[[int, StageShape], ShardedWeights | None] = lambda _stage, _shape: None,
) -> list[StageCost]:
    """Return what each stage of a layout costs; stages that compute the same share it.

    Args:
        workload: in its layout.
        priced: cost of an instruction, by shape of the chunk, direction, and collectives of weights.
        updates: of each stage.
        weights_of: these collectives, by stage and shape; equal ones are one record.
    """
    directions = instruction_directions(split_backward=workload.split_backward)
    shapes = laid_out_shapes(workload)
    costs: dict[object, StageCost] = {}
    stages = []
    for stage, update in enumerate(updates):
        chunk_shapes = tuple(shapes[stage, chunk] for chunk in range(workload.chunks))
        weights = [weights_of(stage, shape) for shape in chunk_shapes]
        key = chunk_shapes, tuple(map(id, weights)), id(update)
        if key not in costs:
            chunks = list(zip(chunk_shapes, weights, strict=True))
            by = {direction: [priced(shape, direction, those) for shape, those in chunks] for direction in directions}
            costs[key] = StageCost(
                microbatch=sum((cost for of_chunks in by.values() for cost in of_chunks), NOTHING),
                forward_s=float(by[Direction.FORWARD][0].time_s[FASTEST]),
                backward_s=float(by[directions[1]][0].time_s[FASTEST]),
                update=update.priced,
                reduction_s=update.reduction_s,
            )
        stages.append(costs[key])
    return stages


class KnownPlans:
    """Times and energies of plans that there are."""

    def __init__(self) -> None:
        self._front: Array = np.empty((0, 2))

    def add(self, costs: Iterable[tuple[float, float]]) -> None:
        """Add plans, as (seconds, joules)."""
        self._front = pareto_front(np.array([*self._front.tolist(), *costs], dtype=np.float64).reshape(-1, 2))

    def rule_out(self, bound: Bound) -> bool:
        """Return whether a known plan takes neither longer nor more energy than whatever plan a bound leaves open."""
        if not len(self._front):
            return False
        known_s, known_j = self._front[:, 0] * (1 + ROUNDING), self._front[:, 1] * (1 + ROUNDING)
        least_j = np.append(np.inf, known_j)[np.searchsorted(known_s, bound.times_s, side="right")]
        return bool((least_j <= bound.between_j).all())
