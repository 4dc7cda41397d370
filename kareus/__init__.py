"""Kareus: plan the training of a large model for the best time-energy frontier.

One package for each stage of the flow; what a stage reads and writes stands in its package's docstring. Importing this
package imports nothing heavy.
"""

from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "open_results"]


def __getattr__(name: str) -> Any:
    """Import `open_results` when it is asked for: it needs polars and every table's schema."""
    if name == "open_results":
        from kareus.export.dataset import open_results  # noqa: PLC0415 - see above

        return open_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
