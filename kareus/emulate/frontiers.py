"""Frontiers of one pipeline of a fleet by method, with the plans of the paper's iso-time and iso-energy comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from kareus.emulate.fleet import scale_of
from kareus.emulate.joined import joining
from kareus.emulate.resolve import Fleet
from kareus.emulate.waiting import with_plans_of, with_slower_plans
from kareus.pareto import pareto_order
from kareus.pipeline.compare import FRONTIER_BASELINE
from kareus.pipeline.frontiers import method_problem
from kareus.pipeline.methods import method_named
from kareus.pipeline.solver.frontier import PlannedIteration, cheapest_within, iteration_frontier
from kareus.pipeline.solver.problem import Problem
from kareus.plans.limits import fastest_under
from kareus.workload.slices import cut


@dataclass(frozen=True, slots=True)
class MethodFrontier:
    """Plans of one pipeline of a fleet by one method."""

    method: str
    problem: Problem
    plans: tuple[PlannedIteration, ...]
    """Frontier, by rising time, then slower plans of less dynamic energy."""
    joined: frozenset[int] = frozenset()
    """Numbers of the instructions that all pipelines have together."""


def method_frontiers(fleet: Fleet, microbatch: pl.DataFrame) -> list[MethodFrontier]:
    """Return the frontiers of one pipeline, by method, with the plans by which they are compared.

    Raises:
        ArtifactError: a stage or direction of a method has no points.
    """
    methods = [method_named(name) for name in fleet.emulation.methods]
    config = cut(fleet.pipeline, "pipeline")
    problems = {
        method.name: _of_one(method_problem(config, microbatch, method), fleet.planned_pipelines) for method in methods
    }
    plans = {
        method.name: iteration_frontier(problems[method.name], fleet.emulation.deadlines if method.has_frontier else 1)
        for method in methods
    }
    baseline = plans[FRONTIER_BASELINE]
    joined = joining(config) if fleet.joins else frozenset()
    idle_w = _idle_power_w(fleet)
    compared = {name: with_iso_plans(of_method, problems[name], baseline) for name, of_method in plans.items()}
    slower = {
        method.name: with_slower_plans(compared[method.name], problems[method.name], idle_w)
        if method.has_frontier
        else compared[method.name]
        for method in methods
    }
    others = [(problems[name], of_method) for name, of_method in slower.items()]
    return [
        MethodFrontier(
            method.name,
            problems[method.name],
            tuple(
                with_plans_of(slower[method.name], problems[method.name], others, idle_w)
                if method.has_frontier
                else slower[method.name]
            ),
            joined,
        )
        for method in methods
    ]


def _idle_power_w(fleet: Fleet) -> float:
    """Return the power of one pipeline's GPUs while the fleet waits."""
    scale = scale_of(fleet)
    return scale.idle_power_w * scale.pipeline_gpus


def _of_one(problem: Problem, pipelines: int) -> Problem:
    """Return the problem of one of so many pipelines, whose energies `problem` has in all."""
    if pipelines == 1:
        return problem
    averaged = {
        id(points): replace(
            points,
            energies_j=tuple(energy_j / pipelines for energy_j in points.energies_j),
            waiting_above_w=tuple(above_w / pipelines for above_w in points.waiting_above_w),
        )
        for points in problem.distinct
    }
    return replace(
        problem,
        point_sets=tuple(averaged[id(points)] for points in problem.point_sets),
        waiting_power_w=problem.waiting_power_w / pipelines,
    )


def with_iso_plans(
    plans: Sequence[PlannedIteration], problem: Problem, baseline: Sequence[PlannedIteration]
) -> tuple[PlannedIteration, ...]:
    """Add the cheapest plan within the baseline's least time, and the fastest within its least energy.

    Args:
        plans: a frontier, by rising time.
        problem: what it plans.
        baseline: the frontier that it is compared with, by rising time.

    Returns:
        The frontier of all of them, by rising time; a plan that cannot be as fast, or need as little
        energy, is not added.
    """
    deadline_s, energy_j = baseline[0].time_s, baseline[-1].energy_j
    added = [cheapest_within(problem, deadline_s)] if plans[0].time_s <= deadline_s else []
    within = next((n for n, plan in enumerate(plans) if plan.energy_j <= energy_j), 0)
    if within > 0:
        ends = ((plan.time_s, plan.energy_j) for plan in plans[within - 1 : within + 1])
        fastest = fastest_under(problem, (energy_j, 0.0), *ends)
        added += [fastest] if fastest is not None else []
    candidates = [*plans, *added]
    return tuple(candidates[n] for n in pareto_order([(plan.time_s, plan.energy_j) for plan in candidates]))
