"""Configuration of what of an iteration is planned: the record of the key `iteration`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationConfig:
    """Parts of a training iteration that are planned besides forwards and backwards."""

    include_update: bool
    """Whether gradient reduction, gradient norm and optimizer step are instructions of the iteration."""
