"""The methods that are compared (paper, section 6.1): which points each may use, and whether it scales frequency."""

from dataclasses import dataclass

from kareus.errors import ArtifactError


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How the plans of a method are made."""

    name: str
    points_of: str
    """Method of the microbatch frontiers that it plans with."""
    scales_frequency: bool
    """Whether it plans over the frontier; otherwise everything runs at the maximum clock, and there is one plan."""


METHODS = (
    Method(name="sequential", points_of="sequential", scales_frequency=False),
    Method(name="sequential+perseus", points_of="sequential", scales_frequency=True),
    Method(name="nanobatching", points_of="nanobatching", scales_frequency=False),
    Method(name="nanobatching+perseus", points_of="nanobatching", scales_frequency=True),
    Method(name="kareus", points_of="kareus", scales_frequency=True),
)
OPTIONAL = "nanobatching"
"""Microbatch frontiers that need not exist: an odd microbatch has no halves."""


def point_method(method: str) -> str:
    """The method of the microbatch frontiers whose points the plans of `method` name.

    Raises:
        ArtifactError: no such method.
    """
    for known in METHODS:
        if known.name == method:
            return known.points_of
    raise ArtifactError(f"method '{method}' is not known; allowed: {', '.join(m.name for m in METHODS)}.")
