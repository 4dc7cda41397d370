"""Launches of an instruction's blocks, with and without CUDA graphs, counted as they are dispatched on a GPU's path.

Blocks of full size run on tensors without memory, for which PyTorch chooses operations as on a GPU, and Triton's
kernels are counted instead of run. A launch is a kernel of Triton, an operation of PyTorch that writes, or a call of a
communicator; libraries may launch several kernels for one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kareus.artifacts.records import from_plain, to_plain
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, BlockGraph, Direction
from kareus.model.communication import SUM, Mesh
from kareus.model.communicators.tokens import TokenCollectives
from kareus.model.shards import shard_of
from kareus.partition.extract import extract
from kareus.partition.trace import _ALLOCATIONS
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.graphs import MicrobatchGraphs, replayed
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import StageModel
from kareus.workload.config import Workload

UNFILLED = torch.device("meta")
_VIEW = "_unsafe_view"
"""A view, as the others are, which its schema does not say."""


class Launches(NamedTuple):
    """Of the blocks of one instruction of a stage."""

    launched: int
    """Operator by operator."""
    with_graphs: int
    """A graph, and the copies into and out of its buffers."""


class Counting(TorchDispatchMode):
    """Counts operations that write; Triton's kernels and collectives are added from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def launched(self, *_: object, **__: object) -> None:
        """Count what is no operation of PyTorch."""
        self.total += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and count it, or those that it consists of."""
        with self:
            decomposed = func.decompose(*args, **(kwargs or {}))
        if decomposed is not NotImplemented:
            return decomposed
        kernel = func.name().partition("::")[2].split(".")[0]
        is_view = not func._schema.is_mutable and any(r.alias_info is not None for r in func._schema.returns)
        self.total += not is_view and kernel not in _ALLOCATIONS | {_VIEW}
        return func(*args, **(kwargs or {}))


class CountedCommunicator(TokenCollectives):
    """A communicator whose every call is a launch, and which moves nothing."""

    rank = 0

    def __init__(self, axis: str, size: int, counting: Counting) -> None:
        self.axis, self.size = axis, size
        self._counting = counting

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> "Done":
        """Count."""
        self._counting.launched()
        return Done(tuple(tensors))

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> "Done":
        """Count."""
        self._counting.launched()
        return Done(tuple([t.new_empty(self.size, *t.shape) for t in tensors] if into is None else into))

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> "Done":
        """Count."""
        self._counting.launched()
        return Done(tuple([t.new_empty(t.shape[1:]) for t in tensors] if into is None else into))


class Done(NamedTuple):
    """What was launched."""

    results: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """Return it."""
        return self.results


def launches(workloads: dict[str, Workload]) -> dict[str, dict[str, Launches]]:
    """Launches by name and direction, counted in another process, in which Triton would interpret its kernels."""
    given = {name: (to_plain(w), to_plain(_graph(w))) for name, w in workloads.items()}
    places = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "helpers.launches"],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": places},
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return {name: {d: Launches(*counts) for d, counts in own.items()} for name, own in found.items()}


def _graph(workload: Workload) -> BlockGraph:
    """Operator graph of a nanobatch; tracing is not for processes whose Triton interprets."""
    size, length = workload.microbatch_size, workload.sequence_length
    return extract(workload.model, workload.parallelism, size, length)[Batch.NANOBATCH]


def counted(workload: Workload, graph: BlockGraph) -> dict[str, Launches]:
    """Launches of the first stage's blocks by direction, as two nanobatches and without recomputation."""
    from triton.runtime import interpreter  # noqa: PLC0415 - where Triton is installed

    counting = Counting()
    interpreter.GridExecutor.__call__ = counting.launched
    model, parallelism = workload.model, workload.parallelism
    axes: dict[str, Any] = {
        axis: CountedCommunicator(axis, size, counting)
        for axis, size in (("tp", parallelism.tp), ("cp", parallelism.cp))
        if size > 1
    }
    shard = shard_of(model, parallelism, workload.sequence_length)
    with UNFILLED:
        stage = StageModel(
            model,
            shard,
            Mesh(**axes, sequence_parallel=parallelism.token_shards > 1),
            StageShape(layers=parallelism.split[0], first=False, last=False),
            torch.bfloat16,
            recomputation=Recomputation.NONE,
            graph=graph,
        )
        tokens = shard.tokens // parallelism.token_shards
        hidden = torch.empty(workload.microbatch_size, tokens, shard.hidden_size, dtype=torch.bfloat16)
    split = Schedule(Execution.NANOBATCHING)
    totals = []
    with torch.no_grad(), counting:
        output, held = stage.run_forward(hidden, MicrobatchSchedule(split, split), record=True)
        totals.append(counting.total)
        stage.run_backward(held, output)
        totals.append(counting.total)
    graphs = MicrobatchGraphs(
        entering=hidden, arriving=hidden, leaving=hidden, run_forward=counting.launched, run_backward=counting.launched
    )
    with counting:
        left = replayed(hidden.detach().requires_grad_(), graphs)
        totals.append(counting.total)
        left.backward(hidden)
        totals.append(counting.total)
    forward, backward, own_forward, own_backward = (b - a for a, b in zip((0, *totals), totals, strict=False))
    return {
        Direction.FORWARD: Launches(forward, own_forward),
        Direction.BACKWARD: Launches(backward, own_backward),
    }


def main() -> None:
    """Read workloads as JSON, and write their launches."""
    counts = {
        name: counted(from_plain(Workload, workload), from_plain(BlockGraph, graph))
        for name, (workload, graph) in json.loads(sys.stdin.read()).items()
    }
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main()
