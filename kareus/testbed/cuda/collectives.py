"""Collectives of a program on real GPUs: among processes over NCCL (or gloo, on CPUs), or in a loop on one GPU.

A collective starts when what was launched before it has ended and runs beside what is launched after it; whoever waits
for its handle lets the computation go on only once it has ended. Consecutive collectives that the graph has fused are
one of all their bytes.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from kareus.errors import DeviceError
from kareus.model.collectives import CollectiveKind
from kareus.model.communicators.process_group import all_gather_single, reduce_scatter_single
from kareus.partition.graph import Collective
from kareus.testbed.cuda.operators import Launch, stream_on_cpu
from kareus.testbed.cuda.scratch import DTYPE

_OVERRIDES = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
"""Environment variables with which NCCL overrules what a communicator asks for."""


class Handle(Protocol):
    """A collective in flight."""

    def wait(self) -> object:
        """Let what is launched from now on start after it."""


class Starter(Protocol):
    """Starts a collective that was prepared."""

    def __call__(self) -> Handle:
        """Start it beside what is launched from now on."""


class Collectives(Protocol):
    """Where collectives come from."""

    def prepare(self, collective: Collective, sm_count: int) -> Starter:
        """Allocate what `collective` needs on `sm_count` SMs. Every rank prepares the same, in the same order."""


class GroupCollectives:
    """Real collectives, over one process group for each axis and SM count.

    NCCL holds a communicator to its SMs by the number of its thread blocks (CTAs), one on an SM. It is a limit: small
    messages get fewer. Gloo has no SMs and ignores them.
    """

    def __init__(self, axes: Mapping[str, int], device: torch.device) -> None:
        """Communicate among the processes of the default group, which `axes` (name and size) lays out, first fastest.

        Raises:
            DeviceError: an environment variable would overrule the SM counts.
        """
        overruling = [name for name in _OVERRIDES if name in os.environ]
        if overruling:
            raise DeviceError(f"{overruling[0]}: is set and would overrule every SM count; unset it.")
        self._axes = axes
        self._device = device
        self._groups: dict[tuple[str, int], Any] = {}

    def prepare(self, collective: Collective, sm_count: int) -> Starter:
        """Allocate the buffers, and make the process group if it is the first of its kind."""
        group = self._group(collective.group, sm_count)
        whole = torch.ones(collective.message_bytes // DTYPE.itemsize, dtype=DTYPE, device=self._device)
        if collective.kind is CollectiveKind.ALL_REDUCE:
            # A mean costs what a sum costs, and never overflows however often it is taken of its own result.
            operation = dist.ReduceOp.AVG if whole.is_cuda else dist.ReduceOp.MAX
            return partial(dist.all_reduce, whole, op=operation, group=group, async_op=True)
        part = torch.ones(whole.numel() // collective.group_size, dtype=DTYPE, device=self._device)
        if collective.kind is CollectiveKind.ALL_GATHER:
            return partial(all_gather_single, whole, part, group=group, async_op=True)
        return partial(reduce_scatter_single, part, whole, group=group, async_op=True)

    def _group(self, axis: str, sm_count: int) -> Any:
        """This process's group along `axis`; every process takes part in making all groups of the axis."""
        if (axis, sm_count) not in self._groups:
            made = [dist.new_group(ranks, pg_options=self._options(sm_count)) for ranks in self._lines(axis)]
            own = next(i for i, ranks in enumerate(self._lines(axis)) if dist.get_rank() in ranks)
            self._groups[axis, sm_count] = made[own]
        return self._groups[axis, sm_count]

    def _options(self, sm_count: int) -> Any:
        if self._device.type != "cuda":
            return None
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.min_ctas = options.config.max_ctas = sm_count
        return options

    def _lines(self, axis: str) -> list[list[int]]:
        """Ranks that differ in their place along `axis` only, for every such line."""
        names = list(self._axes)
        stride = math.prod(self._axes[name] for name in names[: names.index(axis)])
        size = self._axes[axis]
        starts = [rank for rank in range(math.prod(self._axes.values())) if rank // stride % size == 0]
        return [[start + place * stride for place in range(size)] for start in starts]


class LoopbackCollectives:
    """On one GPU: kernels of as many thread blocks as the collective has SMs, reading and writing its bus bytes.

    Local memory stands for the links, so a collective alone is faster than a real one; what it shows is how
    computation and a collective of so many SMs and bytes hold each other up.
    """

    def __init__(self, device: torch.device) -> None:
        """Move bytes on `device`; on CPUs at once, before what is launched next."""
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._device = device

    def prepare(self, collective: Collective, sm_count: int) -> Starter:
        """Allocate what stands for this GPU's memory and its peer's."""
        elements = math.ceil(collective.bus_bytes / torch.int32.itemsize)
        source, target = (torch.ones(elements, dtype=torch.int32, device=self._device) for _ in range(2))
        if self._stream is None:
            return _Beside(partial(stream_on_cpu, source, target), None)
        from kareus.testbed.cuda.kernels import stream  # noqa: PLC0415 - there is no Triton for CPUs

        # As many threads as a thread block may have, so that it has its SM to itself, as one of NCCL's has.
        return _Beside(partial(stream, source, target, sm_count, tile=16384, warps=32), self._stream)


@dataclass(frozen=True, slots=True)
class _Beside:
    """Starter and handle of what runs on a stream of its own; on CPUs there are no streams."""

    launch: Launch
    stream: torch.cuda.Stream | None

    def __call__(self) -> Handle:
        if self.stream is None:
            self.launch()
            return self
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.launch()
        return self

    def wait(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
