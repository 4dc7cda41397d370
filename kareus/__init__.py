"""Kareus: plan the training of a large model for the best time-energy frontier.

One package for each stage of the flow; what a stage reads and writes stands in its package's docstring. Importing this
package imports nothing heavy: the functions below are imported when they are asked for. Their types are in
`__init__.pyi`.
"""

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "advise",
    "frontier",
    "load_plan",
    "measured_iterations",
    "open_results",
    "plan",
    "predict",
    "resolve",
]

_DEFINED_IN = {
    "advise": "kareus.api",
    "frontier": "kareus.api",
    "load_plan": "kareus.api",
    "measured_iterations": "kareus.api",
    "open_results": "kareus.export.dataset",
    "plan": "kareus.api",
    "predict": "kareus.api",
    "resolve": "kareus.api",
}
"""Module of each public function."""


def __getattr__(name: str) -> object:
    """Import a public function when it is asked for."""
    if name in _DEFINED_IN:
        from importlib import import_module  # noqa: PLC0415 - see above

        return getattr(import_module(_DEFINED_IN[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the package, with those of functions that were not asked for yet."""
    return sorted({*globals(), *__all__})
