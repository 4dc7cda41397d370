"""The distance by which a host launches kernels ahead of the GPU."""

from enum import StrEnum


class LaunchesAhead(StrEnum):
    """The stretch of kernels over which the slower of host and GPU decides; where it ends, both begin anew."""

    STEP = "step"
    """The operators between two collectives."""
    PART = "part"
    """Blocks, and what is before and after them, each by itself: as traces of single parts are put together."""
    PASS = "pass"
    """A whole instruction."""
