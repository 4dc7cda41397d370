"""Recomputation: what of its forward a backward runs again instead of finding it kept."""

from enum import StrEnum


class Recomputation(StrEnum):
    """What a backward recomputes; of a split one, the input gradients do."""

    NONE = "none"
    """Nothing: everything that a backward reads is kept from the forward."""
    STAGE = "stage"
    """The whole forward of the stage (or of its chunk), from its input, before the first block runs backward."""
