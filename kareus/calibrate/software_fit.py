"""Fitting the numbers of a software profile to measured iterations, and judging the fit on what is left out.

Least squares in logarithms with a prior on each number. A profile has three: the host's time for a kernel, the speed
of fused attention or the host's time around an instruction, and the traffic of operators that HBM bounds. All rows of
the software share them. Families weigh alike. Left out are models (of a software with one model, sizes of it), each
predicted by a fit to the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.number_fit import fit_numbers
from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.gpu_model.declarations import FitData, FitPrior
from kareus.prediction.rows import MeasuredIteration
from kareus.prediction.workload_prediction import predict_time_s
from kareus.software.record import Reduction, Software, with_numbers
from kareus.workload.config import Workload, run_by

EVALUATIONS = 10
REFIT_EVALUATIONS = 4
"""Most steps of a fit, and of one that starts from another."""
REFIT_ROWS = 150
"""Most rows of a refit without a group, at equal distances among all: three numbers need no more."""

PRIORS: Mapping[str, FitPrior] = {
    "host_launch_s": FitPrior(FitData.ITERATIONS, 2e-5, 2e-6, 1.5e-4, 1.0),
    "host_collective_s": FitPrior(FitData.ITERATIONS, 1e-4, 2e-6, 1e-3, 1.0),
    "host_rank_s": FitPrior(FitData.ITERATIONS, 1e-4, 1e-6, 2e-3, 1.5),
    "collective_slowdown": FitPrior(FitData.ITERATIONS, 1.5, 1.0, 4.0, 0.3),
    "instruction_overhead_s": FitPrior(FitData.ITERATIONS, 5e-4, 5e-6, 1e-2, 1.0),
    "attention_slowdown": FitPrior(FitData.ITERATIONS, 1.1, 0.6, 3.0, 0.3),
    "traffic": FitPrior(FitData.ITERATIONS, 1.2, 1.0, 3.0, 0.3),
    "network_slowdown": FitPrior(FitData.ITERATIONS, 2.0, 0.7, 20.0, 0.7),
    "hidden_reduction": FitPrior(FitData.ITERATIONS, 0.7, 0.02, 1.0, 0.7),
    "hidden_gather": FitPrior(FitData.ITERATIONS, 0.7, 0.02, 1.0, 0.7),
    "block_messages": FitPrior(FitData.ITERATIONS, 2.0, 0.1, 60.0, 1.0),
}
"""PyTorch takes 5 to 10 us for an eager operator with autograd. A kernel of the operator graph, which fuses what can be
fused, is several of them in eager software: views, casts, random number states, checks. A collective launches on a
stream of its own between two events. Kernels that fuse nothing read and write two to three times what one does. NICs
reach half of their bandwidth in many clusters, and never more than 1.4 times what is assumed of them. A block has about
ten tensors, of which software sends one message or many. Of what a trainer hides, 2 % are as good as nothing."""


def fitted_numbers(software: Software) -> tuple[str, ...]:
    """Return the names of the three numbers that are fitted: of software with fused attention, its speed is one."""
    if software.launches_ahead is LaunchesAhead.PART:
        return ("host_launch_s", "collective_slowdown", "traffic")
    return ("host_launch_s", "attention_slowdown" if software.fused_attention else "instruction_overhead_s", "traffic")


def trainer_numbers(software: Software) -> tuple[str, ...]:
    """Return the names of the numbers that runs on a user's cluster tell: of a profile, its host and its network."""
    waits = software.launches_ahead is not LaunchesAhead.STEP
    return tuple(
        dict.fromkeys(
            (
                *fitted_numbers(software),
                "host_collective_s",
                *(["host_rank_s"] if waits else []),
                "network_slowdown",
                *(["hidden_reduction"] if software.reduction is Reduction.BUCKETS else []),
                *(["hidden_gather"] if software.gather_beside_forward else []),
                "block_messages",
            )
        )
    )


@dataclass(frozen=True, slots=True)
class IterationData:
    """Measured iterations and what they ran."""

    rows: Sequence[MeasuredIteration]
    workloads: Sequence[Workload]

    def where(self, kept: Sequence[bool]) -> "IterationData":
        """Return the rows at which `kept` is true."""
        return IterationData(
            [row for row, keep in zip(self.rows, kept, strict=True) if keep],
            [workload for workload, keep in zip(self.workloads, kept, strict=True) if keep],
        )


def fit_software(data: IterationData, start: Mapping[str, float], evaluations: int = EVALUATIONS) -> dict[str, float]:
    """Return the numbers of the software that ran all of `data`.

    Args:
        data: measured iterations of one software.
        start: numbers to start from.
        evaluations: most steps.
    """
    priors = {name: PRIORS[name] for name in fitted_numbers(data.workloads[0].software)}
    return fit_numbers(priors, lambda values: errors(data, values), start, evaluations, _weights(data.rows)).values


def left_out(data: IterationData, start: Mapping[str, float], groups: Sequence[str]) -> Array:
    """Return the logarithms of predicted over measured times, each by a fit that had not seen the row's group."""
    errors_of_rows = np.full(len(data.rows), np.nan)
    for group in dict.fromkeys(groups):
        is_of_group = [name == group for name in groups]
        others = _thinned(data.where([not inside for inside in is_of_group]))
        fitted = fit_software(others, start, REFIT_EVALUATIONS)
        errors_of_rows[np.array(is_of_group)] = errors(data.where(is_of_group), fitted)
    return errors_of_rows


def judged(data: IterationData, start: Mapping[str, float], others: IterationData) -> Array:
    """Return the logarithms of predicted over measured times of `others`, each by a fit that had not seen its model."""
    errors_of_rows, models = np.full(len(others.rows), np.nan), list(map(_model_name, others.rows))
    for model in dict.fromkeys(models):
        is_of_model = [name == model for name in models]
        seen = data.where([_model_name(row) != model for row in data.rows])
        values = fit_software(_thinned(seen), start, REFIT_EVALUATIONS) if len(seen.rows) < len(data.rows) else start
        errors_of_rows[np.array(is_of_model)] = errors(others.where(is_of_model), values)
    return errors_of_rows


def _model_name(row: MeasuredIteration) -> str:
    return row.model.split(" ")[0].lower()


def _thinned(data: IterationData) -> IterationData:
    stride = -(-len(data.rows) // REFIT_ROWS)
    families = [row.family for row in data.rows]
    large = [families.count(family) > REFIT_ROWS for family in families]
    return data.where([not often or n % stride == 0 for n, often in enumerate(large)])


def groups_of(rows: Sequence[MeasuredIteration]) -> list[str]:
    """Return what is left out together: models; of a family with a single one, widths of it."""
    models = {row.family: {other.model for other in rows if other.family == row.family} for row in rows}
    return [
        f"{row.family} {row.model.split(' ')[0]}"
        if len(models[row.family]) > 1
        else f"{row.family} hidden {row.hidden}"
        for row in rows
    ]


def errors(data: IterationData, values: Mapping[str, float]) -> Array:
    """Return the logarithms of predicted over measured times with these numbers of the software.

    Rows that differ in nothing but what was measured are predicted once.
    """
    names = [repr(workload) for workload in data.workloads]
    once = dict(zip(names, data.workloads, strict=True))
    times_s = {name: predict_time_s(changed(workload, values)) for name, workload in once.items()}
    logarithms: Array = np.log([times_s[name] for name in names]) - np.log([row.iteration_time_s for row in data.rows])
    return logarithms


def changed(workload: Workload, values: Mapping[str, float]) -> Workload:
    """Return the same iteration of a software with other numbers."""
    return run_by(workload, with_numbers(workload.software, values))


def _weights(rows: Sequence[MeasuredIteration]) -> Array:
    """Square roots of weights that sum to 100 over the rows of each family."""
    families = [row.family for row in rows]
    return np.array([np.sqrt(100 / families.count(family)) for family in families])
