"""Fitting a software's two numbers of memory: what its blocks keep beyond fused kernels, and what no tensor takes.

Least squares in logarithms, softened, over rows that count; rows of each model weigh alike. Left out are models, each
estimated by a fit to the others.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kareus.arrays import Array
from kareus.artifacts.files import read_text, write_text
from kareus.calibrate.coefficient_space import softened
from kareus.calibrate.gpu_file import number
from kareus.errors import ArtifactError
from kareus.prediction.lines import Line
from kareus.prediction.measured import software_of
from kareus.prediction.measured_memory import MeasuredMemory, estimate_of, memory_data, with_numbers
from kareus.prediction.memory_formats import Format
from kareus.workload.config import Workload

logger = logging.getLogger(__name__)

NUMBERS: Mapping[str, tuple[float, float, float]] = {"kept_excess": (1.0, 0.5, 4.0), "workspace_gib": (0.2, 0.0, 8.0)}
"""Numbers that are fitted: first guess, least and most. PyTorch's eager kernels keep up to twice what fused ones do."""
ERROR_SCALE = 0.05
"""Relative error of memory from which on a row counts less than its square."""
NOTE = "# measured memory: "
"""Begins the line that says how well a profile fits measured memory."""
FITTED = "[fit to measured memory]"

Data = Sequence[tuple[MeasuredMemory, Workload]]


def fit_memory(data: Data) -> dict[str, float]:
    """Return the numbers of the software that ran all of `data`, which counts."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - only fitting needs it

    models = [row.group for row, _ in data]
    weights = np.array([models.count(model) ** -0.5 for model in models])
    first, lower, upper = (np.array(column) for column in zip(*NUMBERS.values(), strict=True))

    def residuals(x: Array) -> Array:
        return weights * softened(errors(data, dict(zip(NUMBERS, x.tolist(), strict=True))) / ERROR_SCALE)

    solved = least_squares(residuals, first, bounds=(lower, upper), diff_step=1e-3)
    return {name: float(number(value)) for name, value in zip(NUMBERS, solved.x.tolist(), strict=True)}


def errors(data: Data, numbers: Mapping[str, float]) -> Array:
    """Return the logarithms of estimated over measured allocated memory with other numbers of the software."""
    estimates = (estimate_of(row, with_numbers(workload, numbers)).allocated_gib for row, workload in data)
    return np.log(
        [estimate / (row.allocated_gib or np.nan) for estimate, (row, _) in zip(estimates, data, strict=True)]
    )


def left_out(data: Data) -> Array:
    """Return errors as `errors`, each by a fit that had not seen the row's model; of a single model those in sample."""
    groups = np.array([row.group for row, _ in data])
    outside = np.full(len(data), np.nan)
    for group in dict.fromkeys(groups.tolist()):
        inside = [pair for pair in data if pair[0].group == group]
        others = [pair for pair in data if pair[0].group != group] or inside
        outside[groups == group] = errors(inside, fit_memory(others))
    return outside


def fit_and_write(lines: Sequence[Line], kind: Format, option: str, output: Path | None, config_dir: Path) -> None:
    """Fit a software's numbers of memory, print errors in sample and of models left out, and write its file.

    Args:
        lines: of a file with the memory of trainings.
        kind: its format.
        option: of the group `software`.
        output: profile to write.
        config_dir: Hydra groups.

    Raises:
        ArtifactError: no row that counts ran on that software.
    """
    data = [pair for pair in memory_data(lines, kind, (), config_dir)[0] if pair[0].counts and pair[0].is_dense]
    data = [pair for pair in data if software_of(pair[0].iteration) == option]
    if not data:
        raise ArtifactError(f"--software {option}: no row of the file ran a model of it that is large enough.")
    fitted = fit_memory(data)
    inside, outside = _mape_pct(errors(data, fitted)), _mape_pct(left_out(data))
    note = f"{len(data)} rows, {inside:.1f} % of allocated memory (models left out {outside:.1f} %)"
    for name, value in fitted.items():
        logger.info("%s: %s", name, number(value))
    logger.info("%s", note)
    if output:
        write_text(output, documented(read_text(config_dir / "software" / f"{option}.yaml"), fitted, note))
        logger.info("%s: written", output)


def documented(text: str, values: Mapping[str, float], note: str) -> str:
    """Return a profile with fitted numbers of memory and their error; everything else stays as it is."""
    lines = [line for line in text.splitlines() if not line.startswith(NOTE)]
    shown = {name: f"{name}: {number(value)} # {FITTED}" for name, value in values.items()}
    written = [shown.pop(line.partition(":")[0], line) for line in lines]
    heading = next(n for n, line in enumerate(written) if re.match(r"name:", line))
    return "\n".join([*written[:heading], f"{NOTE}{note}", *written[heading:], *shown.values()]) + "\n"


def _mape_pct(logarithms: Array) -> float:
    return 100 * float(np.abs(np.expm1(logarithms)).mean())
