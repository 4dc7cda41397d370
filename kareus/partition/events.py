"""Events of tracing: kernels and collectives, and the parts of buffers that they read and write. Without torch."""

from dataclasses import dataclass
from typing import NamedTuple

from kareus.graph.records import Direction

TRACED_BLOCKS = 3
"""The one in the middle shows a block as it is between two others."""
INNER_BLOCK = f"blocks.{TRACED_BLOCKS // 2}."
"""Prefix of the paths of its operators."""


class Region(NamedTuple):
    """Part of a buffer that a kernel reads or writes."""

    buffer: int
    """Identity of the storage."""
    offset: int
    """Where it starts in the buffer; only ever compared with other starts in the same buffer."""
    size_bytes: int
    shape: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One kernel or collective."""

    path: str
    """Path of the module whose forward or backward it belongs to, such as `blocks.1.mlp.down`."""
    direction: Direction
    kernel: str
    """Name of the operation, such as `mm`."""
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    axis: str = ""
    """Process group of a collective, `tp` or `cp`; empty for a kernel."""
    axis_size: int = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """The recorded operators of the embedding, of some blocks and of the head, forward and backward."""

    events: tuple[TracedEvent, ...]
    """In program order."""
    lasting: frozenset[int]
    """Buffers that outlive the recording: weights, their gradients, outputs."""
