"""TensorBoard event files of a training, which rank 0 writes beside the Parquet tables.

They need the package `tensorboard`, which nothing else does.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from kareus.errors import EngineError


def check_metrics(folder: Path) -> None:
    """Check that event files can be written to `folder`.

    Raises:
        EngineError: the package `tensorboard` is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise EngineError(
            f"--metrics {folder}: needs the package tensorboard, which is not installed; pip install tensorboard, or "
            "leave --metrics out (the Parquet tables have time, energy and loss)."
        )


class EventFiles:
    """Writer of event files, a new one for each start of a training."""

    def __init__(self, folder: Path, first_iteration: int) -> None:
        """Begin an event file in `folder`; TensorBoard hides what earlier ones have from `first_iteration` on.

        Raises:
            EngineError: the package `tensorboard` is not installed.
        """
        check_metrics(folder)
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - the optional package

        self._writer = SummaryWriter(str(folder), purge_step=first_iteration)

    def add(self, iteration: int, scalars: Mapping[str, float | None]) -> None:
        """Add the scalars of an iteration, by tag; those that are None are left out."""
        for tag, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(tag, value, iteration)

    def flush(self) -> None:
        """Write all that was added."""
        self._writer.flush()

    def close(self) -> None:
        """Write all that was added and close the file."""
        self._writer.close()
