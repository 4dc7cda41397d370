"""Collectives of a group whose other ranks do not exist, so that one GPU can show what they cost the computation.

A kernel of the chosen number of CTAs moves through HBM what a ring would: 2 (n - 1) / n of an all-reduced message, half
of that for the others. It runs as fast as HBM lets so few SMs, not at the pace of a link. The missing ranks are taken
to hold zeros where results are sums, and the same tensors where they are collections. On CPUs a thread copies.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kareus.errors import EngineError
from kareus.model.communication import SUM, Tensors
from kareus.model.communicators.tokens import TokenCollectives

DEFAULT_SM_COUNT = 20
"""CTAs without an SM count, about as many as NCCL uses for large messages."""


class _Arrival(Protocol):
    """When what was launched is done."""

    def wait(self) -> None:
        """Make later computation wait for the kernel."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Data on their way through HBM."""

    arrival: _Arrival
    results: Tensors
    kept: Sequence[Tensor]
    """Tensors in use, which have to live as long."""

    def wait(self) -> Tensors:
        """As `Handle.wait`."""
        self.arrival.wait()
        return self.results


class LoopbackCommunicator(TokenCollectives):
    """A `Communicator` of rank 0 among `size`."""

    rank = 0

    def __init__(self, axis: str, size: int) -> None:
        self.axis = axis
        self.size = size
        self._engines: dict[torch.device, _Engine] = {}
        self._peers: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Transfer:
        """As `Communicator.all_reduce`; leaves the tensors as they are."""
        moves = [(t, self._peer(t, 2 * (self.size - 1) * t.numel() // self.size)) for t in tensors]
        return self._transfer(moves, tuple(tensors), sm_count, adds=True)

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Transfer:
        """As `Communicator.all_gather`."""
        results = tuple([t.new_empty(self.size, *t.shape) for t in tensors] if into is None else into)
        moves = list(zip(tensors, results, strict=True))
        return self._transfer(moves, results, sm_count, adds=False)

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Transfer:
        """As `Communicator.reduce_scatter`; returns the first part of each."""
        moves = [(t, self._peer(t, (self.size - 1) * t.numel() // self.size)) for t in tensors]
        if into is None:
            return self._transfer(moves, tuple(t[self.rank] for t in tensors), sm_count, adds=True)
        for target, joined in zip(into, tensors, strict=True):
            target.copy_(joined[: len(target)])
        return self._transfer(moves, tuple(into), sm_count, adds=True)

    def all_to_all(
        self, rows: Tensor, sends: Sequence[int], receives: Sequence[int], sm_count: int | None = None
    ) -> Transfer:
        """As `Communicator.all_to_all`; what comes are rows that were given, over and over."""
        received = rows.new_empty(sum(receives), *rows.shape[1:])
        source = rows if rows.numel() else self._peer(rows, 1)
        return self._transfer([(source, received)], (received,), sm_count, adds=False)

    def _transfer(
        self, moves: Sequence[tuple[Tensor, Tensor]], results: Tensors, sm_count: int | None, *, adds: bool
    ) -> Transfer:
        device = moves[0][0].device
        if device not in self._engines:
            self._engines[device] = _CudaEngine() if device.type == "cuda" else _CpuEngine()
        arrival = self._engines[device].start(moves, sm_count or DEFAULT_SM_COUNT, adds=adds)
        return Transfer(arrival, results, [t for move in moves for t in move])

    def _peer(self, like: Tensor, elements: int) -> Tensor:
        """Buffer in the place of another GPU's memory; it grows to the largest size requested."""
        key = (like.device, like.dtype)
        if key not in self._peers or self._peers[key].numel() < elements:
            self._peers[key] = like.new_zeros(elements)
        return self._peers[key][:elements]


class _Engine(Protocol):
    def start(self, moves: Sequence[tuple[Tensor, Tensor]], sm_count: int, *, adds: bool) -> _Arrival:
        """Repeat each source over its target, adding to what is there if it `adds`."""


class _CpuEngine:
    """Copies in one thread, in the order of launches."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loopback")

    def start(self, moves: Sequence[tuple[Tensor, Tensor]], sm_count: int, *, adds: bool) -> "_Done":
        return _Done(self._thread.submit(_copy_all, moves, adds=adds))


@dataclass(frozen=True, slots=True)
class _Done:
    future: Future[None]

    def wait(self) -> None:
        self.future.result()


def _copy_all(moves: Sequence[tuple[Tensor, Tensor]], *, adds: bool) -> None:
    for source, target in moves:
        flat = source.detach().flatten()
        for part in torch.split(target.detach().flatten(), flat.numel()):
            if adds:
                part.add_(flat[: part.numel()])
            else:
                part.copy_(flat[: part.numel()])


class _CudaEngine:
    """Launch the kernel on a separate stream, ahead of kernels that wait for SMs."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        self._move = _kernel()

    def start(self, moves: Sequence[tuple[Tensor, Tensor]], sm_count: int, *, adds: bool) -> "_Recorded":
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for source, target in moves:
                self._move(source, target, sm_count, adds)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return _Recorded(event)


@dataclass(frozen=True, slots=True)
class _Recorded:
    event: torch.cuda.Event

    def wait(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)


def _kernel() -> Callable[..., None]:
    try:
        from kareus.model.communicators.loopback_kernel import move  # noqa: PLC0415 - Triton comes with torch for CUDA
    except ImportError as error:
        raise EngineError(f"communicator 'loopback': needs Triton on a GPU ({error}); pip install triton.") from error
    return move
