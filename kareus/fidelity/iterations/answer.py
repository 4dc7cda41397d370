"""The answer of `validate` to a file with measured iterations: one JSON object, or tables for a terminal."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kareus.artifacts.records import to_plain
from kareus.errors import ConfigError
from kareus.fidelity.iterations.predict import Predictor
from kareus.fidelity.iterations.rows import MeasuredIteration
from kareus.fidelity.iterations.score import IterationErrors, Scored, errors_of
from kareus.fidelity.iterations.workloads import IterationSubjects
from kareus.fidelity.lines import Refusal


@dataclass(frozen=True, slots=True)
class IterationAnswer:
    """Iterations of a file, their predictions and errors."""

    scored: tuple[Scored, ...]
    refused: tuple[Refusal, ...]
    errors: IterationErrors


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
    if any(override.split("=")[0] == "gpu" for override in overrides):
        raise ConfigError("gpu: every measured iteration names its GPU; leave gpu=... out.")
    subjects, predictor = IterationSubjects(tuple(overrides), config_dir), Predictor()
    scored, refused = [], list(unusable)
    for row in rows:
        try:
            subject = subjects.of(row)
            predicted = predictor.predict(subject)
        except ConfigError as error:
            refused.append(Refusal(row.line, str(error)))
        else:
            scored.append(Scored(row, subject.software.name, subject.workload.gpu, predicted))
    refused.sort(key=lambda refusal: refusal.line)
    if not scored:
        raise ConfigError(refused[0].reason)
    return IterationAnswer(tuple(scored), tuple(refused), errors_of(scored))


def plain_answer(answer: IterationAnswer) -> dict[str, Any]:
    """Return the answer as plain data."""
    return {
        **to_plain(answer.errors),
        "kind": "iteration",
        "rows": [_plain_row(one) for one in answer.scored],
        "refused": [{"row": refusal.line, "reason": refusal.reason} for refusal in answer.refused],
    }


def _plain_row(one: Scored) -> dict[str, Any]:
    parts = asdict(one.predicted)
    return {
        "row": one.row.line,
        "family": one.row.family,
        "gpu": one.row.gpu,
        "model": one.row.model,
        "num_gpus": one.row.gpus,
        "software": one.software,
        "time_s": one.row.iteration_time_s,
        "predicted_time_s": parts.pop("time_s"),
        "error_pct": 100 * one.error,
        **parts,
    }


def lines_of(answer: IterationAnswer) -> list[str]:
    """Return the tables of the answer: errors by family and GPU, what predictions are made of, and what was refused."""
    errors = answer.errors
    lines = [f"{'family':<24} {'rows':>5} {'time':>8} {'median':>8}  mean share of forward, backward, exposed, host, "
             "bubbles, update"]  # fmt: skip
    for family, mape_pct in errors.by_family.items():
        own = [one for one in answer.scored if one.row.family == family]
        median_pct = 100 * float(np.median([one.error for one in own]))
        shares = " ".join(f"{100 * share:5.1f}%" for share in _mean_shares(own))
        lines.append(f"{family:<24} {len(own):>5} {mape_pct:>7.1f}% {median_pct:>z7.1f}%  {shares}")
    lines += ["", *(f"{gpu:<24} {'':>5} {mape_pct:>7.1f}%" for gpu, mape_pct in errors.by_gpu.items()), ""]
    if errors.time_mape_pct is not None:
        lines += [f"mean over families of 4 rows or more: {errors.time_mape_pct:.1f} % of time"]
    if errors.constant_mfu_mape_pct is not None:
        lines += [f"for comparison, constant MFU of a family's other rows: {errors.constant_mfu_mape_pct:.1f} %"]
    lines += [f"median of predicted less measured time: {errors.signed_median_pct:z.1f} %"]
    if answer.refused:
        lines += [f"refused: {len(answer.refused)} rows, the first in line {answer.refused[0].line}: "
                  f"{answer.refused[0].reason}"]  # fmt: skip
    return lines


def _mean_shares(scored: Sequence[Scored]) -> list[float]:
    names = ("forward_s", "backward_s", "exposed_communication_s", "host_s", "bubbles_s", "update_s")
    return [float(np.mean([getattr(one.predicted, name) / one.predicted.time_s for one in scored])) for name in names]
