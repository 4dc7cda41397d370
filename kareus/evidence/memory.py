"""The answer of `validate` to a file with the memory of trainings: one JSON object, or tables for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kareus.errors import ConfigError
from kareus.prediction.lines import Line, Refusal, plain_refusals, refused_lines
from kareus.prediction.measured_memory import REAL, MeasuredMemory, estimate_of, memory_data
from kareus.prediction.memory_formats import Format
from kareus.workload.config import Workload
from kareus.workload.memory import MemoryEstimate, MemoryFit, estimate_memory, fit_of


@dataclass(frozen=True, slots=True)
class ScoredMemory:
    """A training and the estimate of its memory."""

    row: MeasuredMemory
    workload: Workload
    estimate: MemoryEstimate
    """Of the GPU that was measured."""
    fit: MemoryFit
    """What Kareus says of the fullest GPU."""

    @property
    def error(self) -> float:
        """Estimated over measured allocated memory, less one; of a row that ran."""
        return self.estimate.allocated_gib / (self.row.allocated_gib or np.nan) - 1


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """Trainings of a file and their estimates."""

    scored: tuple[ScoredMemory, ...]
    refused: tuple[Refusal, ...]

    @property
    def title(self) -> str:
        """What the file holds."""
        return "Memory of trainings"

    @property
    def gpus(self) -> set[str]:
        """Options of the GPUs."""
        return {run.row.iteration.gpu for run in self.scored}

    @property
    def plain(self) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            **errors_of(self),
            "kind": "memory",
            "rows": [_plain_row(run) for run in self.scored],
            "refused": plain_refusals(self.refused),
        }

    @property
    def lines(self) -> list[str]:
        """Tables: errors by group, verdicts, and what was refused."""
        errors = errors_of(self)
        lines = [f"{'group':<24} {'rows':>5} {'memory':>8} {'median':>8}"]
        for group, mape_pct in errors["by_group"].items():
            of_group = [
                run.error for run in self.scored if run.row.group == group and run.row.allocated_gib is not None
            ]
            lines.append(f"{group:<24} {len(of_group):>5} {mape_pct:>7.1f}% {100 * float(np.median(of_group)):>z7.1f}%")
        counted = sum(run.row.counts for run in self.scored)
        if counted:
            lines += [
                "",
                f"models with a hidden size of {REAL:,} or more ({counted} rows): {errors['memory_mape_pct']:.1f} %",
            ]
        if errors["memory_mape_pct_experts"] is not None and errors["memory_mape_pct_dense"] is not None:
            lines += [
                f"of these dense {errors['memory_mape_pct_dense']:.1f} %, with experts or latent attention "
                f"{errors['memory_mape_pct_experts']:.1f} %"
            ]
        if errors["crashed_refused_pct"] is not None:
            lines += [
                f"of what ran, refused: {errors['ran_refused_pct'] or 0:.1f} %; of what crashed, refused or tight: "
                f"{errors['crashed_refused_pct']:.1f} %"
            ]
        return ["", *lines, *refused_lines(self.refused)]


def answer_memory(lines: Sequence[Line], kind: Format, overrides: Sequence[str], config_dir: Path) -> MemoryAnswer:
    """Estimate the memory of all rows that can be represented.

    Raises:
        ConfigError: an override cannot be used, or no row can be represented; with the reason of the first.
    """
    data, refused = memory_data(lines, kind, overrides, config_dir)
    if not data:
        raise ConfigError(refused[0].reason if refused else "the file has a header and no rows; give a file with data.")
    scored = (
        ScoredMemory(row, workload, estimate_of(row, workload), fit_of(workload, estimate_memory(workload)))
        for row, workload in data
    )
    return MemoryAnswer(tuple(scored), tuple(refused))


def errors_of(answer: MemoryAnswer) -> dict[str, Any]:
    """Return mean absolute percentage errors, and what was said of trainings that ran and of those that crashed.

    Shares are None where the file has no such rows.
    """
    ran = [run for run in answer.scored if run.row.allocated_gib is not None]
    crashed = [run for run in answer.scored if run.row.allocated_gib is None]
    groups = sorted({run.row.group for run in ran})
    counted = [run for run in ran if run.row.counts]
    return {
        "memory_mape_pct": _mape_pct(counted),
        "memory_mape_pct_dense": _mape_pct([run for run in counted if run.row.is_dense]),
        "memory_mape_pct_experts": _mape_pct([run for run in counted if not run.row.is_dense]),
        "memory_mape_pct_all": _mape_pct(ran),
        "by_group": {group: _mape_pct([run for run in ran if run.row.group == group]) for group in groups},
        "ran_refused_pct": _share_pct(ran, (MemoryFit.REFUSED,)),
        "crashed_refused_pct": _share_pct(crashed, (MemoryFit.REFUSED, MemoryFit.TIGHT)),
    }


def _mape_pct(scored: Sequence[ScoredMemory]) -> float | None:
    return 100 * float(np.mean([abs(run.error) for run in scored])) if scored else None


def _share_pct(scored: Sequence[ScoredMemory], fits: Sequence[MemoryFit]) -> float | None:
    return 100 * float(np.mean([run.fit in fits for run in scored])) if scored else None


def _plain_row(run: ScoredMemory) -> dict[str, Any]:
    row, estimate = run.row, run.estimate
    return {
        "row": row.line,
        "name": row.name,
        "group": row.group,
        "software": run.workload.software.name,
        "counts": row.counts,
        "allocated_gib": row.allocated_gib,
        "estimated_gib": estimate.allocated_gib,
        "error_pct": None if row.allocated_gib is None else 100 * run.error,
        "stage": estimate.stage,
        "fit": run.fit.value,
        "parts_gib": dict(estimate.parts_gib),
    }
