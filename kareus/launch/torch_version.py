"""Versions of PyTorch that training runs on: it uses private parts, listed in pyproject.toml, which may change."""

import re
from importlib import metadata

from kareus.errors import EngineError

OLDEST, TOO_NEW = (2, 11), (2, 14)
"""First version that trains, and first one that was not tried; `pyproject.toml` has the same range."""


def check_torch_version() -> None:
    """Check that the installed PyTorch is of a version that trains; PyTorch is not imported.

    Raises:
        EngineError: it is older or newer, or not installed.
    """
    allowed = f"{_text(OLDEST)} or newer and older than {_text(TOO_NEW)}"
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        raise EngineError(f"torch: not installed; training needs {allowed}.") from error
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) < TOO_NEW:
        raise EngineError(
            f"torch {version}: training uses private parts of PyTorch and needs {allowed}; install such a version "
            f"(pip install 'torch>={_text(OLDEST)},<{_text(TOO_NEW)}')."
        )


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
