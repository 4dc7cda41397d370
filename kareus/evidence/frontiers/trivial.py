"""Baselines: errors of predictions without a model, to compare the errors of the GPU model with."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kareus.evidence.frontiers.predict import EXECUTIONS
from kareus.evidence.frontiers.reference import FrontierRow, fastest_rows
from kareus.evidence.frontiers.subject import Subject, Subjects
from kareus.profile.programs import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class TrivialErrors:
    """Mean absolute percentage errors of the fastest plans of all curves."""

    constant_throughput_time_mape_pct: float
    """Time as if every workload reached the same FLOP/s."""
    constant_power_energy_mape_pct: float
    """Energy as if every iteration drew the same power, for its true time."""


def trivial_errors(rows: Sequence[FrontierRow], subjects: Subjects) -> TrivialErrors | None:
    """Errors of the best constant of each kind, or None without rows of the baselines."""
    fastest = fastest_rows([row for row in rows if row.method in EXECUTIONS])
    if not fastest:
        return None
    return TrivialErrors(
        constant_throughput_time_mape_pct=_spread_pct([r.time_s / _flops(subjects[r.scenario]) for r in fastest]),
        constant_power_energy_mape_pct=_spread_pct([r.energy_j / r.scenario.pp / r.time_s for r in fastest]),
    )


def _flops(subject: Subject) -> float:
    """Of one GPU of every stage, for one microbatch forward and backward."""
    counted = [tally for (_, execution), tally in subject.tallies.items() if execution is Execution.SEQUENTIAL]
    microbatches = subject.workload.num_microbatches
    return microbatches * float(
        sum(
            count * operator.flops
            for tally in counted
            for steps in (tally.blocks, tally.outer)
            for step, count in steps.items()
            for operator in step.operators
        )
    )


def _spread_pct(values: Sequence[float]) -> float:
    """Mean absolute percentage error of predicting the mean of `values` for each of them."""
    mean = fmean(values)
    return 100 * fmean(abs(mean / value - 1) for value in values)
