"""The answer of `validate` to a file with measured iterations: one JSON object, or tables for a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kareus.artifacts.records import to_plain
from kareus.errors import ConfigError
from kareus.evidence.iterations.score import IterationErrors, Scored, errors_of
from kareus.prediction.lines import Refusal, plain_refusals, refused_lines
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.rows import MeasuredIteration
from kareus.prediction.workload_prediction import Prediction, predict


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
