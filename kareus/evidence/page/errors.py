"""Errors of predictions by group of rows: of all files alike, with those left out of fits and of trivial baselines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.evidence.frontiers.answer import FrontierAnswer, ReductionAnswer
from kareus.evidence.iterations.answer import IterationAnswer
from kareus.evidence.iterations.power import PowerAnswer
from kareus.evidence.iterations.score import constant_mfu_errors
from kareus.evidence.kernels.answer import KernelAnswer
from kareus.evidence.kernels.rows import KernelKind
from kareus.evidence.kernels.score import baselines, both_powers, scored
from kareus.evidence.validation import Validation, ValidationAnswer

TIME, POWER, ENERGY = "time", "power", "energy"
QUANTILES = (5, 25, 50, 75, 95)
KINDS = {KernelKind.GEMM: "GEMM", KernelKind.ATTENTION: "attention", KernelKind.COLLECTIVE: "collectives"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupErrors:
    """Errors of one quantity over rows that belong together."""

    kind: str
    """Kind of data, such as `GEMM`."""
    group: str
    """GPU, number format and software of kernels; family of iterations."""
    quantity: str
    errors_pct: Array
    """Predicted less measured, by row."""
    left_out_pct: float | None
    """Mean absolute error where the rows were left out of the fit; None where that was not estimated."""
    trivial: tuple[tuple[str, float], ...] = ()
    """Names and mean absolute errors of predictions without a model."""

    @property
    def label(self) -> str:
        """Name in tables."""
        return f"{self.kind}: {self.group}"

    @property
    def mape_pct(self) -> float:
        """Mean absolute error."""
        return float(np.abs(self.errors_pct).mean())

    @property
    def quantiles_pct(self) -> list[float]:
        """Errors that 5, 25, 50, 75 and 95 % of the rows are below."""
        return [float(value) for value in np.percentile(self.errors_pct, QUANTILES)]


LeftOutErrors = Mapping[tuple[str, str, str], float]
"""Mean absolute errors of rows left out, by kind, group and quantity."""


def errors_of(found: Sequence[Validation], left_out: LeftOutErrors) -> list[GroupErrors]:
    """Return the errors of all groups of all answers; reductions, whose errors are points, have none."""
    return [group for one in found for group in _groups(one.answer, left_out)]


def _groups(answer: ValidationAnswer, left_out: LeftOutErrors) -> Iterator[GroupErrors]:
    match answer:
        case KernelAnswer():
            yield from _kernels(answer, left_out)
        case IterationAnswer():
            yield from _iterations(answer, left_out)
        case PowerAnswer():
            for quantity, errors in (
                (POWER, [row.error for row in answer.rows]),
                (TIME, [row.predicted.time_s / row.time_s - 1 for row in answer.rows]),
            ):
                yield _group("node power", "GPT-3 175B in fp8, 512 H100", quantity, errors, left_out)
        case FrontierAnswer():
            yield from _frontiers(answer, left_out)
        case ReductionAnswer():
            return


def _group(
    kind: str,
    group: str,
    quantity: str,
    errors: Sequence[float] | Array,
    left_out: LeftOutErrors,
    trivial: tuple[tuple[str, float], ...] = (),
) -> GroupErrors:
    return GroupErrors(
        kind=kind,
        group=group,
        quantity=quantity,
        errors_pct=100 * np.asarray(errors, dtype=np.float64),
        left_out_pct=left_out.get((kind, group, quantity)),
        trivial=trivial,
    )


def _kernels(answer: KernelAnswer, left_out: LeftOutErrors) -> Iterator[GroupErrors]:
    rows, predicted, kind = answer.kernels, answer.predicted, KINDS[answer.kernels.kind]
    counted, read = scored(rows), both_powers(rows, predicted)
    for group in np.unique(rows.groups[counted]):
        mask = counted & (rows.groups == group)
        known = baselines(rows, predicted, mask)
        rate = "constant bandwidth" if rows.kind is KernelKind.COLLECTIVE else "constant FLOP/s"
        trivial = [(rate, known.constant_rate_time_mape_pct)]
        if known.roofline_time_mape_pct is not None:
            trivial.append(("FLOP/s and bandwidth", known.roofline_time_mape_pct))
        times = predicted.time_s[mask] / rows.time_s[mask] - 1
        yield _group(kind, str(group), TIME, times, left_out, tuple(trivial))
        own = mask & read
        if own.any():
            powers = predicted.reading_w[own] / rows.power_w[own] - 1
            constant = (("constant power", known.constant_power_mape_pct or 0.0),)
            yield _group(kind, str(group), POWER, powers, left_out, constant)
            energies = (1 + powers) * (predicted.time_s[own] / rows.time_s[own]) - 1
            yield _group(kind, str(group), ENERGY, energies, left_out)


def _iterations(answer: IterationAnswer, left_out: LeftOutErrors) -> Iterator[GroupErrors]:
    constant = constant_mfu_errors(answer.scored)
    for family in answer.errors.by_family:
        own = [n for n, one in enumerate(answer.scored) if one.row.family == family]
        others = [abs(error) for error in (constant[n] for n in own) if error is not None]
        trivial = (("constant MFU", 100 * float(np.mean(others))),) if others else ()
        errors = [answer.scored[n].error for n in own]
        yield _group("iterations", family, TIME, errors, left_out, trivial)


def _frontiers(answer: FrontierAnswer, left_out: LeftOutErrors) -> Iterator[GroupErrors]:
    rows = [row for row in answer.score.rows if row.scored]
    constant = answer.trivial
    for quantity, errors_pct, trivial in (
        (
            TIME,
            [r.time_error_pct for r in rows],
            constant and ("constant FLOP/s", constant.constant_throughput_time_mape_pct),
        ),
        (
            ENERGY,
            [r.energy_error_pct for r in rows],
            constant and ("constant power", constant.constant_power_energy_mape_pct),
        ),
    ):
        if rows:
            errors = np.array(errors_pct) / 100
            group = f"{answer.gpu.name}, planned clocks"
            yield _group("frontiers", group, quantity, errors, left_out, (trivial,) if trivial else ())
