"""Errors of predicted iterations (by family, by GPU, in all), and the answer of `validate` to a file of iterations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kareus.artifacts.records import to_plain
from kareus.errors import ConfigError
from kareus.graph.number_formats import Precision
from kareus.prediction.errors import DENSE, PairError, models_of, pair_errors
from kareus.prediction.lines import Refusal, plain_refusals, refused_lines
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.rows import MeasuredIteration
from kareus.prediction.workload_prediction import Prediction, predict
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
        pair = next((p for p in pair_errors() if _error_kind(p) == _run_kind(run)), None)
        if pair is not None:
            size = abs(np.log1p(run.error))
            name = " ".join(part for part in _run_kind(run) if part not in (DENSE, Precision.BF16))
            within.setdefault(name, []).append(bool(size <= np.log1p(pair.percent_90 / 100)))
    return {pair: 100 * float(np.mean(rows)) for pair, rows in sorted(within.items())}


def _run_kind(run: Scored) -> tuple[str, ...]:
    """Return what errors are told apart by: GPU, software, kind of models, and precision."""
    workload = run.workload
    return workload.gpu.name, workload.software.name, models_of(workload), str(workload.precision)


def _error_kind(pair: PairError) -> tuple[str, ...]:
    """Return the same of an error that was measured."""
    return pair.gpu, pair.software, pair.models, pair.precision


def _mean_of_families(scored: Sequence[Scored], errors: Sequence[float | None]) -> float | None:
    """Return the mean of the mean absolute errors of families, in %; errors are shares, None where there is none."""
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
    percent_of = {_error_kind(pair): pair.mean_percent for pair in pair_errors()}
    pairs = [_run_kind(run) for run in scored]
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


@dataclass(frozen=True, slots=True)
class IterationAnswer:
    """Iterations of a file, their predictions and errors."""

    scored: tuple[Scored, ...]
    refused: tuple[Refusal, ...]
    errors: IterationErrors

    @property
    def title(self) -> str:
        """What the file holds."""
        return "Training iterations"

    @property
    def gpus(self) -> set[str]:
        """Options of the GPUs."""
        return {run.row.gpu for run in self.scored}

    @property
    def plain(self) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            **to_plain(self.errors),
            "kind": "iteration",
            "rows": [_plain_row(scored_row) for scored_row in self.scored],
            "refused": plain_refusals(self.refused),
        }

    @property
    def lines(self) -> list[str]:
        """Tables: errors by family and GPU, what predictions are made of, and what was refused."""
        errors = self.errors
        lines = [f"{'family':<24} {'rows':>5} {'time':>8} {'median':>8}  mean share of {', '.join(SHARES)}"]
        for family, mape_pct in errors.by_family.items():
            family_rows = [scored for scored in self.scored if scored.row.family == family]
            median_pct = 100 * float(np.median([scored.error for scored in family_rows]))
            shares = " ".join(f"{100 * share:5.1f}%" for share in _mean_shares(family_rows))
            lines.append(f"{family:<24} {len(family_rows):>5} {mape_pct:>7.1f}% {median_pct:>z7.1f}%  {shares}")
        lines += ["", *(f"{model:<24} {'':>5} {mape_pct:>7.1f}%" for model, mape_pct in errors.by_expert_model.items())]
        lines += ["", *(f"{gpu:<24} {'':>5} {mape_pct:>7.1f}%" for gpu, mape_pct in errors.by_gpu.items()), ""]
        if errors.time_mape_pct is not None:
            lines += [f"mean over families of 4 rows or more: {errors.time_mape_pct:.1f} % of time"]
        if errors.constant_mfu_mape_pct is not None:
            lines += [f"for comparison, constant MFU of a family's other rows: {errors.constant_mfu_mape_pct:.1f} %"]
        lines += [f"median of predicted less measured time: {errors.signed_median_pct:z.1f} %"]
        lines += [
            f"within the interval that predict prints (90 % of rows left out): {share_pct:.0f} % of {pair}"
            for pair, share_pct in errors.within_90_pct.items()
        ]
        return ["", *lines, *refused_lines(self.refused)]


def answer_iterations(
    rows: Sequence[MeasuredIteration], overrides: Sequence[str], config_dir: Path, unusable: Sequence[Refusal] = ()
) -> IterationAnswer:
    """Predict and score all rows that can be represented.

    Args:
        rows: measured iterations; each names its GPU.
        overrides: Hydra overrides of every workload, such as `gpu.coefficients.contention=0.5`.
        config_dir: Hydra groups.
        unusable: rows of the file that were refused when it was read.

    Raises:
        ConfigError: an override cannot be used, or no row can be represented; with the reason of the first.
    """
    for group in ("gpu", "software"):
        if any(override.split("=")[0] == group for override in overrides):
            raise ConfigError(f"{group}: every measured iteration names its {group}; leave {group}=... out.")
    workloads = MeasuredWorkloads(tuple(overrides), config_dir)
    scored, refused = [], list(unusable)
    for row in rows:
        try:
            workload = workloads.of(row)
            predicted = predict(workload)
        except ConfigError as error:
            refused.append(Refusal(row.line, str(error)))
        else:
            scored.append(Scored(row, workload, predicted))
    refused.sort(key=lambda refusal: refusal.line)
    if not scored:
        raise ConfigError(refused[0].reason)
    return IterationAnswer(tuple(scored), tuple(refused), errors_of(scored))


def _plain_row(scored: Scored) -> dict[str, Any]:
    return {
        "row": scored.row.line,
        "family": scored.row.family,
        "gpu": scored.row.gpu,
        "model": scored.row.model,
        "num_gpus": scored.row.gpus,
        "software": scored.workload.software.name,
        "time_s": scored.row.iteration_time_s,
        "predicted_time_s": scored.predicted.time_s,
        "error_pct": 100 * scored.error,
        "energy_j": scored.predicted.energy_j,
        "mfu": scored.predicted.mfu,
        **{f"{name.replace(' ', '_')}_s": time_s for name, time_s in shares_of(scored.predicted).items()},
    }


SHARES: Mapping[str, Sequence[str]] = {
    "operators": ("gemm", "grouped-gemm", "attention", "attention-backward", "memory", "embedding", "head"),
    "exposed communication": ("collectives", "gradient reduction", "embedding exchange", "weight gathering"),
    "host and the rest": ("overhead",),
    "waiting": ("waiting",),
    "update": ("gradient norm", "optimizer step", "weight casting"),
}
"""Components of predictions, put together for people."""


def shares_of(predicted: Prediction) -> dict[str, float]:
    """Return the seconds of an iteration that each of `SHARES` takes."""
    times_s = {component.name: component.time_s for component in predicted.components}
    return {share: sum(times_s.get(name, 0.0) for name in names) for share, names in SHARES.items()}


def _mean_shares(scored: Sequence[Scored]) -> list[float]:
    shares = [[shares_of(row.predicted)[share] / row.predicted.time_s for share in SHARES] for row in scored]
    return [float(share) for share in np.mean(shares, axis=0)]
