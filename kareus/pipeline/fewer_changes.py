"""Plans with few changes of clock, from plans for which changes are free.

The relaxation's prices of time make the stages independent: for each, a shortest path through (instruction, clock)
finds the clocks of least cost at a toll for each change, exactly. Put together, such chains seldom end by a deadline to
the millisecond, since whole runs of instructions move from one clock to the next. So plans that end a bit too early and
a bit too late are spliced, one up to some moment and the other from there on, and runs of one clock are tried at other
clocks, over some generations, of which only what no other plan dominates is kept.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kareus.arrays import Array, Indices
from kareus.pareto import AS_FAST, Mask
from kareus.pipeline.clock_changes import ALIKE, NOWHERE, ClockedPoints
from kareus.pipeline.solver.dag import earliest_starts_s, latest_ends
from kareus.pipeline.solver.frontier import PlannedIteration, sound_bound_j
from kareus.pipeline.solver.lanes import TOLERANCE, parts
from kareus.pipeline.solver.starts import Starts

TOLL = 5e-4
"""What a change has to save, as a share of the mean energy of a stage: less is hardly measured, and not worth a request
to the driver that may delay collectives. At four times as much the default plan loses a third
more energy by latencies of 10 ms."""
TOLLS = (0.0, TOLL, 2 * TOLL)
"""Those that plans are looked for at; what is cheap at another one is often close to what is cheap at `TOLL`."""
SEEDS = (*((1.0, toll) for toll in TOLLS), (1.1, TOLL), (1.5, TOLL), (4.0, TOLL))
"""By what time is dearer than the relaxation says, and the toll, of the chains that a search begins with."""
GUIDES = 17
"""Deadlines whose prices make chains; splices lie between them."""
GENERATIONS = 40
"""Fewer where one finds nothing better."""
EFFORT = 200_000
"""Instructions times plans that a generation tries."""
MOST_TRIED = 4000
"""Plans of each sort that a generation tries."""
CELLS_BETWEEN = 10
"""Parts of the time between two deadlines in which plans are kept."""
MOMENTS = 24
"""Of a splice, at most."""
NEIGHBOURS = 3
"""Plans that each is spliced with, on the slower side."""


class _Plans(NamedTuple):
    """Plans and what they cost; the last axis is that of plans."""

    options: Indices
    """Shape (instructions, plans)."""
    guides: Indices
    """The deadline whose prices say how each runs at another clock; shape (plans,), as what follows."""
    time_s: Array
    energy_j: Array
    changes: Indices

    def take(self, at: Indices) -> "_Plans":
        """The plans at some positions."""
        return _Plans(self.options[:, at], self.guides[at], self.time_s[at], self.energy_j[at], self.changes[at])


def fewer_changes(
    starts: Starts, clocked: ClockedPoints, plans: Sequence[PlannedIteration], deadlines_s: Sequence[float]
) -> list[PlannedIteration]:
    """Return a plan for each deadline, with changes of clock priced and few.

    Args:
        starts: of the problem that the plans are for, with changes free.
        clocked: its points with their clocks.
        plans: some plans of it, such as its frontier; they are tried beside others.
        deadlines_s: bounds on the makespan, rising.

    Returns:
        Plans for the deadlines that one was found for; where none was, the fastest plan that was found takes the first
        place. Their bounds are those with free changes.
    """
    guided = np.unique(np.asarray(deadlines_s)[np.linspace(0, len(deadlines_s) - 1, GUIDES).round().astype(int)])
    worth_w = np.column_stack([starts.worth_w(deadline_s) for deadline_s in guided])
    at_clock = _at_clock(clocked, worth_w)
    toll_j = min(plan.energy_j for plan in plans) / (clocked.stages.max() + 1)
    frontier = np.column_stack([clocked.option(plan.points) for plan in plans])
    nearest = np.abs(guided[:, np.newaxis] - [plan.time_s for plan in plans]).argmin(axis=0)
    chains = [_chains(clocked, dearer * worth_w, toll * toll_j) for dearer, toll in SEEDS]
    tolled = np.tile(np.arange(len(guided)), len(SEEDS))
    options = _calmed(clocked, np.hstack([frontier, *chains]), np.concatenate([nearest, tolled]), at_clock)
    grid_s = _grid(deadlines_s)
    kept = _kept(_costed(clocked, options, np.concatenate([nearest, tolled])), grid_s, toll_j)
    for turn in range(GENERATIONS):
        more = _costed(clocked, *_tried(clocked, kept, at_clock, turn))
        better = _kept(_joined(kept, more), grid_s, toll_j)
        if better.options.shape == kept.options.shape and (better.options == kept.options).all():
            break
        kept = better
    return _selected(starts, clocked, kept, deadlines_s, TOLL * toll_j)


def _selected(
    starts: Starts, clocked: ClockedPoints, kept: _Plans, deadlines_s: Sequence[float], toll_j: float
) -> list[PlannedIteration]:
    """Return for each deadline the plan of the least energy and tolls."""
    selected: list[PlannedIteration] = []
    least_s = float(kept.time_s.min())
    wanted_s = {least_s, least_s * (1 + AS_FAST), *(float(deadline_s) for deadline_s in deadlines_s)}
    for deadline_s in sorted(deadline_s for deadline_s in wanted_s if deadline_s >= least_s):
        within = np.flatnonzero(kept.time_s <= deadline_s * (1 + TOLERANCE))
        n = within[(kept.energy_j[within] + toll_j * kept.changes[within]).argmin()]
        energy_j, time_s = float(kept.energy_j[n]), float(kept.time_s[n])
        options = kept.options[:, n]
        # A point off the frontier has one on it that costs at most so much more: bounds are of the latter.
        more = 1.0 if clocked.on_frontier[clocked.kinds, options].all() else 1 + ALIKE
        selected.append(
            PlannedIteration(
                time_s=time_s,
                energy_j=energy_j,
                deadline_s=deadline_s,
                lower_bound_j=sound_bound_j(starts.bound_j(time_s * more) / more, energy_j),
                points=tuple(clocked.points[clocked.kinds, options].tolist()),
            )
        )
    return selected


def _grid(deadlines_s: Sequence[float]) -> Array:
    """Return the deadlines and some times between and around them."""
    edges_s = np.unique([*deadlines_s, deadlines_s[0] * (1 - AS_FAST), deadlines_s[-1] * (1 + AS_FAST)])
    grid_s: Array = np.union1d(edges_s, np.linspace(edges_s[:-1], edges_s[1:], CELLS_BETWEEN + 1).ravel())
    return grid_s


def _costed(clocked: ClockedPoints, options: Indices, guides: Indices) -> _Plans:
    """Return plans with their costs; those whose changes follow too soon on another take forever."""
    costs = [clocked.cost(options[:, part]) for part in parts(options.shape[1], len(options))]
    time_s, energy_j, changes, too_close = (np.concatenate(each) for each in zip(*costs, strict=True))
    return _Plans(options, guides, np.where(too_close > 0, NOWHERE, time_s), energy_j, changes)


def _joined(first: _Plans, second: _Plans) -> _Plans:
    pairs = zip(first, second, strict=True)
    return _Plans(*(np.concatenate(pair, axis=-1) for pair in pairs))


def _kept(plans: _Plans, grid_s: Array, toll_j: float) -> _Plans:
    """Return the best plans at each toll, by rising time; all if that leaves none.

    Args:
        plans: from which to choose.
        grid_s: rising times; of the plans between two of them at most one for each toll is kept.
        toll_j: energy of which tolls are shares.
    """
    cells = grid_s.searchsorted(plans.time_s * (1 - TOLERANCE))
    chosen = []
    for toll in TOLLS:
        costs_j = plans.energy_j + toll * toll_j * plans.changes
        order = np.lexsort((plans.time_s, costs_j, cells))
        order = order[np.append(True, np.diff(cells[order]) > 0)]  # the cheapest of each cell
        lower = np.append(True, costs_j[order][1:] < np.minimum.accumulate(costs_j[order])[:-1])
        chosen.append(order[lower])
    at = np.unique(np.concatenate(chosen))
    feasible = at[plans.time_s[at] < NOWHERE]
    at = feasible if len(feasible) else at
    return plans.take(at[np.argsort(plans.time_s[at], kind="stable")])


def _at_clock(clocked: ClockedPoints, worth_w: Array) -> Indices:
    """Return the option of each instruction at each clock that costs least at its price, or -1 where it has none.

    Args:
        clocked: the points.
        worth_w: joules that a second of each instruction is worth; shape (instructions, guides).

    Returns:
        Shape (clocks, instructions, guides).
    """
    count = clocked.change_s.shape[1]
    cheapest = np.full((count, *worth_w.shape), -1)
    for i, kind in enumerate(clocked.kinds):
        costs_j = clocked.joules[kind] + worth_w[i][:, np.newaxis] * clocked.seconds[kind]
        for clock in np.unique(clocked.clocks[kind][clocked.offered[kind]]):
            places = np.flatnonzero((clocked.clocks[kind] == clock) & clocked.offered[kind])
            cheapest[clock, i] = places[costs_j[:, places].argmin(axis=1)]
    return cheapest


def _chains(clocked: ClockedPoints, worth_w: Array, toll_j: float) -> Indices:
    """Return the plans of least energy where time has a price and each change a toll; shape (instructions, guides)."""
    options = np.empty(worth_w.shape, dtype=np.int64)
    for stage in range(clocked.stages.max() + 1):
        places = np.flatnonzero(clocked.stages == stage)
        options[places] = _chain(clocked, places, worth_w[places], toll_j)
    return options


def _chain(clocked: ClockedPoints, places: Indices, worth_w: Array, toll_j: float) -> Indices:
    """Return the cheapest cycle of clocks of one stage's instructions `own`: exact, over each clock to begin after."""
    count, guides = clocked.change_s.shape[1], worth_w.shape[1]
    steps = [_step(clocked, clocked.kinds[i], worth, toll_j) for i, worth in zip(places, worth_w, strict=True)]
    costs_j, ways = steps[0][0], []  # by guide, the clock before the first instruction, and the last one's so far
    for step_j, _ in steps[1:]:
        sums_j = costs_j[:, :, :, np.newaxis] + step_j[:, np.newaxis]
        ways.append(sums_j.argmin(axis=2))
        costs_j = sums_j.min(axis=2)
    rows = np.arange(guides)
    begun = costs_j[:, np.arange(count), np.arange(count)].argmin(axis=1)  # a cycle ends at the clock that it follows
    clock, chosen = begun, np.empty((len(places), guides), dtype=np.int64)
    for n in range(len(places) - 1, -1, -1):
        former = ways[n - 1][rows, begun, clock] if n else begun
        chosen[n] = steps[n][1][rows, former, clock]
        clock = former
    return chosen


def _step(clocked: ClockedPoints, kind: int, worth_w: Array, toll_j: float) -> tuple[Array, Indices]:
    """Return the least cost of an instruction by the clock before it and its own, and the option that has it.

    Each has the shape (guides, clocks, clocks).
    """
    count = clocked.change_s.shape[1]
    shape = len(worth_w), count, count
    least_j, best = np.full(shape, NOWHERE), np.zeros(shape, dtype=np.int64)
    worth_w = worth_w[:, np.newaxis, np.newaxis]
    for clock in np.unique(clocked.clocks[kind][clocked.offered[kind]]):
        places = np.flatnonzero((clocked.clocks[kind] == clock) & clocked.offered[kind])
        seconds = clocked.seconds[kind, places] + clocked.change_s[kind][:, places]
        tolls_j = toll_j * (np.arange(count) != clock)[:, np.newaxis]
        costs_j = clocked.joules[kind, places] + clocked.change_j[kind][:, places] + tolls_j + worth_w * seconds
        at = costs_j.argmin(axis=2)
        best[:, :, clock] = places[at]
        least_j[:, :, clock] = costs_j.min(axis=2)
    return least_j, best


def _calmed(clocked: ClockedPoints, options: Indices, guides: Indices, at_clock: Indices) -> Indices:
    """Return plans without changes that follow too soon on another: what would change goes on at the clock before."""
    options = options.copy()
    for stage in range(clocked.stages.max() + 1):
        places = np.flatnonzero(clocked.stages == stage)
        worked_s = np.full(options.shape[1], np.inf)
        for i in [*places, *places]:  # the second time round, the first change follows the last one
            former = clocked.clocks[clocked.kinds[clocked.before[i]], options[clocked.before[i]]]
            clock = clocked.clocks[clocked.kinds[i], options[i]]
            on = at_clock[former, i, guides]
            goes_on = (clock != former) & (worked_s < clocked.interval_s) & (on >= 0)
            options[i] = np.where(goes_on, on, options[i])
            is_change = clocked.clocks[clocked.kinds[i], options[i]] != former
            worked_s = np.where(is_change, 0.0, worked_s) + clocked.seconds[clocked.kinds[i], options[i]]
    return options


def _tried(clocked: ClockedPoints, kept: _Plans, at_clock: Indices, turn: int) -> tuple[Indices, Indices]:
    """Return splices of plans and plans with other clocks of a run, and the guide of each."""
    most = int(np.clip(EFFORT // len(kept.options), 1, MOST_TRIED))
    made = [_spliced(clocked, kept, most), _moved(clocked, kept, at_clock, most, turn), _slowed(clocked, kept)]
    options, guides = (np.concatenate(each, axis=-1) for each in zip(*made, strict=True))
    return options, guides


def _slowed(clocked: ClockedPoints, kept: _Plans) -> tuple[Indices, Indices]:
    """Return plans with instructions slowed into the slack around them, each at the clock that it has."""
    options, kinds = kept.options.copy(), clocked.kinds[:, np.newaxis]
    times_s = clocked.seconds[kinds, options] + clocked.prices(options)[0]
    ends_s = latest_ends(clocked.dag, times_s, kept.time_s)
    ended_s = np.empty_like(times_s)
    for i in clocked.dag.order:
        kind = clocked.kinds[i]
        start_s = np.zeros(len(kept.time_s))
        for before, transfer_s in clocked.dag.predecessors[i]:
            start_s = np.maximum(start_s, ended_s[before] + transfer_s)
        former = clocked.clocks[clocked.kinds[clocked.before[i]], options[clocked.before[i]]]
        taken_s = clocked.seconds[kind] + clocked.change_s[kind][former]
        costs_j = clocked.joules[kind] + clocked.change_j[kind][former]
        fits = taken_s <= (ends_s[i] - start_s)[:, np.newaxis] * (1 - TOLERANCE)
        fits &= clocked.offered[kind] & (clocked.clocks[kind] == clocked.clocks[kind][options[i]][:, np.newaxis])
        slower = np.where(fits, costs_j, NOWHERE).argmin(axis=1)
        options[i] = np.where(fits.any(axis=1), slower, options[i])
        ended_s[i] = start_s + taken_s[np.arange(len(start_s)), options[i]]
    return options, kept.guides


def _spliced(clocked: ClockedPoints, kept: _Plans, most: int) -> tuple[Indices, Indices]:
    """Return plans that are one plan up to a moment and another, of about the same time, from there on."""
    count = len(kept.time_s)
    pairs = [
        pair for n in range(count) for m in range(n + 1, min(n + 1 + NEIGHBOURS, count)) for pair in ((n, m), (m, n))
    ]
    if not pairs:
        return kept.options[:, :0], kept.guides[:0]
    pairs = pairs[:: -(-len(pairs) // most)]
    first, second = np.array(pairs).T
    moments = max(1, min(MOMENTS, most // len(pairs)))
    times_s = clocked.seconds[clocked.kinds[:, np.newaxis], kept.options]
    shares = earliest_starts_s(clocked.dag, times_s) / kept.time_s
    moment = (np.arange(moments) + 1) / (moments + 1)
    is_first = shares[:, first, np.newaxis] < moment
    options = np.where(is_first, kept.options[:, first, np.newaxis], kept.options[:, second, np.newaxis])
    return options.reshape(len(options), -1), np.repeat(kept.guides[first], moments)


def _moved(clocked: ClockedPoints, kept: _Plans, at_clock: Indices, most: int, turn: int) -> tuple[Indices, Indices]:
    """Return plans with a run of instructions, or its first or its last one, at another clock."""
    kinds, count = clocked.kinds[:, np.newaxis], clocked.change_s.shape[1]
    clocks = clocked.clocks[kinds, kept.options]
    begins = clocks != clocks[clocked.before]
    firsts = [np.flatnonzero(clocked.stages == stage)[0] for stage in range(clocked.stages.max() + 1)]
    begins[firsts] = True
    runs = begins.cumsum(axis=0)  # number of the run that an instruction is in, stage by stage
    starts, plans = np.nonzero(begins)
    after = np.append(np.arange(1, len(clocks)), 0)
    after[clocked.before[firsts]] = firsts
    ends = begins[after]
    made: list[Indices] = []
    lanes: list[Indices] = []

    def add(plan: Indices, is_moved: Mask, clock: Indices) -> None:
        clock = np.clip(clock, 0, count - 1)
        other = at_clock[clock, :, kept.guides[plan]].T
        changed = is_moved & (other >= 0)
        made.append(np.where(changed, other, kept.options[:, plan]))
        lanes.append(plan)

    sparse = max(1, -(-7 * len(starts) // most))
    starts, plans = starts[turn % sparse :: sparse], plans[turn % sparse :: sparse]
    clock_now, former = clocks[starts, plans], clocks[clocked.before[starts], plans]
    in_run = runs[:, plans] == runs[starts, plans]
    last = (in_run & ends[:, plans]).argmax(axis=0)
    following = clocks[after[last], plans]
    position = np.arange(len(clocks))[:, np.newaxis]
    for clock in (clock_now - 1, clock_now + 1, former, following):
        add(plans, in_run, clock)
    add(plans, position == starts, former)
    add(plans, position == last, following)
    add(plans, position == clocked.before[starts], clock_now)
    return np.hstack(made), kept.guides[np.concatenate(lanes)]
