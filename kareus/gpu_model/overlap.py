"""Concurrent progress of one run of operators and one collective that share SMs, HBM and links.

Between two events (an operator ends, the collective starts or ends) everything progresses at a constant rate: while the
collective runs, operators keep the SMs that it leaves; when both together want more HBM bandwidth than there is, each
gets a share in proportion to its demand; and traffic of both kinds at once costs both something on top (row-buffer and
L2 conflicts). What a collective sends also slows the operator, whatever number of SMs moves it; these SMs draw power
for as long as they are held. What lies between two events is a phase, with a power of its own. All candidates of a
partition take their phases together, as elements of arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model import laws
from kareus.gpu_model.coefficients import shape_of
from kareus.gpu_model.energy import Switching, collective_switching, operator_switching
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.network import Placement, placed_collective_s
from kareus.graph.records import (
    TENSOR_PARALLEL,
    Collective,
    Operator,
    OperatorKind,
    PlacedCollective,
    Step,
    SwitchedGather,
)

_DONE = 1e-12
"""Share of work left below which it counts as done (rounding)."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Work that runs unchanged between two events; its time is 0 for candidates that skip it."""

    time_s: Array
    """At the requested clock, held steadily."""
    clock_share: Array
    """Share of the time that scales with 1/f."""
    switching: Switching
    held_sms: Array | float = 0.0
    """SMs that a collective holds meanwhile."""
    clocked: Array | float = 1.0
    """Share of the clock tree's power that is not gated."""

    def at_s(self, requested_mhz: Array, clock_mhz: Array) -> Array:
        """Return the time at another steady clock than the requested one."""
        return self.time_s * (1 - self.clock_share + self.clock_share * requested_mhz / clock_mhz)


def step_phases(
    gpu: Gpu,
    operators: Sequence[Operator],
    collective: Collective | None,
    frequency_mhz: Array,
    sm_count: Array | int,
    launch_index: Array | int,
) -> list[Phase]:
    """Return the phases of `operators` in order and of `collective` beside or after them.

    Args:
        gpu: GPU that runs them.
        operators: run one after the other.
        collective: starts together with one operator, or after the last.
        frequency_mhz: SM clock, one number or an array; the next two are of its shape or one number.
        sm_count: SMs of the collective.
        launch_index: index of the operator with which it starts.
    """
    if collective is None:
        return [_alone(gpu, operator, frequency_mhz) for operator in operators]
    taken = np.asarray(sm_count, dtype=np.float64)
    left = np.ones_like(frequency_mhz)
    """Share of the collective that is still to do."""
    moving = collective_switching(gpu, collective)
    whole_s, slow_s = (time_alone_s(gpu, collective, f, taken) for f in (frequency_mhz, frequency_mhz / 2))
    phases = []
    for position, operator in enumerate(operators):
        alone = _alone(gpu, operator, frequency_mhz)
        # Candidates whose collective has started and is not done share the GPU while this operator runs.
        running = (launch_index <= position) & (left > _DONE)
        if not running.any():
            phases.append(alone)
            continue
        beside_s, collective_s = _times_beside(gpu, operator, (collective, whole_s), frequency_mhz, taken)
        shared_s = np.where(running, np.minimum(beside_s, left * collective_s), 0.0)
        # Shares of the operator and of the collective that are done when the first of the two ends.
        done, moved = shared_s / beside_s, np.minimum(shared_s / collective_s, left)
        both = alone.switching * done + moving * moved
        phases += [Phase(shared_s, alone.clock_share, both, taken, alone.clocked), _part(alone, 1 - done)]
        left = np.where(left - moved > _DONE, left - moved, 0.0)
    return [*phases, Phase(left * whole_s, _clock_share(whole_s, slow_s), moving * left, taken)]


def along_phases(gpu: Gpu, step: Step, frequency_mhz: Array) -> list[Phase]:
    """Return the phases of steps that a queue of collectives runs along, one of it at a time.

    Beside operators these run as any collective does. Beside a collective that uses other wires (links in a node, or
    NICs) both run as fast as alone; those that use the same wires wait for its end, and the next of the queue whose
    wires are free goes first: they have communicators of their own.

    Args:
        gpu: GPU that runs them.
        step: of `within` and `along`.
        frequency_mhz: SM clock, one number or an array.
    """
    queue = [_Queued.of(gpu, queued, frequency_mhz) for queued in step.along]
    phases = list[Phase]()
    for inner in step.within:
        if inner.collective is None:
            for operator in inner.operators:
                phases += _beside_queue(gpu, operator, queue, frequency_mhz)
            continue
        inside = step_phases(gpu, inner.operators, inner.collective, frequency_mhz, inner.sm_count, inner.launch)
        apart = [queued for queued in queue if queued.between != _between_nodes(inner.collective)]
        phases += [part for phase in inside for part in _with_queue(phase, apart)]
    return [*phases, *(queued.rest() for queued in queue)]


@dataclass(slots=True)
class _Queued:
    """A collective of a queue, of which a share is left."""

    collective: Collective
    between: bool
    """Whether it sends over NICs."""
    taken: Array
    whole_s: Array
    clock_share: Array
    switching: Switching
    left: Array

    @classmethod
    def of(cls, gpu: Gpu, step: Step, frequency_mhz: Array) -> "_Queued":
        """Return the collective of a step, which has not begun."""
        assert step.collective is not None
        taken = np.asarray(step.sm_count, dtype=np.float64)
        whole_s, slow_s = (time_alone_s(gpu, step.collective, f, taken) for f in (frequency_mhz, frequency_mhz / 2))
        return cls(
            step.collective,
            _between_nodes(step.collective),
            taken,
            whole_s,
            _clock_share(whole_s, slow_s),
            collective_switching(gpu, step.collective),
            np.ones_like(whole_s),
        )

    def move(self, time_s: Array, whole_s: Array) -> Array:
        """Run for a time at a speed by which all of it takes `whole_s`; return the share that was moved."""
        moved = np.minimum(time_s / whole_s, self.left)
        self.left = np.where(self.left - moved > _DONE, self.left - moved, 0.0)
        return moved

    def rest(self) -> Phase:
        """Return what is left, alone."""
        return Phase(self.left * self.whole_s, self.clock_share, self.switching * self.left, self.taken)


def _between_nodes(collective: Collective) -> bool:
    return isinstance(collective, PlacedCollective) and collective.nodes > 1


def _beside_queue(gpu: Gpu, operator: Operator, queue: Sequence[_Queued], frequency_mhz: Array) -> list[Phase]:
    """Return the phases of an operator, beside which a queue goes on."""
    alone, phases = _alone(gpu, operator, frequency_mhz), list[Phase]()
    undone = np.ones_like(alone.time_s)
    for queued in queue:
        if not ((queued.left > 0) & (undone > 0)).any():
            continue
        moving = queued.collective, queued.whole_s
        beside_s, collective_s = _times_beside(gpu, operator, moving, frequency_mhz, queued.taken)
        shared_s = np.minimum(undone * beside_s, queued.left * collective_s)
        done, moved = np.minimum(shared_s / beside_s, undone), queued.move(shared_s, collective_s)
        both = alone.switching * done + queued.switching * moved
        phases.append(Phase(shared_s, alone.clock_share, both, queued.taken, alone.clocked))
        undone = np.where(undone - done > _DONE, undone - done, 0.0)
    return [*phases, _part(alone, undone)]


def _with_queue(phase: Phase, queue: Sequence[_Queued]) -> list[Phase]:
    """Return a phase cut in what collectives of a queue run beside, as fast as alone, and the rest of it."""
    phases, rest_s = list[Phase](), phase.time_s
    whole_s = np.where(phase.time_s > 0, phase.time_s, 1.0)
    for queued in queue:
        shared_s = np.minimum(rest_s, queued.left * queued.whole_s)
        moved, share = queued.move(shared_s, queued.whole_s), shared_s / whole_s
        both = phase.switching * share + queued.switching * moved
        phases.append(Phase(shared_s, phase.clock_share, both, phase.held_sms + queued.taken, phase.clocked))
        rest_s = rest_s - shared_s
    share = rest_s / whole_s
    return [*phases, Phase(rest_s, phase.clock_share, phase.switching * share, phase.held_sms, phase.clocked)]


def slowdowns(
    gpu: Gpu, operators: Sequence[Operator], moving: tuple[Collective, Array], frequency_mhz: Array, sm_count: int
) -> tuple[Array, Array]:
    """Return the factors by which operators and a collective that never ends take longer beside each other than alone.

    Args:
        gpu: GPU that runs them.
        operators: run one after the other, again and again.
        moving: the collective, and its time alone at each clock.
        frequency_mhz: SM clocks, [clocks].
        sm_count: SMs of the collective.
    """
    taken, every_sm = np.full_like(frequency_mhz, sm_count), np.full_like(frequency_mhz, gpu.sm_count)
    alone_s = sum(laws.operator_time_s(gpu, operator, frequency_mhz, every_sm) for operator in operators)
    pairs = [_times_beside(gpu, operator, moving, frequency_mhz, taken) for operator in operators]
    beside_s = np.sum([operator_s for operator_s, _ in pairs], axis=0)
    moved = np.sum([operator_s / collective_s for operator_s, collective_s in pairs], axis=0)
    return beside_s / alone_s, beside_s / moved / moving[1]


def host_time_s(gpu: Gpu, operators: Sequence[Operator], collective: Collective | None) -> Array | float:
    """Return the time in which the host launches a step's kernels: ahead of them, at a rate that no clock changes."""
    c, collectives = gpu.coefficients, int(collective is not None)
    launched = sum(laws.launches(gpu, o) for o in operators) + collectives
    ranks = collective.group_size if collective is not None and collective.group == TENSOR_PARALLEL else 0
    return launched * c.host_launch_s + collectives * c.host_collective_s + ranks * c.host_rank_s


def _alone(gpu: Gpu, operator: Operator, frequency_mhz: Array) -> Phase:
    # Both clocks at once, along an axis before those of clocks and of GPUs.
    axes = max(np.ndim(frequency_mhz), len(shape_of(gpu.coefficients)))
    clocks_mhz = frequency_mhz * np.reshape((1.0, 0.5), (2, *(1,) * axes))
    time_s, slow_s = laws.operator_time_s(gpu, operator, clocks_mhz, np.full_like(clocks_mhz, gpu.sm_count))
    clocked = gpu.coefficients.stalled_clock_share if operator.kind is OperatorKind.MEMORY else 1.0
    return Phase(time_s, _clock_share(time_s, slow_s), operator_switching(gpu, operator), clocked=clocked)


def time_alone_s(gpu: Gpu, collective: Collective, frequency_mhz: Array, sm_count: Array) -> Array:
    """Return the time of a collective alone, inside a node unless it says that its ranks lie elsewhere."""
    if isinstance(collective, SwitchedGather):
        sm_count = np.full_like(sm_count, collective.filled_by)
    if not isinstance(collective, PlacedCollective):
        return laws.collective_time_s(gpu, collective, frequency_mhz, sm_count)
    placement = Placement(nodes=collective.nodes, per_node=collective.per_node)
    return placed_collective_s(gpu, collective, placement, frequency_mhz, sm_count)


def _clock_share(time_s: Array, slow_s: Array) -> Array:
    """Share of a time that scales with 1/f, from what it is at half the clock."""
    return slow_s / time_s - 1


def _part(phase: Phase, share: Array) -> Phase:
    return Phase(phase.time_s * share, phase.clock_share, phase.switching * share, clocked=phase.clocked)


def _times_beside(
    gpu: Gpu, operator: Operator, moving: tuple[Collective, Array], frequency_mhz: Array, sm_count: Array
) -> tuple[Array, Array]:
    """Times of operator and collective if they overlapped from start to end; `moving` has the collective's alone."""
    collective, collective_s = moving
    remaining = gpu.sm_count - sm_count
    operator_s = laws.operator_time_s(gpu, operator, frequency_mhz, remaining)
    available = laws.hbm_bytes_per_s(gpu, np.asarray(gpu.sm_count, dtype=np.float64))
    operator_demand = laws.hbm_bytes(gpu, operator) / operator_s / available
    collective_demand = laws.collective_hbm_bytes(gpu, collective) / collective_s / available
    # Both together may ask for more than the HBM gives: each then gets a share in proportion to its demand.
    demand = np.maximum(operator_demand + collective_demand, 1.0)
    operator_share = np.maximum(1 - collective_demand, operator_demand / demand)
    operator_s = laws.operator_time_s(gpu, operator, frequency_mhz, remaining, hbm_share=operator_share)
    conflict = 1 + gpu.coefficients.contention * np.minimum(1.0, operator_demand) * np.minimum(1.0, collective_demand)
    sent_share = collective.bus_bytes / collective_s / (gpu.link_gb_per_s * 1e9)
    crowd = gpu.coefficients.crowding * (sm_count / gpu.sm_count) ** gpu.coefficients.crowding_exponent
    crowding = 1 + crowd + gpu.coefficients.traffic_crowding * sent_share
    return operator_s * conflict * crowding, collective_s * demand * conflict
