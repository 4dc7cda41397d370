"""Errors of predictions by group of rows, with those left out of fits and of trivial baselines, and the worst parts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.evidence.frontiers.answer import FrontierAnswer, ReductionAnswer
from kareus.evidence.iterations import IterationAnswer, constant_mfu_errors, left_out_pct
from kareus.evidence.kernels.answer import KernelAnswer
from kareus.evidence.kernels.counted import power_counts, time_counts
from kareus.evidence.kernels.errors import shape_errors
from kareus.evidence.kernels.rows import KernelKind
from kareus.evidence.kernels.score import baselines
from kareus.evidence.memory import MemoryAnswer
from kareus.evidence.node_power import PowerAnswer
from kareus.evidence.validation import Validation, ValidationAnswer

TIME, POWER, ENERGY, MEMORY = "time", "power", "energy", "memory"
QUANTILES = (5, 25, 50, 75, 95)
"""In percent."""
KINDS = {
    KernelKind.GEMM: "GEMM",
    KernelKind.ATTENTION: "attention",
    KernelKind.COLLECTIVE: "collectives",
    KernelKind.EXPERTS: "experts",
}
LEAST_ROWS, LEAST_COLLECTIVES, LEAST_ITERATIONS = 20, 5, 4
"""Rows of a part of measured kernels that is listed, of collectives and of iterations, which are few."""
MOST_PARTS = 12
"""Parts that are listed."""
TIMES_S = {
    "below 5 us": (0.0, 5e-6),
    "5 to 20 us": (5e-6, 2e-5),
    "20 to 200 us": (2e-5, 2e-4),
    "0.2 to 2 ms": (2e-4, 2e-3),
    "above 2 ms": (2e-3, np.inf),
}
"""Parts of GEMMs, by their measured times."""


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


def errors_of(validations: Sequence[Validation]) -> list[GroupErrors]:
    """Return the errors of all groups of all answers; reductions, whose errors are points, have none.

    Errors left out of fits are those of the numbers that ship.
    """
    return [group for validation in validations for group in _groups(validation.answer)]


def _groups(answer: ValidationAnswer) -> Iterator[GroupErrors]:
    match answer:
        case KernelAnswer():
            yield from _kernels(answer)
        case IterationAnswer():
            yield from _iterations(answer)
        case PowerAnswer():
            for quantity, errors in (
                (POWER, [row.error for row in answer.rows]),
                (TIME, [row.predicted.time_s / row.time_s - 1 for row in answer.rows]),
            ):
                yield _group("node power", "GPT-3 175B in fp8, 512 H100", quantity, errors)
        case MemoryAnswer():
            ran = [run for run in answer.scored if run.row.counts]
            for group in dict.fromkeys(run.row.group for run in ran):
                yield _group("memory", group, MEMORY, [run.error for run in ran if run.row.group == group])
        case FrontierAnswer():
            yield from _frontiers(answer)
        case ReductionAnswer():
            return


def _group(
    kind: str,
    group: str,
    quantity: str,
    errors: Sequence[float] | Array,
    left_out_pct: float | None = None,
    trivial: tuple[tuple[str, float], ...] = (),
) -> GroupErrors:
    return GroupErrors(
        kind=kind,
        group=group,
        quantity=quantity,
        errors_pct=100 * np.asarray(errors, dtype=np.float64),
        left_out_pct=left_out_pct,
        trivial=trivial,
    )


def _kernels(answer: KernelAnswer) -> Iterator[GroupErrors]:
    rows, predicted, kind = answer.kernels, answer.predicted, KINDS[answer.kernels.kind]
    counted, read = time_counts(rows), power_counts(rows)
    outside = {f"{e.gpu} {e.group}": e for e in shape_errors() if e.kind is rows.kind}
    for group in np.unique(rows.groups[counted]):
        mask = counted & (rows.groups == group)
        trivial_errors = baselines(rows, predicted, mask)
        rate = "constant bandwidth" if rows.kind is KernelKind.COLLECTIVE else "constant FLOP/s"
        trivial = [(rate, trivial_errors.constant_rate_time_mape_pct)]
        if trivial_errors.roofline_time_mape_pct is not None:
            trivial.append(("FLOP/s and bandwidth", trivial_errors.roofline_time_mape_pct))
        times = predicted.time_s[mask] / rows.time_s[mask] - 1
        left_out = outside.get(str(group))
        yield _group(kind, str(group), TIME, times, None if left_out is None else left_out.time_percent, tuple(trivial))
        with_power = mask & read
        if with_power.any():
            powers = predicted.power_w[with_power] / rows.power_w[with_power] - 1
            constant = (("constant power", trivial_errors.constant_power_mape_pct or 0.0),)
            yield _group(
                kind, str(group), POWER, powers, None if left_out is None else left_out.power_percent, constant
            )
            energies = (1 + powers) * (predicted.time_s[with_power] / rows.time_s[with_power]) - 1
            yield _group(kind, str(group), ENERGY, energies)


def _iterations(answer: IterationAnswer) -> Iterator[GroupErrors]:
    constant = constant_mfu_errors(answer.scored)
    for family in answer.errors.by_family:
        family_rows = [n for n, run in enumerate(answer.scored) if run.row.family == family]
        others = [abs(error) for error in (constant[n] for n in family_rows) if error is not None]
        trivial = (("constant MFU", 100 * float(np.mean(others))),) if others else ()
        errors = [answer.scored[n].error for n in family_rows]
        left_out = left_out_pct([answer.scored[n] for n in family_rows])
        yield _group("iterations", family, TIME, errors, left_out, trivial)


def _frontiers(answer: FrontierAnswer) -> Iterator[GroupErrors]:
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
            yield _group("frontiers", group, quantity, errors, trivial=(trivial,) if trivial else ())


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
    return sorted(parts, key=lambda part: -part.mape_pct)[:MOST_PARTS]


def _parts(validation: Validation) -> Iterator[PartError]:
    if isinstance(validation.answer, KernelAnswer):
        yield from _worst_kernels(validation.answer)
    elif isinstance(validation.answer, IterationAnswer):
        runs = validation.answer.scored
        names = [(run.row.family, run.row.model) for run in runs]
        yield from _by_name(names, np.array([run.error for run in runs]), LEAST_ITERATIONS)


def _worst_kernels(answer: KernelAnswer) -> Iterator[PartError]:
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
    least = LEAST_COLLECTIVES if rows.kind is KernelKind.COLLECTIVE else LEAST_ROWS
    yield from _by_name(zip(groups, parts, strict=True), errors, least)


def _by_name(names: Iterable[tuple[str, str]], errors: Array, least: int) -> Iterator[PartError]:
    placed: dict[tuple[str, str], list[float]] = {}
    for name, error in zip(names, errors.tolist(), strict=True):
        placed.setdefault(name, []).append(100 * error)
    for (group, part), values in placed.items():
        if len(values) >= least:
            yield PartError(group, part, len(values), float(np.mean(np.abs(values))), float(np.median(values)))
