"""Fitting a software profile from the command line: what is printed, and what is written to the profile's file."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kareus.arrays import Array
from kareus.artifacts.files import read_text, write_text
from kareus.errors import ArtifactError, ConfigError
from kareus.fidelity.coefficient_space import bound_note
from kareus.fidelity.gpu_file import number
from kareus.fidelity.iterations.fit import (
    PRIORS,
    IterationData,
    errors,
    fit_software,
    fitted_numbers,
    groups_of,
    left_out,
)
from kareus.fidelity.iterations.predict import Predictor
from kareus.fidelity.iterations.rows import MeasuredIteration
from kareus.fidelity.iterations.workloads import IterationSubjects, software_of

logger = logging.getLogger(__name__)

NOTE = "# measured iterations: "
"""Begins the lines that say how well a profile fits measured iterations."""
NOT_FITTED = "# NOT FITTED: no measurements of it ship"
"""Begins the line of a profile that nothing was fitted to."""
FITTED = "[fit to measured iterations]"


def fit_and_write(rows: Sequence[MeasuredIteration], option: str, output: Path | None, config_dir: Path) -> None:
    """Fit the profile of an option, print errors in sample and of models left out, and write its file.

    Raises:
        ArtifactError: no row that can be represented ran on that software.
    """
    data = _data([row for row in rows if software_of(row) == option], option, config_dir)
    software, predictor = data.subjects[0].software, Predictor()
    start = {name: getattr(software, name) for name in fitted_numbers(software)}
    fitted = {name: float(number(value)) for name, value in fit_software(data, start, predictor).items()}
    inside = errors(data, fitted, predictor)
    groups = groups_of(data.rows)
    outside = left_out(data, fitted, predictor, groups)
    notes = _notes([row.family for row in data.rows], inside, outside)
    notes |= {f"  {name}": note for name, note in _notes(groups, inside, outside).items()}
    for name, note in notes.items():
        logger.info("%s: %s", name, note)
    if output:
        source = read_text(config_dir / "software" / f"{option}.yaml")
        write_text(output, documented(source, fitted, notes))
        logger.info("%s: written", output)


def documented(text: str, values: Mapping[str, float], notes: Mapping[str, str]) -> str:
    """Return a profile with fitted values and the errors of families; everything else stays as it is.

    The line that says that nothing was fitted goes.
    """
    lines = [line for line in text.splitlines() if not line.startswith((NOTE, NOT_FITTED))]
    shown = {
        name: f"{name}: {number(value)} # {FITTED}{bound_note(PRIORS[name], value)}" for name, value in values.items()
    }
    found = [shown.get(line.partition(":")[0], line) for line in lines]
    heading = next(n for n, line in enumerate(found) if re.match(r"name:", line))
    own = [f"{NOTE}{name}: {note}" for name, note in notes.items() if not name.startswith(" ")]
    return "\n".join([*found[:heading], *own, *found[heading:]]) + "\n"


def _data(rows: Sequence[MeasuredIteration], option: str, config_dir: Path) -> IterationData:
    subjects = IterationSubjects((), config_dir)
    known, ran = [], []
    for row in rows:
        try:
            ran.append(subjects.of(row))
        except ConfigError:  # `validate` lists what cannot be represented
            continue
        known.append(row)
    if not known:
        raise ArtifactError(f"--software {option}: no row of the file ran on it.")
    return IterationData(known, ran)


def _notes(names: Sequence[str], inside: Array, outside: Array) -> dict[str, str]:
    """Errors in sample and left out, by name of the row."""
    notes = {}
    for name in dict.fromkeys(names):
        own = np.array([other == name for other in names])
        shown = f"{int(own.sum())} rows, time {_mape_pct(inside[own]):.1f} %"
        notes[name] = shown + f" (left out {_mape_pct(outside[own]):.1f} %)"
    return notes


def _mape_pct(logarithms: Array) -> float:
    return 100 * float(np.abs(np.expm1(logarithms)).mean())
