"""Predicting layouts: what the GPU model says of every plan of a layout, noise-free, without planning it.

A prediction has a bound that no plan undercuts, plans that attain it closely (all instructions at one price of time),
and what the layout costs run as Megatron-LM does. Layouts share instructions, updates and the orders of pipelines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kareus.adviser.bounds import NO_UPDATE, Bound, StageCost, StageUpdate, bound_of, stage_costs, stage_prices
from kareus.adviser.feasible import Candidate
from kareus.adviser.prices import (
    FASTEST,
    NOTHING,
    PRICES_W,
    CostByClock,
    InstructionPrices,
    Priced,
    PricedInstruction,
    cheapest,
    undominated,
)
from kareus.arrays import Array
from kareus.gpu_model.waiting import effective_energy_j, least_waiting_w, total_energy_j, waiting_power_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Batch, Direction, instruction_directions
from kareus.pipeline.instructions import Instruction, shape_instructions, shape_kinds, shape_of
from kareus.pipeline.solver.dag import Dag, earliest_starts_s, makespan, shape_dag
from kareus.pipeline.transfers import transfers_s
from kareus.profile.programs import StageShape, laid_out_shapes, weights_of
from kareus.profile.sharded import ShardedWeights
from kareus.software.trainers import ClockPace, ObeyingTrainer
from kareus.update.costs import pass_times, update_costs
from kareus.workload.config import Workload
from kareus.workload.slices import cut

MOST_TIMED = 20_000
"""Instructions of the largest iteration that is timed whole. A larger one is timed for fewer microbatches: its time is
a maximum over paths, whose lengths are linear in the microbatches, and from so many on the longest stays it."""
KindCosts = Mapping[InstructionKind, tuple[Array, Array]]
"""Seconds and effective joules of one GPU of every kind of instruction, in each lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCost:
    """Time and energy of an iteration, of all GPUs."""

    time_s: float
    energy_j: float

    @property
    def power_w(self) -> float:
        """Mean power of all GPUs over an iteration."""
        return self.energy_j / self.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPrediction:
    """What the GPU model says of a layout."""

    candidate: Candidate
    bound: Bound
    """What no plan of the method `kareus` undercuts."""
    plans: tuple[LayoutCost, ...]
    """Plans that there are, by rising time."""
    sequential: LayoutCost
    """Run as Megatron-LM does, at the maximum clock."""
    bubble_share: float
    """Share of the sequential iteration in which a GPU waits for other stages, mean over GPUs."""
    exposed_share: float
    """Share of it that collectives of blocks add to computation, mean over GPUs."""


class LayoutPredictor:
    """Predicts layouts of one training; keeps what they share."""

    def __init__(self, base: Workload, costs: InstructionPrices, trainer: ObeyingTrainer | None = None) -> None:
        """Prepare for layouts of `base`, whose instructions cost `costs`; `trainer` None is Kareus' engine."""
        self.costs = costs
        self._trainer = trainer
        self._clocks = np.array(base.gpu.search_frequencies.clocks_mhz, dtype=np.float64)
        self._updates: dict[object, dict[Direction, CostByClock]] = {}
        self._weights: dict[object, ShardedWeights | None] = {}
        self._distinct_weights: dict[ShardedWeights | None, ShardedWeights | None] = {}

    def bound(self, workload: Workload) -> Bound:
        """Return the time and the energy that every plan of a layout takes at least."""
        return bound_of(workload, self._stages(workload), transfers_s(cut(workload, "pipeline")))

    def bound_without_update(self, workload: Workload) -> Bound:
        """Return `bound` with updates left out, whose prediction takes as long as all else."""
        stages = self._stage_costs(workload, [NO_UPDATE] * workload.parallelism.pp)
        return bound_of(workload, stages, transfers_s(cut(workload, "pipeline")))

    def bound_beside_weights(self, workload: Workload) -> Bound:
        """Return a bound below `bound_without_update` of a layout that shares out weights, which needs no programs.

        Its instructions are those of layouts that share out no weights, which are priced anyway.
        """
        structure = self.costs.of(workload)

        def priced(shape: StageShape, direction: Direction, weights: ShardedWeights | None) -> Priced:
            assert weights is not None
            return structure.beside(
                shape, direction, workload.recomputation, weights, split_backward=workload.split_backward
            )

        updates, weights_of = [NO_UPDATE] * workload.parallelism.pp, partial(self._weights_of, workload)
        stages = stage_costs(workload, priced, updates, weights_of)
        return bound_of(workload, stages, transfers_s(cut(workload, "pipeline")))

    def _stages(self, workload: Workload) -> list[StageCost]:
        updates = self._stage_updates(workload)
        summed = {
            id(update): _summed(update, workload)
            for update in {id(distinct): distinct for distinct in updates}.values()
        }
        return self._stage_costs(workload, [summed[id(update)] for update in updates])

    def _stage_costs(self, workload: Workload, updates: Sequence[StageUpdate]) -> list[StageCost]:
        def priced(shape: StageShape, direction: Direction, weights: ShardedWeights | None) -> Priced:
            return self._instruction(workload, shape, direction, weights).best

        return stage_costs(workload, priced, updates, partial(self._weights_of, workload))

    def passes(self, workload: Workload, stage: int, shape: StageShape) -> dict[Direction, Priced]:
        """Return what each pass of a microbatch costs through a stage, or a chunk, that has this shape."""
        directions = instruction_directions(split_backward=workload.split_backward)
        weights = self._weights_of(workload, stage, shape)
        return {direction: self._instruction(workload, shape, direction, weights).best for direction in directions}

    def updates(self, workload: Workload) -> list[dict[Direction, Priced]]:
        """Return what the instructions of the update of each stage cost."""
        updates = self._stage_updates(workload)
        return [{direction: _priced(cost, workload) for direction, cost in update.items()} for update in updates]

    def fastest_s(self, workload: Workload) -> float:
        """Return the time of an iteration of a layout in which every instruction is as fast as it can be."""
        fastest = {
            kind: (instruction.best.time_s[FASTEST:], instruction.best.effective_j[FASTEST:])
            for kind, instruction in self._instructions(workload).items()
        }
        for stage, update in enumerate(self._stage_updates(workload)):
            for direction, cost in update.items():
                least = cost.time_s.min(keepdims=True)
                fastest[InstructionKind(stage, 0, direction)] = least, np.zeros(1)
        return float(self._costs_of(workload, fastest, 0.0)[0][0])

    def sequential(self, workload: Workload) -> tuple[LayoutCost, float]:
        """Return what a layout costs run as Megatron-LM does at the maximum clock, and its share of waiting."""
        kinds = self._by_itself(workload, self._stage_updates(workload, sequential=True), slice(-1, None))
        (time_s,), (energy_j,) = self._costs_of(workload, kinds, _most_waiting_w(workload))
        busy_s = sum(
            float(seconds[0]) * (workload.num_microbatches if kind.direction in INSTRUCTIONS else 1)
            for kind, (seconds, _) in kinds.items()
        )
        cost = LayoutCost(time_s=float(time_s), energy_j=float(energy_j))
        return cost, max(0.0, 1 - busy_s / workload.parallelism.pp / cost.time_s)  # rounding, without a pipeline

    def predict(self, candidate: Candidate, bound: Bound) -> LayoutPrediction:
        """Return all of a layout's prediction, whose bound is known."""
        workload = candidate.workload
        sequential, bubble_share = self.sequential(workload)
        transfers = transfers_s(cut(workload, "pipeline"))
        of_stages = stage_prices(workload, self._stages(workload), transfers, bound)
        alike = np.broadcast_to(np.arange(len(PRICES_W)), (len(of_stages), len(PRICES_W)))
        prices = np.concatenate(
            [alike, of_stages], axis=1
        )  # [stages, lanes]: one price for all, and each stage its own
        kinds: dict[InstructionKind, tuple[Array, Array]] = {}
        for kind, instruction in self._instructions(workload).items():
            best = instruction.best
            kinds[kind] = best.time_s[prices[kind.stage]], best.effective_j[prices[kind.stage]]
        for stage, update in enumerate(self._stage_updates(workload)):
            for direction, cost in update.items():
                best = _priced(cost, workload)
                kinds[InstructionKind(stage, 0, direction)] = (
                    best.time_s[prices[stage]],
                    best.effective_j[prices[stage]],
                )
        times_s, energies_j = self._costs_of(workload, kinds, _most_waiting_w(workload))  # clocks are not kept
        if self.has_one_clock:
            times_s, energies_j = self._costs_at_each_clock(workload)
        plans = [
            LayoutCost(time_s=float(time_s), energy_j=float(energy_j))
            for time_s, energy_j in sorted(zip(times_s, energies_j, strict=True))
        ]
        return LayoutPrediction(
            candidate=candidate,
            bound=bound,
            plans=tuple(plans),
            sequential=sequential,
            bubble_share=bubble_share,
            exposed_share=self._exposed_s(workload) / sequential.time_s,
        )

    @property
    def has_one_clock(self) -> bool:
        """Whether the trainer runs a whole step at one clock."""
        return self._trainer is not None and self._trainer.clocks is ClockPace.STEP

    def _costs_at_each_clock(self, workload: Workload) -> tuple[Array, Array]:
        """Seconds and joules of an iteration that the software runs by itself, all of it at each of the clocks."""
        kinds = self._by_itself(workload, self._stage_updates(workload), slice(None))
        waiting_w = np.array([waiting_power_w(workload.gpu, clock) for clock in self._clocks])
        return self._costs_of(workload, kinds, waiting_w)

    def _by_itself(
        self, workload: Workload, updates: Sequence[Mapping[Direction, CostByClock]], clocks: slice
    ) -> dict[InstructionKind, tuple[Array, Array]]:
        """Seconds and effective joules of all instructions as the software runs them by itself, at some clocks."""
        costs = {kind: instruction.sequential for kind, instruction in self._instructions(workload).items()}
        for stage, update in enumerate(updates):
            costs |= {InstructionKind(stage, 0, direction): cost for direction, cost in update.items()}
        least_w = least_waiting_w(workload.gpu)
        return {
            kind: (cost.time_s[clocks], effective_energy_j(cost.energy_j[clocks], cost.time_s[clocks], least_w))
            for kind, cost in costs.items()
        }

    def _exposed_s(self, workload: Workload) -> float:
        """Seconds of a sequential iteration that collectives add at the maximum clock, mean over GPUs."""
        structure, exposed_s = self.costs.of(workload), 0.0
        instructions = self._instructions(workload)
        for kind, shape in _kinds(workload):
            cost = instructions[kind].sequential
            alone = structure.computing(shape, kind.direction, workload.recomputation)
            exposed_s += float(cost.time_s[-1] - alone.time_s[FASTEST])
        return max(exposed_s, 0.0) * workload.num_microbatches / workload.parallelism.pp

    def instructions_of(self, workload: Workload) -> int:
        """Return the number of instructions of an iteration, those of the update apart."""
        directions = len(instruction_directions(split_backward=workload.split_backward))
        return workload.parallelism.pp * workload.chunks * workload.num_microbatches * directions

    def points(self, workload: Workload) -> dict[InstructionKind, Array]:
        """Return the ways to run every kind of instruction: seconds, effective joules of one GPU, MHz, (points, 3)."""
        of_kinds = {kind: instruction.points for kind, instruction in self._instructions(workload).items()}
        for stage, update in enumerate(self._stage_updates(workload)):
            for direction, cost in update.items():
                kind = InstructionKind(stage, 0, direction)
                of_kinds[kind] = undominated([cost], self._clocks, least_waiting_w(workload.gpu))
        return of_kinds

    def _instructions(self, workload: Workload) -> dict[InstructionKind, PricedInstruction]:
        """What every kind of instruction of microbatches costs."""
        costs: dict[object, PricedInstruction] = {}
        instructions = {}
        for kind, shape in _kinds(workload):
            weights = self._weights_of(workload, kind.stage, shape)
            key = id(weights), shape, kind.direction
            if key not in costs:
                costs[key] = self._instruction(workload, shape, kind.direction, weights)
            instructions[kind] = costs[key]
        return instructions

    def _weights_of(self, workload: Workload, stage: int, shape: StageShape) -> ShardedWeights | None:
        """Collectives of the weights of a stage, which know the ranks that share them; equal ones are one record."""
        if not workload.parallelism.shards_gradients:
            return None
        key = workload.parallelism, stage, shape.first, shape.last
        if key not in self._weights:
            weights = weights_of(workload, stage, shape, workload.default_collective_sm_count)
            self._weights[key] = self._distinct_weights.setdefault(weights, weights)
        return self._weights[key]

    def _instruction(
        self, workload: Workload, shape: StageShape, direction: Direction, weights: ShardedWeights | None
    ) -> PricedInstruction:
        return self.costs.of(workload).instruction(
            shape, direction, workload.recomputation, weights, split_backward=workload.split_backward
        )

    def _stage_updates(self, workload: Workload, *, sequential: bool = False) -> list[dict[Direction, CostByClock]]:
        """What the update of each stage costs at each clock; stages share it that lie alike on their nodes.

        With `sequential`, beside backwards that are run so, and at the maximum clock alone.
        """
        parallelism = workload.parallelism
        if not workload.iteration.include_update:
            return [{} for _ in parallelism.split]
        structure = self.costs.of(workload)
        shapes = laid_out_shapes(workload)
        updates = []
        for stage in range(parallelism.pp):
            of_stage = tuple(shapes[stage, chunk] for chunk in range(workload.chunks))
            placed = stage * parallelism.gpus_per_stage % workload.linked_gpus
            degrees = (parallelism.dp, parallelism.pp, parallelism.sharding, parallelism.shards, placed)
            ends = (stage == 0, stage == parallelism.head_stage)
            between = parallelism.pp if workload.chunks > 1 else 0  # backwards between those of two chunks
            how = (workload.recomputation, workload.split_backward, between, sequential)
            key = (id(structure), of_stage, degrees, ends, how)
            if key not in self._updates:
                self._updates[key] = self._update(workload, stage, of_stage, sequential=sequential)
            updates.append(self._updates[key])
        return updates

    def _update(
        self, workload: Workload, stage: int, shapes: Sequence[StageShape], *, sequential: bool
    ) -> dict[Direction, CostByClock]:
        times_s = {}
        for chunk, shape in enumerate(shapes):
            weights = self._weights_of(workload, stage, shape)
            for direction in instruction_directions(split_backward=workload.split_backward):
                cost = self._instruction(workload, shape, direction, weights)
                fastest_s = cost.sequential.time_s[-1] if sequential else cost.best.time_s[FASTEST]
                times_s[InstructionKind(stage, chunk, direction)] = float(fastest_s)
        passes = pass_times(workload, stage, times_s)
        graph = self.costs.of(workload).graphs[Batch.MICROBATCH]
        clocks = self._clocks[-1:] if sequential else self._clocks
        costs = update_costs(workload, graph, stage, passes, clocks, self.costs.of(workload).updates)
        return {direction: CostByClock(cost[0], cost[1]) for direction, cost in costs.items()}

    def _costs_of(self, workload: Workload, kinds: KindCosts, waiting_w: float | Array) -> tuple[Array, Array]:
        """Seconds and joules of an iteration in each lane, of all GPUs, of which one that waits draws `waiting_w`."""
        parallelism, microbatches = workload.parallelism, workload.num_microbatches
        rounds = max(2, MOST_TIMED * microbatches // max(1, self.instructions_of(workload)) // parallelism.pp)
        more, fewer = rounds * parallelism.pp, (rounds + 1) // 2 * parallelism.pp
        if self.instructions_of(workload) > MOST_TIMED and microbatches > more:
            before_s, after_s = (self._makespans(workload, n, kinds) for n in (fewer, more))
            time_s = after_s + (microbatches - more) * (after_s - before_s) / (more - fewer)
        else:
            time_s = self._makespans(workload, microbatches, kinds)
        times = {kind: microbatches if kind.direction in INSTRUCTIONS else 1 for kind in kinds}
        busy_s, effective_j = (
            np.sum([times[kind] * costs[n] for kind, costs in kinds.items()], axis=0) for n in (0, 1)
        )
        effective_j = effective_energy_j(effective_j, busy_s, waiting_w - least_waiting_w(workload.gpu))
        return time_s, total_energy_j(effective_j * parallelism.gpus_per_stage, time_s, waiting_w * parallelism.gpus)

    def _makespans(self, workload: Workload, microbatches: int, kinds: KindCosts) -> Array:
        """Seconds of an iteration of so many microbatches in each lane."""
        _, dag = self.pipeline(workload, microbatches)
        distinct, numbers = shape_kinds(shape_of(cut(workload, "pipeline"), microbatches))
        times_s = np.array([kinds[kind][0] for kind in distinct])[numbers]
        if times_s.shape[1] == 1:  # waves take longer to make than one lane takes to walk
            return np.array([makespan(dag, times_s[:, 0].tolist())])
        ends_s: Array = (earliest_starts_s(dag, times_s) + times_s).max(axis=0)
        return ends_s

    def pipeline(self, workload: Workload, microbatches: int) -> tuple[tuple[Instruction, ...], Dag]:
        """Return the instructions of an iteration of so many microbatches and their order, which layouts share."""
        pipeline = cut(workload, "pipeline")
        shape = shape_of(pipeline, microbatches)
        return shape_instructions(shape), shape_dag(shape, transfers_s(pipeline))


INSTRUCTIONS = frozenset({*instruction_directions(split_backward=False), *instruction_directions(split_backward=True)})
"""Directions that every microbatch passes."""


def _most_waiting_w(workload: Workload) -> float:
    """Power of a GPU that waits at the maximum clock: no plan pays more, so that none costs more than predicted."""
    return waiting_power_w(workload.gpu, workload.gpu.maximum_clock_mhz)


def _kinds(workload: Workload) -> list[tuple[InstructionKind, StageShape]]:
    """Kinds of instructions of microbatches, and the shape that each computes."""
    directions = instruction_directions(split_backward=workload.split_backward)
    shapes = laid_out_shapes(workload)
    return [
        (InstructionKind(stage, chunk, direction), shape)
        for (stage, chunk), shape in shapes.items()
        for direction in directions
    ]


def _priced(cost: CostByClock, workload: Workload) -> Priced:
    shape = (len(cost.time_s), len(PRICES_W))
    over_prices = CostByClock(*(np.broadcast_to(values[:, None], shape) for values in (cost.time_s, cost.energy_j)))
    return cheapest([over_prices], least_waiting_w(workload.gpu))


def _summed(update: Mapping[Direction, CostByClock], workload: Workload) -> StageUpdate:
    """Return the instructions of an update as one."""
    if not update:
        return NO_UPDATE
    priced = sum((_priced(cost, workload) for cost in update.values()), NOTHING)
    reduction = update.get(Direction.GRADIENT_REDUCTION)
    return StageUpdate(priced=priced, reduction_s=0.0 if reduction is None else float(reduction.time_s.max()))
