"""Fitting a GPU to the store of measurements from the command line: what is printed, and the file that is written."""

import datetime
import logging
from collections.abc import Sequence
from pathlib import Path

from kareus.artifacts.files import write_text
from kareus.calibrate.answer import error_lines, errors_by_kind, notes, untold_line
from kareus.calibrate.coefficients import OF_LINKS, expectations
from kareus.calibrate.document import Origin, document
from kareus.calibrate.fit import calibrate, errors_of, left_out_errors
from kareus.calibrate.heat import heat_of
from kareus.calibrate.stored import Stored, read_stored
from kareus.errors import ArtifactError
from kareus.testbed.config import CudaCollectives
from kareus.workload.compose import compose, with_engine

logger = logging.getLogger(__name__)


def fit_stored(folders: Sequence[Path], option: str, output: Path | None, config_dir: Path) -> None:
    """Fit the GPU of an option to stored measurements, print errors, and write a file that inherits from the option's.

    Raises:
        ArtifactError: there are no measurements that can be used, or the file would inherit from itself.
    """
    if output is not None and output.stem == option:
        raise ArtifactError(f"{output}: the fit starts from --gpu {option}; give --output another name.")
    (composition,) = compose(with_engine([f"gpu={option}"]), config_dir)
    start = composition.workload.gpu
    stored, expected = read_stored(folders, start), expectations(start)
    warm = heat_of(stored.heat, start).applied(start) if stored.heat else start
    fitted = calibrate(stored.observations, warm, expected)
    inside, outside = errors_of(stored.observations, fitted.gpu), left_out_errors(stored.observations, fitted, expected)
    errors = errors_by_kind(stored.observations, inside, outside)
    kept = tuple(sorted(OF_LINKS & fitted.spreads.keys())) if _is_loopback(stored) else ()
    lines = _origin_lines(stored)
    for line in [*lines, *error_lines(errors), untold_line(fitted, kept, option)]:
        logger.info("%s", line)
    if output is not None:
        origin = Origin(option=option, name=f"{start.name}-fitted", lines=lines)
        write_text(output, document(origin, fitted, kept, notes(errors), start))
        logger.info("%s: written", output)


def _is_loopback(stored: Stored) -> bool:
    return stored.testbed.detail.endswith(f"collectives: {CudaCollectives.LOOPBACK}")


def _origin_lines(stored: Stored) -> tuple[str, ...]:
    today = datetime.datetime.now(datetime.UTC).date()
    simulated = " NOT OF A REAL GPU." if stored.testbed.kind == "simulated" else ""
    left_out = f"; {stored.unknown} of unknown programs are left out" if stored.unknown else ""
    return (
        f"Fitted by `kareus fit --measurements`, {today}: {stored.testbed.label}; {stored.testbed.detail}.{simulated}",
        f"{len(stored.observations)} measurements of the store{left_out}.",
    )
