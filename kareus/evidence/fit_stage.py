"""Command `fit`: fit a GPU's coefficients to reference data and write them, with their errors, to its configuration."""

import argparse
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import yaml

from kareus.artifacts.files import read_text, write_text
from kareus.artifacts.names import check_name
from kareus.artifacts.outputs import OutputKind, add_force, check_files
from kareus.artifacts.records import suggest
from kareus.calibrate.coefficient_space import bound_note, with_coefficients
from kareus.calibrate.gpu_file import check_lines, is_gpu, number, with_values
from kareus.calibrate.memory_fit import fit_and_write as fit_memory
from kareus.calibrate.software_output import fit_and_write as fit_profile
from kareus.calibrate.stored_fit import fit_stored
from kareus.errors import ArtifactError, ConfigError
from kareus.evidence.frontiers.fit import (
    REFIT_EVALUATIONS,
    TO_FRONTIERS,
    TO_TABLES,
    Fit,
    HeldOut,
    bootstrap,
    errors_pct,
    fit_frontiers,
    held_out,
)
from kareus.evidence.frontiers.joint_fit import PRIORS, fit_jointly
from kareus.evidence.frontiers.predict import EXECUTIONS, planned_costs
from kareus.evidence.frontiers.reference import FrontierRow, ReductionRow, fastest_rows, read_reference
from kareus.evidence.frontiers.score import score_reductions
from kareus.evidence.frontiers.staged import by_stages
from kareus.evidence.frontiers.subject import Subjects, on_gpu, subjects_of
from kareus.evidence.kernels.fit_output import fit_and_write
from kareus.evidence.kernels.rows import KernelKind, Kernels, kind_of, read_kernels
from kareus.gpu_model.coefficients import OF_SOFTWARE
from kareus.gpu_model.gpu import Gpu, Uncertainty
from kareus.gpu_model.trust import numbers_of
from kareus.prediction.errors import pair_errors
from kareus.prediction.lines import read_lines
from kareus.prediction.memory_formats import format_of
from kareus.prediction.rows import MeasuredIteration, has_iterations, read_usable_iterations
from kareus.software.record import GROUP, is_software
from kareus.workload.arguments import add_config_dir
from kareus.workload.overrides import options

logger = logging.getLogger(__name__)

FITTED = "[fit to planned frontiers]"
FITTED_JOINTLY = "[fit to planned frontiers and measured reductions]"
FITTED_TO_TABLES = "[fit to measured reductions]"
INTERVAL_PERCENT = 90.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the GPU, the data and the output."""
    parser.add_argument("--gpu", default="a100-sxm4-40gb", help="option of the group gpu (default: a100-sxm4-40gb)")
    parser.add_argument(
        "--software", help="option of the group software, to fit it to measured iterations, or their memory, instead"
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--reference",
        type=Path,
        nargs="+",
        help="planned frontiers, or files of measured kernels (CSV, or .csv.gz)",
    )
    data.add_argument(
        "--measurements", type=Path, nargs="+", help="folders of the measurement store, all of one testbed"
    )
    parser.add_argument("--tables", type=Path, help="measured reductions (CSV), for what frontiers do not tell")
    parser.add_argument("--output", type=Path, help="GPU configuration to write (YAML); by default nothing is written")
    parser.add_argument(
        "--errors",
        type=Path,
        help="table of errors left out to update (CSV); of kernels, or of iterations with --software",
    )
    add_config_dir(parser)
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Fit, print errors and intervals, write."""
    if arguments.software is not None:
        _fit_software(arguments)
        return
    check_name(arguments.gpu, "--gpu")
    source = arguments.config_dir / "gpu" / f"{arguments.gpu}.yaml"
    gpus = options("gpu", arguments.config_dir)
    if gpus and arguments.gpu not in gpus:
        close = suggest(arguments.gpu, gpus)
        raise ConfigError(f"--gpu {arguments.gpu}: no {source}; {close}; for another GPU copy the closest file to it.")
    if arguments.output is not None:  # refused before the fit, which takes minutes
        check_lines(source)
        check_files(arguments, [(arguments.output, OutputKind("a GPU's configuration", is_gpu))], [source])
    if arguments.measurements:
        if arguments.tables is not None:
            raise ConfigError("--tables: goes with --reference; leave it out with --measurements.")
        fit_stored(arguments.measurements, arguments.gpu, arguments.output, arguments.config_dir)
        return
    kernels = _kernels(arguments.reference)
    if kernels:
        if arguments.tables is not None:
            raise ConfigError("--tables: goes with planned frontiers; leave it out with measured kernels.")
        fit_and_write(kernels, arguments.gpu, source, arguments.output, arguments.errors, arguments.config_dir)
        return
    rows = _frontier_rows(arguments.reference[0])
    tables = _reduction_rows(arguments.tables)
    overrides = (f"gpu={arguments.gpu}",)
    subjects = subjects_of([*rows, *tables], overrides, arguments.config_dir)
    gpu = next(iter(subjects.values())).workload.gpu
    fit = fit_jointly(rows, tables, subjects, gpu) if tables else fit_frontiers(rows, subjects, gpu)
    left_out, intervals = held_out(rows, subjects, fit), _intervals(rows, subjects, fit)
    uncertainty = _uncertainty(left_out, intervals, as_written(fit, with_tables=bool(tables)))
    lines = _error_lines(rows, subjects, fit, left_out, uncertainty) + _reduction_lines(tables, subjects, fit, left_out)
    for line in [*lines, *_interval_lines(intervals), *software_lines(fit)]:
        logger.info("%s", line)
    if arguments.output:
        written = documented(read_text(source), fit, uncertainty, with_tables=bool(tables))
        write_text(arguments.output, written)
        logger.info("%s: written", arguments.output)


def _fit_software(arguments: argparse.Namespace) -> None:
    """Fit a software profile to measured iterations, or its numbers of memory to their memory.

    Raises:
        ConfigError: no such profile, or data of another kind.
        ArtifactError: the file has no measured iterations.
    """
    if arguments.reference is None or arguments.tables is not None:
        raise ConfigError(
            "--software: is fitted to measured iterations alone; give their file as --reference, without "
            "--measurements and --tables."
        )
    check_name(arguments.software, "--software")
    source = arguments.config_dir / "software" / f"{arguments.software}.yaml"
    names = options(GROUP, arguments.config_dir)
    if arguments.software not in names:
        raise ConfigError(f"--software {arguments.software}: no {source}; {suggest(arguments.software, names)}.")
    if arguments.output is not None:
        check_files(arguments, [(arguments.output, OutputKind("a profile of software", is_software))], [source])
    if arguments.errors is not None and arguments.errors.exists():
        pair_errors(arguments.errors)  # refused before the fit, which takes minutes
    path, *others = arguments.reference
    header, lines = read_lines(path)
    kept = format_of(header)
    if kept is not None and not others:
        if arguments.errors is not None:
            raise ConfigError("--errors: is of measured iterations; leave it out with measured memory.")
        fit_memory(lines, kept, arguments.software, arguments.output, arguments.config_dir)
        return
    rows = list[MeasuredIteration]()
    for file in (path, *others):
        header, lines = read_lines(file)
        if not has_iterations(header):
            raise ArtifactError(f"{file}: --software is fitted to files with measured iterations, or one with memory.")
        usable, refused = read_usable_iterations(lines, file)
        rows += usable
        for refusal in refused:
            logger.warning("left out: %s", refusal.reason)
    fit_profile(rows, arguments.software, arguments.output, arguments.errors, arguments.config_dir)


def _kernels(paths: Sequence[Path]) -> dict[KernelKind, Kernels]:
    """Return the kernels of all files by kind; none if there is one file with planned frontiers.

    Raises:
        ArtifactError: a file has no kernels beside others, or two have kernels of one kind.
    """
    kernels: dict[KernelKind, Kernels] = {}
    for path in paths:
        header, lines = read_lines(path)
        kind = kind_of(header)
        if kind is None and len(paths) > 1:
            raise ArtifactError(f"{path}: has no measured kernels; fit to planned frontiers alone, with --tables.")
        if kind is not None and kind in kernels:
            raise ArtifactError(f"{path}: has kernels ({kind.value}) as a file before it; give one file of each kind.")
        if kind is not None:
            kernels[kind] = read_kernels(kind, lines, path)
    return kernels


def _frontier_rows(path: Path) -> list[FrontierRow]:
    rows = [r for r in read_reference(path) if isinstance(r, FrontierRow) and r.method in EXECUTIONS and r.clocks]
    if len({row.scenario for row in rows}) < 2:  # noqa: PLR2004 - one is left out at a time
        raise ArtifactError(f"{path}: has planned frontiers of fewer than 2 workloads; a fit needs more.")
    return rows


def _reduction_rows(path: Path | None) -> list[ReductionRow]:
    rows = [r for r in read_reference(path) if isinstance(r, ReductionRow)] if path else []
    if path and not rows:
        raise ArtifactError(f"{path}: has no reductions; give it as --reference if it has planned frontiers.")
    return rows


@dataclass(frozen=True, slots=True)
class Intervals:
    """Bootstrap intervals of one planned row."""

    row: FrontierRow
    time_s: tuple[float, float]
    energy_j: tuple[float, float]


def _intervals(rows: Sequence[FrontierRow], subjects: Subjects, fit: Fit) -> list[Intervals]:
    """Of the fastest plan of every curve, at its listed clocks.

    Refits are least squares to frontiers, which `fit` need not be. So they are taken relative to the same refit to the
    curves as they are.
    """
    fastest = fastest_rows(rows)
    alike = fit_frontiers(rows, subjects, fit.gpu, fit.logarithms, REFIT_EVALUATIONS).gpu
    predicted, whole, *samples = (
        planned_costs(fastest, on_gpu(subjects, gpu)) for gpu in (fit.gpu, alike, *bootstrap(rows, subjects, fit))
    )
    return [
        Intervals(
            row,
            _middle([predicted[n].time_s * costs[n].time_s / whole[n].time_s for costs in samples]),
            _middle([predicted[n].energy_j * costs[n].energy_j / whole[n].energy_j for costs in samples]),
        )
        for n, row in enumerate(fastest)
    ]


def _middle(values: Sequence[float]) -> tuple[float, float]:
    tail = (100 - INTERVAL_PERCENT) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def _uncertainty(left_out: Sequence[HeldOut], intervals: Sequence[Intervals], gpu: Gpu) -> Uncertainty:
    times, energies = (np.concatenate([getattr(h, n) for h in left_out]) for n in ("time_errors", "energy_errors"))
    return Uncertainty(
        time_percent=round(100 * float(np.percentile(np.abs(times), INTERVAL_PERCENT)), 1),
        energy_percent=round(100 * float(np.percentile(np.abs(energies), INTERVAL_PERCENT)), 1),
        time_interval_percent=_half_width_percent([i.time_s for i in intervals]),
        energy_interval_percent=_half_width_percent([i.energy_j for i in intervals]),
        estimated_for=numbers_of(gpu),
    )


def _half_width_percent(intervals: Sequence[tuple[float, float]]) -> float:
    return round(100 * float(np.mean([(high - low) / (high + low) for low, high in intervals])), 1)


def _error_lines(
    rows: Sequence[FrontierRow], subjects: Subjects, fit: Fit, left_out: Sequence[HeldOut], uncertainty: Uncertainty
) -> list[str]:
    time_pct, energy_pct = errors_pct(rows, subjects, fit.gpu)
    lines = [f"fitted to all: time {time_pct:.2f} %, energy {energy_pct:.2f} % (mean absolute errors)"]
    lines += [
        f"left out, {h.scenario.label}: time {h.time_mape_pct:.2f} %, energy {h.energy_mape_pct:.2f} %"
        for h in left_out
    ]
    mean_time = float(np.mean([h.time_mape_pct for h in left_out]))
    mean_energy = float(np.mean([h.energy_mape_pct for h in left_out]))
    lines.append(f"left out, mean: time {mean_time:.2f} %, energy {mean_energy:.2f} %")
    lines.append(
        f"left out, 90 % of rows: time within {uncertainty.time_percent} %, "
        f"energy within {uncertainty.energy_percent} %"
    )
    return lines


def _reduction_lines(
    tables: Sequence[ReductionRow], subjects: Subjects, fit: Fit, left_out: Sequence[HeldOut]
) -> list[str]:
    """Errors of measured reductions: of all, and of each workload predicted by a fit to the frontiers of the others."""
    if not tables:
        return []
    score = score_reductions(tables, on_gpu(subjects, fit.gpu), by_stages)
    lines = [
        f"reductions, fitted to all: {score.reduction_mae_points:.2f} points, {len(score.wrong_orders)} wrong orders"
    ]
    for h in left_out:
        reductions = [row for row in tables if row.scenario == h.scenario]
        if reductions:
            points = score_reductions(reductions, on_gpu(subjects, h.gpu), by_stages).reduction_mae_points
            lines.append(f"reductions, frontiers left out, {h.scenario.label}: {points:.2f} points")
    return lines


def _interval_lines(intervals: Sequence[Intervals]) -> list[str]:
    lines = [f"{INTERVAL_PERCENT:.0f} % bootstrap intervals of the fastest plans, given in brackets:"]
    for interval in intervals:
        (least_s, most_s), (least_j, most_j), row = interval.time_s, interval.energy_j, interval.row
        lines.append(
            f"  {row.scenario.label}, {row.method}: {least_s:.3f}-{most_s:.3f} s ({row.time_s:.3f}), "
            f"{least_j:.0f}-{most_j:.0f} J ({row.energy_j:.0f})"
        )
    return lines


def documented(text: str, fit: Fit, uncertainty: Uncertainty, *, with_tables: bool) -> str:
    """Return the configuration with new values, each marked as fitted; everything else stays as it is.

    A file that inherits its coefficients from another gets those that were fitted. What belongs to the software is not
    among them (`software_lines`).
    """
    sources = dict.fromkeys(TO_FRONTIERS, FITTED_JOINTLY if with_tables else FITTED)
    if with_tables:
        sources |= dict.fromkeys(TO_TABLES, FITTED_TO_TABLES)
    values = {name: getattr(fit.gpu.coefficients, name) for name in sources if name not in OF_SOFTWARE}
    comments = {name: sources[name] + bound_note(PRIORS[name], value) for name, value in values.items()}
    block = yaml.safe_dump({"uncertainty": asdict(uncertainty)}, sort_keys=False)
    others = re.sub(r"^uncertainty:(?:.*\n)(?:  .*\n)*", "", with_values(text, values, comments), flags=re.MULTILINE)
    return others + block


def software_lines(fit: Fit) -> list[str]:
    """Return the fitted numbers that belong into the file of the software, as it has them."""
    values = {name: getattr(fit.gpu.coefficients, name) for name in TO_FRONTIERS if name in OF_SOFTWARE}
    return [f"software, {name}: {number(value)}" for name, value in values.items()]


def as_written(fit: Fit, *, with_tables: bool) -> Gpu:
    """Return the GPU with the coefficients that `documented` writes, which are rounded."""
    names = [*TO_FRONTIERS, *(TO_TABLES if with_tables else ())]
    return with_coefficients(fit.gpu, {name: float(number(getattr(fit.gpu.coefficients, name))) for name in names})
