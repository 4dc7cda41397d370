"""Fitting a GPU to measured kernels from the command line: what is printed, and what is written to the GPU's file."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from kareus.artifacts.files import read_text, write_text
from kareus.calibrate.coefficient_space import bound_note, with_coefficients
from kareus.calibrate.gpu_file import number, with_kernel_uncertainty, with_libraries, with_values
from kareus.errors import ArtifactError
from kareus.evidence.kernels.counted import time_counts
from kareus.evidence.kernels.errors import ShapeErrors, shape_errors, with_errors
from kareus.evidence.kernels.fit import LeftOut, fit_kernels, left_out
from kareus.evidence.kernels.predict import predict
from kareus.evidence.kernels.rows import KernelKind, Kernels
from kareus.evidence.kernels.score import KernelErrors, errors_by
from kareus.evidence.kernels.stages import STAGES
from kareus.evidence.kernels.uncertainty import kernel_uncertainty
from kareus.gpu_model.gpu import Gpu, KernelUncertainty
from kareus.gpu_model.trust import trust
from kareus.workload.compose import compose, with_engine
from kareus.workload.resolve import resolve_accepted

logger = logging.getLogger(__name__)

FITTED = "[fit to measured kernels]"


def fit_and_write(
    files: Mapping[KernelKind, Kernels],
    option: str,
    source: Path,
    output: Path | None,
    table: Path | None,
    config_dir: Path,
) -> None:
    """Fit the GPU of an option, print errors in sample and of shapes left out, and write its file.

    Args:
        files: measured kernels; those of other GPUs are left out.
        option: of the group `gpu`.
        source: the GPU's file.
        output: file to write.
        table: table of errors to update, as of the GPU that is written.
        config_dir: Hydra groups.

    Raises:
        ArtifactError: no row of the files names the GPU.
    """
    gpu_files = {kind: rows.where(rows.gpu == option) for kind, rows in files.items()}
    gpu_files = {kind: rows for kind, rows in gpu_files.items() if len(rows)}
    if not gpu_files:
        names = sorted({str(name) for rows in files.values() for name in np.unique(rows.gpu)})
        raise ArtifactError(f"--gpu {option}: no row of the files names it; they have: {', '.join(names)}.")
    (composition,) = compose(with_engine([f"gpu={option}"]), config_dir)
    fitted = _as_written(fit_kernels(gpu_files, composition.workload.gpu, option))
    errors = [_logged(part, fitted, option) for part in left_out(gpu_files, fitted, option)]
    uncertainty = _uncertainty(gpu_files, fitted, option, config_dir)
    logger.info("%s", trust(replace(fitted, kernel_uncertainty=uncertainty)))
    if table:
        others = shape_errors(table) if table.exists() else ()
        write_text(table, with_errors(option, chain.from_iterable(errors), others))
        logger.info("%s: written", table)
    if output:
        written = documented(read_text(source), gpu_files, fitted)
        write_text(output, with_kernel_uncertainty(written, uncertainty))
        logger.info("%s: written", output)


def _uncertainty(
    files: Mapping[KernelKind, Kernels], gpu: Gpu, option: str, config_dir: Path
) -> KernelUncertainty | None:
    """How far off kernels are predicted; None without GEMMs, of which most of a training is made."""
    if KernelKind.GEMM not in files:
        return None
    (workload,) = resolve_accepted([f"gpu={option}"], config_dir).values()
    return kernel_uncertainty(files, gpu, option, workload)


def documented(text: str, files: Mapping[KernelKind, Kernels], gpu: Gpu) -> str:
    """Return a GPU's configuration with fitted values and those of kernel libraries."""
    measured = [(stage, stage.rows(files[stage.kind])) for stage in STAGES if stage.kind in files]
    stage_priors = [stage.priors_of(gpu, rows) for stage, rows in measured if len(rows)]
    priors = {name: prior for by_name in stage_priors for name, prior in by_name.items()}
    values = {name: getattr(gpu.coefficients, name) for name in priors}
    comments = {name: FITTED + bound_note(prior, values[name]) for name, prior in priors.items()}
    return with_libraries(with_values(text, values, comments), gpu.libraries)


def _logged(part: LeftOut, gpu: Gpu, option: str) -> list[ShapeErrors]:
    """Print errors in sample and of shapes left out, by group of rows, and return the latter."""
    rows, inside = part.rows, predict(part.rows, {option: gpu})
    within, outside = (
        errors_by(rows.groups, rows, predicted, time_counts(rows)) for predicted in (inside, part.predicted)
    )
    errors = []
    for name, of_group in within.items():
        group, others = name.removeprefix(f"{option} "), outside[name]
        logger.info("%s, %s: %s", part.stage.name, group, _shown(of_group, others))
        errors.append(
            ShapeErrors(
                gpu=option,
                kind=part.stage.kind,
                group=group,
                time_percent=_rounded(others.time_mape_pct) or 0.0,
                power_percent=_rounded(others.power_mape_pct),
            )
        )
    return errors


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)


def _shown(inside: KernelErrors, outside: KernelErrors) -> str:
    shown = f"time {inside.time_mape_pct:.1f} % (shapes left out {outside.time_mape_pct:.1f} %)"
    if inside.power_mape_pct is None:
        return shown
    return f"{shown}, power {inside.power_mape_pct:.1f} % ({outside.power_mape_pct:.1f} %)"


def _as_written(gpu: Gpu) -> Gpu:
    """Return the GPU with the values that are written, which are rounded."""
    names = {name for stage in STAGES for name in stage.priors}
    coefficients = {name: float(number(getattr(gpu.coefficients, name))) for name in names}
    libraries = {library: {n: float(number(v)) for n, v in values.items()} for library, values in gpu.libraries.items()}
    return replace(with_coefficients(gpu, coefficients), libraries=libraries)
