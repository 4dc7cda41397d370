"""MSCCL++ with the library replaced: what it is asked to run, and on what."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from kareus.errors import EngineError
from kareus.model.communicators import mscclpp
from kareus.model.communicators.mscclpp import MscclppCommunicator

SCRATCH_BYTES = 64


class CppCommResult:
    """What `execute` returns, as nanobind binds a C++ enum: it has `__int__` and no `__bool__`, so success is true."""

    def __init__(self, name: str, value: int) -> None:
        self._name, self._value = name, value

    def __int__(self) -> int:
        return self._value

    def __str__(self) -> str:
        return f"CppCommResult.{self._name}"


SUCCESS, INVALID_ARGUMENT = CppCommResult("CommSuccess", 0), CppCommResult("CommInvalidArgument", 4)


class Stream:
    cuda_stream = 7

    def __init__(self, priority: int = 0) -> None:
        """Nothing runs on it."""

    def wait_stream(self, other: Any) -> None:
        """Nothing to wait for."""

    wait_event = record = wait_stream


class Library:
    """Runs an all-reduce of two ranks that hold the same; refuses what its scratch buffer cannot take."""

    ReduceOp = SimpleNamespace(SUM="sum", MIN="min", NOP="nop")
    utils = SimpleNamespace(torch_dtype_to_mscclpp_dtype=str)

    def __init__(self, memory: dict[int, Tensor]) -> None:
        self.memory = memory
        self.log: list[tuple[str, int, int]] = []
        named = [SimpleNamespace(name=n, execute=self.run(n)) for n in (mscclpp.ALL_REDUCE, mscclpp.ALL_GATHER)]
        builder = SimpleNamespace(build_default_algorithms=lambda pointer, size, rank: named)
        self.ext = SimpleNamespace(AlgorithmCollectionBuilder=lambda: builder)

    def CommGroup(self, torch_group: Any) -> Any:  # noqa: N802 - as the library has it
        return SimpleNamespace(communicator="communicator", my_rank=0)

    def RawGpuBuffer(self, size: int) -> Any:  # noqa: N802 - as the library has it
        return SimpleNamespace(data=lambda: 0, bytes=lambda: size)

    def run(self, name: str) -> Any:
        def execute(
            communicator: str, source: int, target: int, *sizes: Any, op: str, nblocks: int, **options: Any
        ) -> Any:
            self.log.append((name, sizes[0], nblocks))
            if sizes[0] > SCRATCH_BYTES:
                return INVALID_ARGUMENT
            for start, tensor in self.memory.items():
                if op == "sum" and start <= source < start + tensor.nbytes:
                    first = (source - start) // tensor.itemsize
                    tensor.view(-1)[first : first + sizes[0] // tensor.itemsize] *= 2
            return SUCCESS

        return execute


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library({})
    monkeypatch.setattr(mscclpp, "load_library", lambda: library)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return library


class Nccl:
    """Notes what is left to it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int | None]] = []

    def all_reduce(self, tensors: Any, sm_count: int | None = None, operation: Any = None) -> Any:
        self.log.append((str(operation), sm_count))
        return SimpleNamespace(wait=lambda: tuple(tensors))

    def reduce_scatter(self, tensors: Any, sm_count: int | None = None) -> Any:
        self.log.append(("reduce-scatter", sm_count))
        return SimpleNamespace(wait=lambda: tuple(t[0] for t in tensors))


def communicator(others: Any = None) -> MscclppCommunicator:
    group: Any = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
    return MscclppCommunicator("tp", group, SCRATCH_BYTES, others or Nccl())


@pytest.mark.parametrize("elements", [16, 17, 100])
def test_an_all_reduce_is_split_to_fit_the_scratch_buffer(library: Library, elements: int) -> None:
    weights = torch.arange(2.0 * elements).view(2, elements)
    library.memory[weights.data_ptr()] = weights
    (reduced,) = communicator().all_reduce((weights,), 12).wait()
    assert torch.equal(reduced, 2 * torch.arange(2.0 * elements).view(2, elements))
    assert sum(size for _, size, _ in library.log) == weights.nbytes
    assert {(name, blocks) for name, _, blocks in library.log} == {(mscclpp.ALL_REDUCE, 12)}


def test_a_gather_that_the_library_refuses_is_named(library: Library) -> None:
    said = r"all.*gather.* of 80 bytes on 20 blocks failed \(CppCommResult.CommInvalidArgument\); .* up to 64 bytes"
    with pytest.raises(EngineError, match=said):
        communicator().all_gather((torch.ones(20),))


def test_what_the_library_lacks_is_left_to_nccl_on_as_many_sms(library: Library) -> None:
    """It has no reduce-scatter; an all-reduce in its place would move twice as much."""
    others = Nccl()
    mscclpp_group = communicator(others)
    (part,) = mscclpp_group.reduce_scatter((torch.ones(2, 8),), 12).wait()
    assert part.shape == (8,)
    mscclpp_group.all_reduce((torch.ones(4),), 6, dist.ReduceOp.MAX).wait()
    assert others.log == [("reduce-scatter", 12), (str(dist.ReduceOp.MAX), 6)]
    assert library.log == []


def test_minima_leave_what_all_ranks_have_alike_as_it_is(library: Library) -> None:
    """So the profiler reduces a message again and again without overflow, by the library's own kernel."""
    message = torch.randn(16)
    library.memory[message.data_ptr()] = message
    before = message.clone()
    communicator().all_reduce((message,), 12, dist.ReduceOp.MIN).wait()
    assert torch.equal(message, before)
    assert library.log == [(mscclpp.ALL_REDUCE, 64, 12)]
