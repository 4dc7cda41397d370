"""Versions of PyTorch that training runs on: it uses private parts, listed in pyproject.toml, which may change.

The engine refuses others. Adapters of trainers use few of these parts, and only warn.
"""

import functools
import logging
import re
from importlib import metadata

from kareus.errors import EngineError

OLDEST, TOO_NEW = (2, 11), (2, 15)
"""First version that trains, and first one that was not tried; `pyproject.toml` has the same range."""

logger = logging.getLogger(__name__)


def check_torch_version() -> None:
    """Check that the installed PyTorch is of a version that trains; PyTorch is not imported.

    Raises:
        EngineError: it is older or newer, or not installed.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        raise EngineError(f"torch: not installed; training needs {_range()}.") from error
    if not _was_tried(version):
        raise EngineError(
            f"torch {version}: training uses private parts of PyTorch and needs {_range()}; install such a version "
            f"(pip install 'torch>={_text(OLDEST)},<{_text(TOO_NEW)}')."
        )


@functools.cache
def warn_of_torch_version() -> None:
    """Warn once of a version that was not tried, for trainers that run on it anyway."""
    version = metadata.version("torch")
    if not _was_tried(version):
        logger.warning(
            "torch %s: adapters were tried with %s; compare the losses of some steps with and without them.",
            version,
            _range(),
        )


def _was_tried(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) < TOO_NEW


def _range() -> str:
    return f"{_text(OLDEST)} or newer and older than {_text(TOO_NEW)}"


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
