"""Fitting a software profile from the command line: what is printed, and what is written to the profile's file."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from kareus.arrays import Array
from kareus.artifacts.files import read_text, write_text
from kareus.artifacts.records import to_plain
from kareus.calibrate.coefficient_space import bound_note
from kareus.calibrate.expert_fit import fit_experts
from kareus.calibrate.gpu_file import number
from kareus.calibrate.software_fit import (
    PRIORS,
    IterationData,
    changed,
    errors,
    fit_software,
    fitted_numbers,
    groups_of,
    judged,
    left_out,
)
from kareus.calibrate.trainer import TrainerCalibration
from kareus.errors import ArtifactError, ConfigError
from kareus.graph.number_formats import Precision
from kareus.prediction.errors import PairError, numbers_for, pair_error, pair_errors, percentages, with_errors
from kareus.prediction.measured import MeasuredWorkloads, software_of
from kareus.prediction.rows import MeasuredIteration
from kareus.software.record import MeasuredRuns, Software, driven, with_numbers
from kareus.workload.compose import compose
from kareus.workload.config import Workload

logger = logging.getLogger(__name__)

NOT_FITTED = "# NOT FITTED: no measurements of it ship"
"""Begins the line of a profile that nothing was fitted to."""
FITTED = "[fit to measured iterations]"
OF_EXPERTS = ", of mixtures of experts"
CALIBRATED = "[calibrated]"


def fit_and_write(
    rows: Sequence[MeasuredIteration], option: str, output: Path | None, table: Path | None, config_dir: Path
) -> None:
    """Fit the profile of an option, print errors in sample and of models left out, and write its file.

    Args:
        rows: measured iterations; those of other software are left out.
        option: of the group `software`.
        output: profile to write.
        table: table of errors to update, as of the profile that is written.
        config_dir: Hydra groups.

    Raises:
        ArtifactError: no row that can be represented ran on that software.
    """
    data = _data([row for row in rows if software_of(row) == option], option, config_dir)
    fitted: dict[str, float] = {}
    pairs = list[PairError]()
    for judge in (_judged_dense, _judged_narrow, _judged_experts):
        numbers, result = judge(data, fitted)
        fitted |= numbers
        pairs += _pairs(result, fitted, option, config_dir) if result else []
    for pair in pairs:
        kind = f"{pair.software} in {pair.precision}, {pair.models}"
        logger.info("%s on %s: %g %% in 90 %% of %d rows", kind, pair.gpu, pair.percent_90, pair.rows)
    if table:
        write_text(table, with_errors(pairs, pair_errors(table) if table.exists() else ()))
        logger.info("%s: written", table)
    if output:
        source = read_text(config_dir / "software" / f"{option}.yaml")
        write_text(output, documented(source, fitted))
        logger.info("%s: written", output)


class _Judged(NamedTuple):
    """Rows, and the logarithms of predicted over measured times, each left out with its group."""

    data: IterationData
    outside: Array
    groups: Sequence[str]


Judgement = tuple[Mapping[str, float], _Judged | None]
"""Numbers of a fit, and what it was judged by; nothing where there are no such rows."""


def _judged_dense(data: IterationData, _: Mapping[str, float]) -> Judgement:
    """Fit the numbers of dense models in 16 bits."""
    data = data.where([_is_dense_bf16(*pair) for pair in zip(data.rows, data.workloads, strict=True)])
    if not data.rows:
        return {}, None
    software = data.workloads[0].software
    start = {name: getattr(software, name) for name in fitted_numbers(software)}
    fitted = {name: float(number(value)) for name, value in fit_software(data, start).items()}
    inside = errors(data, fitted)
    groups = groups_of(data.rows)
    outside = left_out(data, fitted, groups)
    notes = _notes([row.family for row in data.rows], inside, outside)
    _log(notes | {f"  {name}": note for name, note in _notes(groups, inside, outside).items()})
    return fitted, _Judged(data, outside, groups)


def _judged_narrow(data: IterationData, fitted: Mapping[str, float]) -> Judgement:
    """Judge dense models in fewer bits, of which no row is in a fit, by fits without rows of the same model."""
    both = list(zip(data.rows, data.workloads, strict=True))
    narrow = data.where([not _is_dense_bf16(*pair) and not pair[0].architecture for pair in both])
    if not narrow.rows:
        return {}, None
    if not fitted:
        raise ArtifactError(
            f"--errors: rows in {narrow.rows[0].precision} are judged by fits to rows in 16 bits of other models; give "
            "a file with these, too."
        )
    outside = judged(data.where([_is_dense_bf16(*pair) for pair in both]), fitted, narrow)
    names = [f"{row.family} {row.model.split(' ')[0]} {row.precision}" for row in narrow.rows]
    _log(_notes(names, errors(narrow, fitted), outside))
    return {}, _Judged(narrow, outside, [row.model.split(" ")[0] for row in narrow.rows])


def _judged_experts(data: IterationData, fitted: Mapping[str, float]) -> Judgement:
    """Fit the numbers of experts."""
    experts = data.where([bool(row.architecture) for row in data.rows])
    if not experts.rows:
        return {}, None
    experts = IterationData(experts.rows, [changed(workload, fitted) for workload in experts.workloads])
    numbers, inside, outside = fit_experts(experts)
    models = [row.architecture for row in experts.rows]
    _log(_notes(models, inside, outside))
    return numbers, _Judged(experts, outside, models)


def _is_dense_bf16(row: MeasuredIteration, workload: Workload) -> bool:
    """Whether a row is of a dense model in 16 bits, of which the first fit is."""
    return not row.architecture and workload.precision is Precision.BF16


def _log(notes: Mapping[str, str]) -> None:
    for name, note in notes.items():
        logger.info("%s: %s", name, note)


def _pairs(result: _Judged, fitted: Mapping[str, float], option: str, config_dir: Path) -> list[PairError]:
    """Errors of the software on each GPU that has rows, in each precision, for the numbers that are written."""
    pairs, both = [], list(zip(result.data.rows, result.data.workloads, strict=True))
    for gpu, precision in sorted({(row.gpu, str(workload.precision)) for row, workload in both}):
        (composition,) = compose([f"gpu={gpu}", f"software={option}"], config_dir)
        of_pair = [n for n, (row, ran) in enumerate(both) if (row.gpu, str(ran.precision)) == (gpu, precision)]
        ran = both[of_pair[0]][1]
        workload = replace(composition.workload, model=ran.model, precision=ran.precision)
        groups, layouts = [result.groups[n] for n in of_pair], [both[n][1].parallelism for n in of_pair]
        pairs.append(pair_error(changed(workload, fitted), result.outside[of_pair], groups, layouts))
    return pairs


def documented(text: str, values: Mapping[str, float]) -> str:
    """Return a profile with fitted values; everything else stays as it is.

    The line that says that nothing was fitted goes.
    """
    lines = [line for line in text.splitlines() if not line.startswith(NOT_FITTED)]
    notes = {name: bound_note(PRIORS[name], value) if name in PRIORS else OF_EXPERTS for name, value in values.items()}
    shown = {name: f"{name}: {number(value)} # {FITTED}{notes[name]}" for name, value in values.items()}
    return "\n".join(shown.get(line.partition(":")[0], line) for line in lines) + "\n"


def calibrated_software(base: Workload, name: str, calibration: TrainerCalibration) -> Software:
    """Return the software of a workload with the numbers of a calibration, as they are written, and their errors."""
    written = {number_name: float(number(value)) for number_name, value in calibration.posterior.values.items()}
    software = replace(with_numbers(base.software, written), name=name, measured=None)
    driven_by_it = replace(base, software=software, gpu=driven(base.gpu, software, 1))
    measured = MeasuredRuns(
        gpu=base.gpu.name,
        runs=len(calibration.chosen),
        **percentages(calibration.left_out),
        tau=round(calibration.tau, 3),
        may_rank=not calibration.doubts,
        made_for=numbers_for(driven_by_it),
    )
    return replace(software, measured=measured)


def calibrated_document(text: str, software: Software, calibration: TrainerCalibration) -> str:
    """Return a profile with the numbers of a calibration, each with its interval, and their errors.

    Args:
        text: of the profile that the calibration started from.
        software: of `calibrated_software`.
        calibration: numbers and intervals.
    """
    lines = {"name": f"name: {software.name}"} | {
        name: f"{name}: {number(value)} # {CALIBRATED} {calibration.posterior.note(name)}"
        for name, value in calibration.posterior.values.items()
    }
    unmeasured = re.sub(r"^measured:.*\n(?:  .*\n)*", "", text, flags=re.MULTILINE)
    kept = [
        lines.pop(line.partition(":")[0], line) for line in unmeasured.splitlines() if not line.startswith(NOT_FITTED)
    ]
    block = yaml.safe_dump({"measured": to_plain(software.measured)}, sort_keys=False)
    return "\n".join([*kept, *lines.values()]) + "\n" + block


def _data(rows: Sequence[MeasuredIteration], option: str, config_dir: Path) -> IterationData:
    workloads = MeasuredWorkloads((), config_dir)
    kept, ran = [], []
    for row in rows:
        try:
            ran.append(workloads.of(row))
        except ConfigError:  # `validate` lists what cannot be represented
            continue
        kept.append(row)
    if not kept:
        raise ArtifactError(f"--software {option}: no row of the file ran on it.")
    return IterationData(kept, ran)


def _notes(names: Sequence[str], inside: Array, outside: Array) -> dict[str, str]:
    """Errors in sample and left out, by name of the row."""
    notes = {}
    for name in dict.fromkeys(names):
        is_of_name = np.array([other == name for other in names])
        shown = f"{int(is_of_name.sum())} rows, time {_mape_pct(inside[is_of_name]):.1f} %"
        notes[name] = shown + f" (left out {_mape_pct(outside[is_of_name]):.1f} %)"
    return notes


def _mape_pct(logarithms: Array) -> float:
    return 100 * float(np.abs(np.expm1(logarithms)).mean())
