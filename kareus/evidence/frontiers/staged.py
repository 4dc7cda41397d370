"""Results of the planning stages for a workload, as a campaign prints them, but for the noise of measuring."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from kareus.evidence.frontiers.predict import PlannedMethods, predicted_percent
from kareus.evidence.frontiers.reference import ABLATIONS, ReductionRow
from kareus.evidence.frontiers.subject import Subject
from kareus.pipeline.compare import MethodComparison, compare_methods
from kareus.plans.planning import plan_tables, quietly

Percents = Mapping[str, float | None]
"""What methods save, or ablations cost, by method; None where a method has no such point."""
Planner = Callable[[Subject], Callable[[ReductionRow], Percents]]
"""Plans a workload, and then says what the methods of rows save."""


def by_stages(subject: Subject) -> Callable[[ReductionRow], Percents]:
    """Plan with all stages of a campaign: profile, search, frontiers, solver; takes about ten seconds.

    Raises:
        ConfigError: the workload's testbed is not simulated.
    """
    workload = subject.workload
    noiseless = replace(workload.testbed, time_noise=0.0, power_noise=0.0)
    with quietly():
        iteration = plan_tables(replace(workload, testbed=noiseless)).iteration
    return functools.partial(compared_percent, {compared.method: compared for compared in compare_methods(iteration)})


def by_bounds(subject: Subject) -> Callable[[ReductionRow], Percents]:
    """Plan with every candidate and the solver's linear program: a fit asks for it hundreds of times."""
    return functools.partial(predicted_percent, PlannedMethods(subject, with_transfers=True))


def compared_percent(compared: Mapping[str, MethodComparison], row: ReductionRow) -> Percents:
    """Return what the methods of a row save, or what the ablation of its table costs.

    Args:
        compared: comparisons by method; without nanobatches its methods are missing.
        row: names table, metric and methods.
    """
    column = row.metric.replace("_pct", "_percent")
    if row.table in ABLATIONS:
        return {"kareus": getattr(compared.get(ABLATIONS[row.table]), column, None)}
    return {method: getattr(compared.get(method), column, None) for method in row.given_percent}
