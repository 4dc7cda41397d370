"""Errors of predicted iterations: by family, by GPU, in all, and those of a constant utilisation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.graph.number_formats import Precision
from kareus.prediction.errors import DENSE, PairError, models_of, pair_errors
from kareus.prediction.rows import MeasuredIteration
from kareus.prediction.workload_prediction import Prediction
from kareus.workload.config import Workload

LEAST_ROWS = 4
"""Rows of a family that counts."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A measured iteration and its prediction."""

    row: MeasuredIteration
    workload: Workload
    predicted: Prediction

    @property
    def error(self) -> float:
        """Predicted over measured time, less one."""
        return self.predicted.time_s / self.row.iteration_time_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationErrors:
    """Mean absolute percentage errors of time."""

    time_mape_pct: float | None
    """Mean over families with four rows or more of the family's mean; None without such a family."""
    signed_median_pct: float
    """Median over rows of predicted less measured time."""
    by_family: Mapping[str, float]
    by_gpu: Mapping[str, float]
    by_expert_model: Mapping[str, float]
    """Of mixtures of experts, by model: means over its rows, whatever their GPUs and numbers."""
    within_90_pct: Mapping[str, float]
    """Share of the rows within the interval that `predict` prints, by GPU and software that has one."""
    constant_mfu_mape_pct: float | None
    """As `time_mape_pct`, of times by the median utilisation of the other rows of a row's family and GPU."""


def errors_of(scored: Sequence[Scored]) -> IterationErrors:
    """Return the errors of predictions, of which there are some."""
    return IterationErrors(
        time_mape_pct=_mean_of_families(scored, [run.error for run in scored]),
        signed_median_pct=100 * float(np.median([run.error for run in scored])),
        by_family=_means(scored, lambda run: run.row.family),
        by_gpu=_means(scored, lambda run: run.row.gpu),
        by_expert_model=_means([run for run in scored if run.row.architecture], lambda run: run.row.architecture),
        within_90_pct=_within(scored),
        constant_mfu_mape_pct=_mean_of_families(scored, constant_mfu_errors(scored)),
    )


def _means(scored: Sequence[Scored], name_of: Callable[[Scored], str]) -> dict[str, float]:
    """Return the mean absolute percentage error by a name of the row."""
    names = dict.fromkeys(name_of(run) for run in scored)
    return {
        name: 100 * float(np.mean([abs(run.error) for run in scored if name_of(run) == name])) for name in sorted(names)
    }


def _within(scored: Sequence[Scored]) -> dict[str, float]:
    """Return the share of rows within the printed interval, by GPU and software."""
    within: dict[str, list[bool]] = {}
    for run in scored:
        pair = next((p for p in pair_errors() if _measured_as(p) == _pair(run)), None)
        if pair is not None:
            size = abs(np.log1p(run.error))
            name = " ".join(part for part in _pair(run) if part not in (DENSE, Precision.BF16))
            within.setdefault(name, []).append(bool(size <= np.log1p(pair.percent_90 / 100)))
    return {pair: 100 * float(np.mean(rows)) for pair, rows in sorted(within.items())}


def _pair(run: Scored) -> tuple[str, ...]:
    workload = run.workload
    return workload.gpu.name, workload.software.name, models_of(workload), str(workload.precision)


def _measured_as(pair: PairError) -> tuple[str, ...]:
    return pair.gpu, pair.software, pair.models, pair.precision


def _mean_of_families(scored: Sequence[Scored], errors: Sequence[float | None]) -> float | None:
    by_family: dict[str, list[float]] = {}
    for run, error in zip(scored, errors, strict=True):
        if error is not None:
            by_family.setdefault(run.row.family, []).append(abs(error))
    means = [float(np.mean(family_errors)) for family_errors in by_family.values() if len(family_errors) >= LEAST_ROWS]
    return 100 * float(np.mean(means)) if means else None


def left_out_pct(scored: Sequence[Scored]) -> float | None:
    """Return the mean error that rows had where their model was left out of the fit; None where a row was not in it.

    Of a GPU and a software, whatever network a row's cluster has.
    """
    percent_of = {_measured_as(pair): pair.mean_percent for pair in pair_errors()}
    pairs = [_pair(run) for run in scored]
    fitted = bool(pairs) and all(pair in percent_of for pair in pairs)
    return float(np.mean([percent_of[pair] for pair in pairs])) if fitted else None


def fit_words(scored: Sequence[Scored]) -> str:
    """Return how many rows the fit has seen, and their mean error left out, over families as `time_mape_pct`."""
    percents = [left_out_pct([run]) for run in scored]
    mean = _mean_of_families(scored, [None if percent is None else percent / 100 for percent in percents])
    seen = sum(percent is not None for percent in percents)
    left_out = "" if mean is None else f"; left out of it {mean:.1f} %"
    return f"{seen} of {len(scored)} rows are in the fit{left_out}"


def constant_mfu_errors(scored: Sequence[Scored]) -> list[float | None]:
    """Return the errors of a constant utilisation, None where a row is the only one of its family and GPU."""
    utilisations: dict[tuple[str, str], list[float]] = {}
    for run in scored:
        utilisations.setdefault((run.row.family, run.row.gpu), []).append(_measured_mfu(run))
    errors: list[float | None] = []
    for run in scored:
        others = list(utilisations[run.row.family, run.row.gpu])
        others.remove(_measured_mfu(run))
        errors.append(_measured_mfu(run) / float(np.median(others)) - 1 if others else None)
    return errors


def _measured_mfu(run: Scored) -> float:
    return run.predicted.mfu * run.predicted.time_s / run.row.iteration_time_s
