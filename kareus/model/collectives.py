"""The collectives that a model issues, by name; without torch, so that every room may speak of them."""

from enum import StrEnum


class CollectiveKind(StrEnum):
    """Collectives that a block issues."""

    ALL_REDUCE = "allreduce"
    ALL_GATHER = "allgather"
    REDUCE_SCATTER = "reducescatter"
