"""Costs of instructions at every price of time, from the GPU model, exhaustively and free of noise.

A frontier is asked by prices: at a price of p W, an instruction runs where effective energy plus p times its time is
least (effective energy: less the blocking power over its time). The least sum bounds every other way to run it from
below, whatever the price (Lagrangian duality), and the points that attain it are real ones. Sums over partitions,
blocks and instructions keep both properties, so that nothing is composed point by point.

Instructions depend on a layout only by what one GPU computes of a block: layouts share them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from kareus.arrays import Array
from kareus.frontiers.makeup import Makeup, overlap_makeup
from kareus.gpu_model.model import (
    REPEATING,
    Behaviour,
    Blocks,
    KnownSteps,
    PartSums,
    Sums,
    Tally,
    operators_alone,
    run_program,
    run_schedules,
    run_sums,
    run_tally,
    tally,
)
from kareus.gpu_model.overlap import time_alone_s
from kareus.gpu_model.thermal import sustained_j
from kareus.gpu_model.waiting import effective_energy_j, least_waiting_w, total_energy_j
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    Batch,
    BlockGraph,
    Direction,
    Partition,
    PlacedCollective,
    Program,
    Step,
    instruction_directions,
)
from kareus.model.parallelism import Sharding
from kareus.pareto import pareto_mask
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import operator_graphs
from kareus.profile.programs import Execution, StageShape, component_programs, instruction_program
from kareus.profile.sharded import WITHOUT_EXCHANGES, ShardedWeights, least_exchanged
from kareus.schedule.space import search_space
from kareus.software.trainers import ObeyingTrainer
from kareus.update.reduction_costs import SharedCosts
from kareus.workload.config import Workload

PRICES_W = np.concatenate(([0.0], np.geomspace(8.0, 8_000.0, 30), [1e9]))
"""Prices of a second of one GPU beside its blocking power; at the last one nothing but time counts."""
NANOSECOND_S = 1e-9
FASTEST = -1
"""Index of the price at which nothing but time counts."""


@dataclass(frozen=True, slots=True)
class Priced:
    """One instruction on one GPU, at each of `PRICES_W` where it is cheapest."""

    time_s: Array
    effective_j: Array

    @property
    def dual_j(self) -> Array:
        """Least effective energy plus price of time, at each price."""
        return self.effective_j + PRICES_W * self.time_s

    def __add__(self, other: "Priced") -> "Priced":
        """Both, one after the other."""
        return Priced(self.time_s + other.time_s, self.effective_j + other.effective_j)

    def times(self, count: float) -> "Priced":
        """Return the instruction `count` times."""
        return Priced(count * self.time_s, count * self.effective_j)


NOTHING = Priced(np.zeros(len(PRICES_W)), np.zeros(len(PRICES_W)))


@dataclass(frozen=True, slots=True)
class CostByClock:
    """Seconds and joules of one GPU at each clock of the search; shape (clocks,), or (clocks, prices)."""

    time_s: Array
    energy_j: Array


@dataclass(frozen=True)  # without slots, so that what is asked for is kept
class PricedInstruction:
    """One instruction of a stage, or of one of its chunks."""

    sequential: CostByClock
    """As its software runs it by itself, at each clock."""
    overlapped: Callable[[], list[CostByClock]]
    """Partitioned overlap, which takes longest to price."""
    clocks_mhz: Array
    waiting_power_w: float

    @cached_property
    def _ways(self) -> list[CostByClock]:
        return [_over_prices(self.sequential), *self.overlapped()]

    @cached_property
    def best(self) -> Priced:
        """In the cheapest of all ways to run it, at each price."""
        return cheapest(self._ways, self.waiting_power_w)

    @cached_property
    def points(self) -> Array:
        """Those of the ways that no other dominates, by rising time, as `undominated` returns them."""
        return undominated(self._ways, self.clocks_mhz, self.waiting_power_w)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What decides what one GPU computes of a block."""

    tp: int
    cp: int
    ep: int
    etp: int
    sequence_parallel: bool
    microbatch_size: int
    linked_gpus: int
    """GPUs that NVLink connects in a job of this size, which decides what travels between nodes."""
    job_gpus: int
    host_rank_s: float


_How = tuple[Direction, Recomputation, bool]
"""Direction of an instruction, what it recomputes, and whether collectives are in or beside it."""
KnownGraphs = dict[BlockShape, dict[Batch, BlockGraph]]


class InstructionPrices:
    """Costs of the instructions of all layouts of one model on one GPU; each is computed once."""

    def __init__(
        self, base: Workload, graphs: KnownGraphs | None = None, trainer: ObeyingTrainer | None = None
    ) -> None:
        """Prepare for layouts of `base`.

        Args:
            base: what is trained.
            graphs: operator graphs of its model, read and extended; numbers of GPU and software do not change them.
            trainer: what runs the instructions; None: Kareus' engine, which can overlap nanobatches.
        """
        self._base = base
        self._overlaps = trainer is None or trainer.overlaps
        self._graphs = {} if graphs is None else graphs
        self._clocks = np.array(base.gpu.search_frequencies.clocks_mhz, dtype=np.float64)
        self._step_costs: KnownSteps = {}  # jobs of all sizes share what steps cost
        self._structures: dict[BlockShape, StructureCosts] = {}
        self._latest: tuple[Workload, StructureCosts] | None = None

    def of(self, workload: Workload) -> "StructureCosts":
        """Return the costs of what a workload's GPUs compute."""
        if self._latest is None or self._latest[0] is not workload:  # asked for by each instruction of a layout
            self._latest = workload, self._of(workload)
        return self._latest[1]

    def _of(self, workload: Workload) -> "StructureCosts":
        degrees_of = workload.parallelism
        size, host_rank_s = workload.gpu.job_gpus, workload.gpu.coefficients.host_rank_s
        degrees = degrees_of.tp, degrees_of.cp, degrees_of.ep, degrees_of.etp
        batch, linked = workload.microbatch_size, workload.linked_gpus
        structure = BlockShape(*degrees, degrees_of.sequence_parallel, batch, linked, size, host_rank_s)
        if structure not in self._structures:
            alike = replace(
                workload,
                parallelism=replace(degrees_of, dp=1, pp=1, layers_per_stage=None, sharding=Sharding.NONE, shards=None),
                model=replace(workload.model, layers_per_stage={}),
                gpu=replace(workload.gpu, gpus_per_node=linked, nvlink_domain=None),
            )
            base = replace(self._base, gpu=workload.gpu)
            shape = replace(structure, job_gpus=1, host_rank_s=0.0)
            if shape not in self._graphs:
                self._graphs[shape] = operator_graphs(alike)
            self._structures[structure] = StructureCosts(
                base, self._graphs[shape], self._clocks, self._step_costs, overlaps=self._overlaps
            )
        return self._structures[structure]


@dataclass(slots=True)
class StructureCosts:
    """Costs of the instructions of one structure."""

    base: Workload
    graphs: dict[Batch, BlockGraph]
    clocks: Array
    step_costs: KnownSteps
    overlaps: bool = True
    """Whether the trainer runs partitioned overlap."""
    updates: SharedCosts = field(init=False)
    """What updates of layouts of the structure share."""
    _partitions: dict[Partition, CostByClock] = field(default_factory=dict)
    _named: dict[tuple[Recomputation, bool], "_Parts"] = field(default_factory=dict)
    _instructions: dict[object, PricedInstruction] = field(default_factory=dict)
    _computing: dict[object, Priced] = field(default_factory=dict)
    _beside: dict[object, Priced] = field(default_factory=dict)
    _exchanges: dict[tuple[PlacedCollective, int], Array] = field(default_factory=dict)
    _sums: dict[object, Sums] = field(default_factory=dict)
    _parts_of_sums: dict[object, PartSums] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Share costs of steps with updates."""
        self.updates = SharedCosts(self.step_costs)

    def computing(self, shape: StageShape, direction: Direction, recomputation: Recomputation) -> Priced:
        """Return what no way to run an instruction undercuts: its operators alone, without any collective."""
        key = shape, direction, _repeated(direction, recomputation)
        if key not in self._computing:
            self.compute([key])
        return self._computing[key]

    def compute(self, asked: Iterable[tuple[StageShape, Direction, Recomputation]]) -> None:
        """Price what `computing` will be asked for: instructions that differ in the number of their blocks at once."""
        alike: dict[tuple[StageShape, Direction, Recomputation], list[StageShape]] = {}
        for shape, direction, recomputation in asked:
            repeated = _repeated(direction, recomputation)
            if (shape, direction, repeated) not in self._computing:
                alike.setdefault((_few(shape, with_collectives=False), direction, repeated), []).append(shape)
        waiting_w = least_waiting_w(self.base.gpu)
        for (few, direction, repeated), shapes in alike.items():
            more = np.array([shape.layers - few.layers for shape in shapes])
            alone = self._run(few, None, (direction, repeated, False), more)
            effective_j = effective_energy_j(alone.energy_j, alone.time_s, waiting_w)
            chosen = np.argmin(effective_j[..., np.newaxis] + PRICES_W * alone.time_s[..., np.newaxis], axis=1)
            costs = (np.take_along_axis(values, chosen, axis=1) for values in (alone.time_s, effective_j))
            for shape, time_s, cost_j in zip(shapes, *costs, strict=True):
                self._computing[shape, direction, repeated] = Priced(time_s, cost_j)

    def instruction(
        self,
        shape: StageShape,
        direction: Direction,
        recomputation: Recomputation,
        weights: ShardedWeights | None,
        *,
        split_backward: bool,
    ) -> PricedInstruction:
        """Return the cost of an instruction.

        Args:
            shape: of the stage or chunk.
            direction: of the instruction.
            recomputation: what a backward recomputes.
            weights: collectives of weights that replicas share out.
            split_backward: whether weight gradients are computed apart.
        """
        recomputation = _repeated(direction, recomputation)
        key = (shape, direction, recomputation, weights, split_backward and direction is not Direction.FORWARD)
        if key not in self._instructions:
            few = _few(shape, with_collectives=True)
            ran = self._run(few, weights, (direction, recomputation, True), shape.layers - few.layers)
            sequential = CostByClock(ran.time_s, ran.energy_j)
            overlaps = (
                self.overlaps
                and weights is None
                and direction is not Direction.WEIGHT_GRADIENT
                and Batch.NANOBATCH in self.graphs
            )

            def overlapped() -> list[CostByClock]:
                if not overlaps:
                    return []
                return self._overlapped(shape, direction, recomputation, split_backward=split_backward)

            self._instructions[key] = PricedInstruction(
                sequential, overlapped, self.clocks, least_waiting_w(self.base.gpu)
            )
        return self._instructions[key]

    def beside(
        self,
        shape: StageShape,
        direction: Direction,
        recomputation: Recomputation,
        weights: ShardedWeights,
        *,
        split_backward: bool,
    ) -> Priced:
        """Return what `instruction` does not undercut, without its program: collectives of weights run one by one.

        So at each clock it takes at least as long as all of these alone, and as the instruction without them; nor do
        they save energy. Its blocks are those of programs without these collectives or, where its steps are cut for
        them, of programs that are cut alike. No overlap of nanobatches runs beside them.
        """
        key = shape, direction, _repeated(direction, recomputation), weights, split_backward
        if key not in self._beside:
            waiting_w, how = least_waiting_w(self.base.gpu), (shape, direction, recomputation)
            cuts = [
                self.instruction(*how, those, split_backward=split_backward).sequential
                for those in (None, WITHOUT_EXCHANGES)
            ]
            time_s = np.min([cut.time_s for cut in cuts], axis=0)
            effective_j = np.min([effective_energy_j(cut.energy_j, cut.time_s, waiting_w) for cut in cuts], axis=0)
            exchanged = least_exchanged(weights, direction, shape.layers, shape.dense)
            exchanged_s = sum(count * self._alone_s(each, weights.sms(each)) for each, count in exchanged.items())
            longer_s = np.maximum(time_s, exchanged_s)
            longer = CostByClock(longer_s, total_energy_j(effective_j, longer_s, waiting_w))
            self._beside[key] = cheapest([_over_prices(longer)], waiting_w)
        return self._beside[key]

    def _alone_s(self, collective: PlacedCollective, sm_count: int) -> Array:
        """Seconds of a collective alone at each clock, whatever power it draws."""
        key = collective, sm_count
        if key not in self._exchanges:
            sms = np.asarray(sm_count, dtype=np.float64)
            self._exchanges[key] = time_alone_s(self.base.gpu, collective, self.clocks, sms)
        return self._exchanges[key]

    def _run(self, shape: StageShape, weights: ShardedWeights | None, how: _How, more: Blocks) -> Behaviour:
        """What a sequential instruction of few blocks and some more, or its operators alone, does at each clock."""
        key = shape, weights, how
        if key not in self._sums:
            in_blocks = self._part_sums(replace(shape, first=False, last=False), weights, how)
            outside = self._part_sums(replace(shape, layers=0, dense=0), None, how)
            self._sums[key] = Sums(in_blocks, outside, whole_instruction=True)
        return _sustained(self.base, run_sums(self.base.gpu, self._sums[key], self.clocks, more))

    def _part_sums(self, shape: StageShape, weights: ShardedWeights | None, how: _How) -> PartSums:
        """What steps of an instruction take: those of its blocks, or without blocks those outside of them."""
        key, (direction, recomputation, with_collectives) = (shape, weights, how), how
        if key not in self._parts_of_sums:

            def counted(layers: int) -> Counter[Step]:
                steps = tally(self._program(replace(shape, layers=layers), direction, recomputation, weights))
                part = steps.blocks if shape.layers else steps.outer
                return part if with_collectives else operators_alone(part)

            repeats = shape.layers == _repeating(shape, with_collectives=with_collectives)
            fewer = counted(shape.layers - 1) if repeats else None
            part = PartSums(self.base.gpu, counted(shape.layers), self.clocks, self.step_costs, fewer)
            self._parts_of_sums[key] = part
        return self._parts_of_sums[key]

    def _program(
        self, shape: StageShape, direction: Direction, recomputation: Recomputation, weights: ShardedWeights | None
    ) -> Program:
        return instruction_program(
            self.graphs,
            shape,
            direction,
            Execution.SEQUENTIAL,
            recomputation=recomputation,
            default_sm_count=self.base.default_collective_sm_count,
            software=self.base.software,
            weights=weights,
        )

    def _overlapped(
        self, shape: StageShape, direction: Direction, recomputation: Recomputation, *, split_backward: bool
    ) -> list[CostByClock]:
        """Partitioned overlap at every clock and price; nothing where blocks have no collectives."""
        nanobatch, microbatch = self.graphs[Batch.NANOBATCH], self.graphs[Batch.MICROBATCH]
        makeup = overlap_makeup(nanobatch, microbatch, shape, direction, recomputation=recomputation)
        if not makeup.partitions:
            return []
        parts = self._parts(recomputation, split_backward=split_backward)
        total = np.zeros((2, len(self.clocks), len(PRICES_W)))
        for name, count in makeup.partitions.items():
            cost = self._partition(parts.partitions[name])
            total += count * np.array([cost.time_s, cost.energy_j])
        for name, count in (*makeup.edges.items(), *makeup.outer.items()):
            total += count * parts.component(name)
        missed_s, missed_j = self.base.gpu.missed_by_isolation(*parts.operators_alone(makeup))
        return [CostByClock(total[0] + missed_s, total[1] + missed_j)]

    def _parts(self, recomputation: Recomputation, *, split_backward: bool) -> "_Parts":
        key = recomputation, split_backward
        if key not in self._named:
            partitions = detect_partitions(
                self.graphs[Batch.NANOBATCH], recomputation=recomputation, split_backward=split_backward
            )
            programs = component_programs(
                self.graphs,
                self.base.default_collective_sm_count,
                instruction_directions(split_backward=split_backward),
                recomputation=recomputation,
            )
            self._named[key] = _Parts(
                {partition.name: partition for partition in partitions},
                programs,
                self.base,
                self.clocks,
                self.step_costs,
            )
        return self._named[key]

    def _partition(self, partition: Partition) -> CostByClock:
        """Cost of a partition at each clock and price, under its cheapest schedule there; shapes (clocks, prices)."""
        if partition not in self._partitions:
            self._partitions[partition] = partition_cost(self.base, partition, self.clocks)
        return self._partitions[partition]


def _sustained(base: Workload, ran: Behaviour) -> Behaviour:
    """Return what runs with the energy of GPUs that train for long."""
    return replace(ran, energy_j=sustained_j(base.gpu, ran.energy_j, ran.time_s))


def _few(shape: StageShape, *, with_collectives: bool) -> StageShape:
    """Return the shape with the blocks from which on each further one adds the same steps, if it has more."""
    return replace(shape, layers=min(shape.layers, _repeating(shape, with_collectives=with_collectives)))


def _repeating(shape: StageShape, *, with_collectives: bool) -> int:
    """Return these blocks: dense ones are the first of a pass, and operators alone know of no other block."""
    return shape.dense + (REPEATING if with_collectives else 1)


def _repeated(direction: Direction, recomputation: Recomputation) -> Recomputation:
    """Return what an instruction recomputes: a forward nothing, whatever its backward does."""
    return Recomputation.NONE if direction is Direction.FORWARD else recomputation


@dataclass(frozen=True)
class _Parts:
    """Partitions and components by name."""

    partitions: Mapping[str, Partition]
    programs: Mapping[str, Program]
    base: Workload
    clocks: Array
    step_costs: KnownSteps

    @cached_property
    def _costs(self) -> dict[str, Array]:
        return {}

    def component(self, name: str) -> Array:
        """Seconds and joules of a component at each clock, shape (2, clocks, 1)."""
        if name not in self._costs:
            ran = _sustained(self.base, run_program(self.base.gpu, self.programs[name], self.clocks, self.step_costs))
            self._costs[name] = np.array([ran.time_s, ran.energy_j])[:, :, None]
        return self._costs[name]

    def operators_alone(self, makeup: Makeup) -> Array:
        """Seconds and joules of the operators of blocks with no collective beside them, shape (2, clocks, 1)."""
        steps: Counter[Step] = Counter()
        for name, count in makeup.partitions.items():
            steps[Step(operators=self.partitions[name].operators)] += count
        for name, count in makeup.edges.items():
            for step in self.programs[name].steps:
                steps[step] += count
        alone = Tally(Counter(), operators_alone(steps), whole_instruction=False)
        ran = _sustained(self.base, run_tally(self.base.gpu, alone, self.clocks, self.step_costs))
        return np.array([ran.time_s, ran.energy_j])[:, :, None]


def partition_cost(base: Workload, partition: Partition, clocks_mhz: Array) -> CostByClock:
    """Return the cost of a partition at each clock and price under the schedule that is cheapest there."""
    space = search_space(partition, base.gpu, base.space)
    frequencies, sm_counts = (np.array(column, dtype=np.float64) for column in (space.frequency_mhz, space.sm_count))
    launches = np.array([partition.operator_index(name) for name in space.launch])
    ran = _sustained(base, run_schedules(base.gpu, partition, frequencies, sm_counts, launches))
    by_clock = (len(clocks_mhz), -1)  # the search space is sorted by clock
    time_s, energy_j = ran.time_s.reshape(by_clock), ran.energy_j.reshape(by_clock)
    effective_j = effective_energy_j(energy_j, time_s, least_waiting_w(base.gpu))
    chosen = np.argmin(effective_j[:, :, None] + PRICES_W * time_s[:, :, None], axis=1)
    return CostByClock(np.take_along_axis(time_s, chosen, axis=1), np.take_along_axis(energy_j, chosen, axis=1))


def cheapest(ways: Sequence[CostByClock], waiting_power_w: float) -> Priced:
    """Return an instruction at each price, at the clock and in the way of `ways` that are cheapest there."""
    time_s = np.concatenate([way.time_s for way in ways])
    effective_j = effective_energy_j(np.concatenate([way.energy_j for way in ways]), time_s, waiting_power_w)
    chosen = np.argmin(effective_j + PRICES_W * time_s, axis=0)[None, :]
    return Priced(np.take_along_axis(time_s, chosen, axis=0)[0], np.take_along_axis(effective_j, chosen, axis=0)[0])


def undominated(ways: Sequence[CostByClock], clocks_mhz: Array, waiting_power_w: float) -> Array:
    """Return the points of `ways` that no other dominates: seconds, effective joules, MHz; shape (points, 3).

    Times are rounded up to nanoseconds, as measured ones are: points that differ by less are one, or the price of time
    between them would be beyond what the solver can weigh.
    """
    time_s = np.concatenate([way.time_s.ravel() for way in ways])
    energy_j = np.concatenate([way.energy_j.ravel() for way in ways])
    effective_j = effective_energy_j(energy_j, time_s, waiting_power_w)
    rounded_s = np.ceil(time_s / NANOSECOND_S) * NANOSECOND_S
    ran_mhz = [np.broadcast_to(clocks_mhz.reshape(-1, *(1,) * (w.time_s.ndim - 1)), w.time_s.shape) for w in ways]
    points = np.column_stack((rounded_s, effective_j, np.concatenate([clocks.ravel() for clocks in ran_mhz])))
    front = points[pareto_mask(points[:, :2])]
    return front[np.argsort(front[:, 0])]


def _over_prices(cost: CostByClock) -> CostByClock:
    """The same cost at every price, shapes (clocks, prices)."""
    shape = (len(cost.time_s), len(PRICES_W))
    return CostByClock(*(np.broadcast_to(values[:, None], shape) for values in (cost.time_s, cost.energy_j)))
