"""The worst predictions: errors of parts of the rows of every group, the largest first."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.evidence.iterations import IterationAnswer
from kareus.evidence.kernels.answer import KernelAnswer
from kareus.evidence.kernels.counted import time_counts
from kareus.evidence.kernels.rows import KernelKind
from kareus.evidence.page.errors import KINDS
from kareus.evidence.validation import Validation

LEAST_ROWS = 20
"""Rows of a part of measured kernels that is listed; of measured iterations, which are few, a fifth of it."""
SHOWN = 12
TIMES_S = {
    "below 5 us": (0.0, 5e-6),
    "5 to 20 us": (5e-6, 2e-5),
    "20 to 200 us": (2e-5, 2e-4),
    "0.2 to 2 ms": (2e-4, 2e-3),
    "above 2 ms": (2e-3, np.inf),
}


@dataclass(frozen=True, slots=True)
class PartError:
    """Error of time of some rows of a group."""

    group: str
    part: str
    rows: int
    mape_pct: float
    median_pct: float


def worst_parts(validations: Sequence[Validation]) -> list[PartError]:
    """Return the parts with the largest mean absolute errors."""
    parts = [part for validation in validations for part in _parts(validation)]
    return sorted(parts, key=lambda part: -part.mape_pct)[:SHOWN]


def _parts(validation: Validation) -> Iterator[PartError]:
    if isinstance(validation.answer, KernelAnswer):
        yield from _kernels(validation.answer)
    elif isinstance(validation.answer, IterationAnswer):
        runs = validation.answer.scored
        names = [(run.row.family, run.row.model) for run in runs]
        yield from _by_name(names, np.array([run.error for run in runs]), LEAST_ROWS // 5)


def _kernels(answer: KernelAnswer) -> Iterator[PartError]:
    rows, mask = answer.kernels, time_counts(answer.kernels)
    errors = (answer.predicted.time_s / rows.time_s - 1)[mask]
    if rows.kind is KernelKind.ATTENTION:
        parts = [f"heads of {width} values" for width in rows.sizes["head_dim"][mask]]
    elif rows.kind is KernelKind.GEMM:
        parts = [next(name for name, (low, high) in TIMES_S.items() if low <= t < high) for t in rows.time_s[mask]]
    elif rows.kind is KernelKind.EXPERTS:
        parts = [f"{routing} routing" for routing in rows.routing[mask]]
    else:
        sizes = zip(rows.collective[mask], rows.sizes["num_gpus"][mask], strict=True)
        parts = [f"{collective} of {gpus} GPUs" for collective, gpus in sizes]
    groups = [f"{KINDS[rows.kind]}: {group}" for group in rows.groups[mask]]
    yield from _by_name(
        zip(groups, parts, strict=True), errors, 5 if rows.kind is KernelKind.COLLECTIVE else LEAST_ROWS
    )


def _by_name(names: Iterable[tuple[str, str]], errors: Array, least: int) -> Iterator[PartError]:
    placed: dict[tuple[str, str], list[float]] = {}
    for name, error in zip(names, errors.tolist(), strict=True):
        placed.setdefault(name, []).append(100 * error)
    for (group, part), values in placed.items():
        if len(values) >= least:
            yield PartError(group, part, len(values), float(np.mean(np.abs(values))), float(np.median(values)))
