"""MSCCL++, whose kernels take the number of blocks of each call; imported only when chosen.

Inside one NVLink domain. Its algorithms run on a stream of their own and share one scratch buffer, so that they
follow one another. It has no reduce-scatter, and reduces to sums and minima only (its `src/ext/collectives`): what it
lacks is NCCL's, with as many SMs. An all-reduce in the place of a reduce-scatter would move twice as much.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kareus.errors import EngineError
from kareus.model.communication import SUM, Communicator, Handle, Tensors
from kareus.model.communicators.tokens import TokenCollectives

THREADS = 1024
"""Threads of a block."""
DEFAULT_SM_COUNT = 20
"""Blocks without an SM count."""
ALL_REDUCE, ALL_GATHER = "default_allreduce_rsag", "default_allgather_fullmesh"
"""Algorithms that copy through the scratch buffer, so that no tensor has to be registered with the other GPUs."""


@dataclass(frozen=True, slots=True)
class Launched:
    """Kernels on the communication stream, what they leave, and what they read."""

    event: torch.cuda.Event
    results: Tensors
    sources: Sequence[Tensor]

    def wait(self) -> Tensors:
        """As `Handle.wait`."""
        torch.cuda.current_stream().wait_event(self.event)
        return self.results


class MscclppCommunicator(TokenCollectives):
    """A `Communicator` over MSCCL++."""

    def __init__(self, axis: str, group: dist.ProcessGroup, scratch_bytes: int, others: Communicator) -> None:
        """Connect the ranks of a group.

        Args:
            axis: `tp` or `cp`.
            group: of gloo, or with gloo for CPU tensors.
            scratch_bytes: the largest message.
            others: launches what MSCCL++ has no algorithm for, among the same ranks.

        Raises:
            EngineError: the library is not installed.
        """
        library = load_library()
        self.axis = axis
        self.size = group.size()
        self.rank = group.rank()
        self.others = others
        self._library = library
        connected = library.CommGroup(torch_group=group)
        self._communicator = connected.communicator
        self._scratch = library.RawGpuBuffer(scratch_bytes)
        builder = library.ext.AlgorithmCollectionBuilder()
        made = builder.build_default_algorithms(self._scratch.data(), self._scratch.bytes(), connected.my_rank)
        self._algorithms = {algorithm.name: algorithm for algorithm in made}
        self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Handle:
        """As `Communicator.all_reduce`."""
        operations = {SUM: self._library.ReduceOp.SUM, dist.ReduceOp.MIN: self._library.ReduceOp.MIN}
        if operation not in operations:
            return self.others.all_reduce(tensors, sm_count, operation)
        return self._launched(ALL_REDUCE, self._in_place(tensors), tuple(tensors), sm_count, operations[operation])

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Launched:
        """As `Communicator.all_gather`."""
        results = tuple([t.new_empty(self.size, *t.shape) for t in tensors] if into is None else into)
        moves = list(zip(tensors, results, strict=True))
        return self._launched(ALL_GATHER, moves, results, sm_count, self._library.ReduceOp.NOP)

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Handle:
        """As `Communicator.reduce_scatter`."""
        return self.others.reduce_scatter(tensors, sm_count, into)

    def all_to_all(
        self, rows: Tensor, sends: Sequence[int], receives: Sequence[int], sm_count: int | None = None
    ) -> Handle:
        """As `Communicator.all_to_all`."""
        return self.others.all_to_all(rows, sends, receives, sm_count)

    def _in_place(self, tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Tensors onto themselves, in parts that the scratch buffer takes: weight gradients may be larger."""
        room = self._scratch.bytes()
        parts = [part for t in tensors for part in torch.split(t.view(-1), room // t.itemsize)]
        return list(zip(parts, parts, strict=True))

    def _launched(
        self,
        name: str,
        moves: Sequence[tuple[Tensor, Tensor]],
        results: Tensors,
        sm_count: int | None,
        operation: Any,
    ) -> Launched:
        self._stream.wait_stream(torch.cuda.current_stream())
        for source, target in moves:
            self._execute(name, source, target, sm_count or DEFAULT_SM_COUNT, operation)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return Launched(event, results, [t for move in moves for t in move])

    def _execute(self, name: str, source: Tensor, target: Tensor, sm_count: int, operation: Any) -> None:
        result = self._algorithms[name].execute(
            self._communicator,
            source.data_ptr(),
            target.data_ptr(),
            source.nbytes,
            target.nbytes,
            self._library.utils.torch_dtype_to_mscclpp_dtype(source.dtype),
            op=operation,
            stream=self._stream.cuda_stream,
            nblocks=sm_count,
            nthreads_per_block=THREADS,
        )
        if int(result) != 0:  # an enum of nanobind's, every member of which is true, success too
            raise EngineError(
                f"communicator 'mscclpp': {name} of {source.nbytes} bytes on {sm_count} blocks failed ({result}); "
                f"messages may have up to {self._scratch.bytes()} bytes."
            )


def load_library() -> Any:
    """Import MSCCL++.

    Raises:
        EngineError: it is not there.
    """
    try:
        library = importlib.import_module("mscclpp")
        importlib.import_module("mscclpp.ext")
        importlib.import_module("mscclpp.utils")
    except ImportError as error:
        raise EngineError(
            f"communicator 'mscclpp': cannot be imported ({error}); build it as envs/README.md says, or choose 'nccl'."
        ) from error
    return library
