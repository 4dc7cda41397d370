"""Bytes that the engine's operators move, beside those that the operator graph records.

Operators are launched from their records as the profiler launches them (`kareus.testbed.cuda.operators`), which are
the functions that training runs. Counted are, on the path of GPUs, loads and stores of Triton's kernels, in its
interpreter, and the operands and results of what PyTorch's libraries run.

Products and attention are counted at full size, on tensors without memory. Memory-bound operators compute on 8 and on
16 tokens of each sequence, with all their other sizes: what they move is linear in the number of tokens (a weight is
read once for a fixed number of rows), so that two lengths give the bytes of any other. What several workloads have
alike is computed once.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kareus.artifacts.records import from_plain, to_plain
from kareus.graph.records import Batch, Operator, OperatorKind
from kareus.partition.extract import extract
from kareus.partition.trace import _ALLOCATIONS, _exact, _region, _tensors
from kareus.testbed.cuda.operators import prepare
from kareus.testbed.cuda.scratch import Scratch
from kareus.workload.config import Workload

LENGTHS = (8, 16)
"""Tokens of each sequence, of those that an operator gets, on which memory-bound operators compute: with the four
sequences of a nanobatch, multiples of what one program handles."""
PROCESSES = 2
"""That interpret kernels at the same time."""
CPU, UNFILLED = torch.device("cpu"), torch.device("meta")
"""The second for products and attention, which are chosen there as on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """Bytes of one operator."""

    operator: str
    """Scope, direction, segment and name."""
    recorded: int
    """In the operator graph."""
    needed: int
    """Inputs and outputs of its function, once each."""
    moved: int
    """By the kernels that a GPU launches."""


class Unfilled(Scratch):
    """Memory without content, each tensor by itself."""

    def operands(self, *shapes: Sequence[int]) -> list[Tensor]:
        """Tensors of no particular numbers."""
        return [torch.empty(tuple(shape), dtype=torch.bfloat16, device=self.device) for shape in shapes]

    results = operands

    def sums(self, shape: Sequence[int]) -> Tensor:
        """As the others, in fp32."""
        return torch.empty(tuple(shape), device=self.device)


class OperandBytes(TorchDispatchMode):
    """Adds up operands and results of PyTorch's operations; views and allocations count for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and count it."""
        options = kwargs or {}
        output = func(*args, **options)
        kernel = func.name().partition("::")[2].split(".")[0]
        declared = {a.name: a for a in func._schema.arguments}
        given = {**dict(zip(declared, args, strict=False)), **options}
        changed = _tensors([value for name, value in given.items() if declared[name].is_write])
        inputs = _tensors([v for name, v in given.items() if not (name == "out" and declared[name].is_write)])
        is_view = any(r.alias_info is not None for r in func._schema.returns)
        writes = [_region(t) for t in (changed or ([] if is_view else _tensors(output)))]
        if writes and kernel not in _ALLOCATIONS:
            reads, writes = _exact(kernel, [_region(t) for t in inputs], writes)
            self.total += sum(region.size_bytes for region in (*reads, *writes))
        return output


def movements(workloads: Mapping[str, Workload]) -> Iterator[tuple[str, Movement]]:
    """Bytes of every operator of a nanobatch's graph, each beside the name of its workload."""
    samples = {name: _samples(workload) for name, workload in workloads.items()}
    distinct = list(dict.fromkeys(o for own in samples.values() for sample in own.values() for o in sample.values()))
    on_gpu = dict(zip(distinct, _interpreted(distinct), strict=True))
    needed_of = {operator: _counted(operator, CPU)[1] for operator in distinct}
    for name, workload in workloads.items():
        length = workload.sequence_length
        for place, operator in _operators(workload, length).items():
            recorded = operator.bytes_read + operator.bytes_written + operator.copied_bytes
            if operator.kind is not OperatorKind.MEMORY:
                moved, _ = _counted(operator, UNFILLED)
                yield name, Movement(operator=place, recorded=recorded, needed=moved, moved=moved)
                continue
            sample = samples[name][place]
            moved = _extrapolated({n: on_gpu[o] for n, o in sample.items()}, length)
            needed = _extrapolated({n: needed_of[o] for n, o in sample.items()}, length)
            yield name, Movement(operator=place, recorded=recorded, needed=needed, moved=moved)


def _samples(workload: Workload) -> dict[str, dict[int, Operator]]:
    """Memory-bound operators by their names in the graph, each by the lengths of sequences on which it computes."""
    parallelism = workload.parallelism
    whole, shared = (
        {n * factor: _operators(workload, n * factor) for n in LENGTHS}
        for factor in (parallelism.cp, parallelism.cp * parallelism.token_shards)
    )
    return {
        place: {n: _unnumbered(graph[place]) for n, graph in (shared if _gets_a_share(operator) else whole).items()}
        for place, operator in whole[min(whole)].items()
        if operator.kind is OperatorKind.MEMORY
    }


def _gets_a_share(operator: Operator) -> bool:
    """Whether an operator on the shortest sequences gets a share of their tokens, as norms with sequence parallelism.

    Records have sequences and tokens before other sizes, if they have tokens at all.
    """
    return any(tokens < LENGTHS[0] for tokens in operator.shape[1:2])


def _unnumbered(operator: Operator) -> Operator:
    """Return the record without the number that tells operators of one name apart."""
    return replace(operator, name=re.sub(r"\.\d+$", "", operator.name))


def _operators(workload: Workload, length: int) -> dict[str, Operator]:
    graph = extract(workload.model, workload.parallelism, workload.microbatch_size, length)[Batch.NANOBATCH]
    return {
        f"{field.name} {segment.name} {operator.name}": operator
        for field in fields(graph)
        for segment in getattr(graph, field.name)
        for operator in segment.operators
    }


def _extrapolated(counts: Mapping[int, int], length: int) -> int:
    """Return what two counts by length, through which a line passes, make of another length."""
    (short, few), (longer, more) = counts.items()
    return round(few + (more - few) / (longer - short) * (length - short))


def _interpreted(operators: Sequence[Operator]) -> list[int]:
    """Bytes that each operator moves on a GPU, by other processes, whose Triton interprets."""
    with ThreadPoolExecutor(PROCESSES) as pool:
        parts = list(pool.map(_interpreted_together, [operators[n::PROCESSES] for n in range(PROCESSES)]))
    return [parts[n % PROCESSES][n // PROCESSES] for n in range(len(operators))]


def _interpreted_together(operators: Sequence[Operator]) -> list[int]:
    places = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "helpers.moved_bytes"],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": places},
        input=json.dumps([to_plain(o) for o in operators]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    moved: list[int] = json.loads(done.stdout)
    return moved


def _counted(operator: Operator, device: torch.device) -> tuple[int, int]:
    """Bytes of the operations of one launch, and of its function's inputs and outputs."""
    launch: Any = prepare(operator, Scratch(device) if device == CPU else Unfilled(device))
    operands = OperandBytes()
    inputs = _distinct([*getattr(launch, "args", ()), *getattr(launch, "keywords", {}).values()])
    versions = [t._version for t in inputs.values()] if device == CPU else []
    with torch.no_grad(), operands:
        result = launch()
    changed = [t for t, version in zip(inputs.values(), versions, strict=False) if t._version != version]
    storages = {t.untyped_storage()._cdata for t in inputs.values()}
    outputs = {key: t for key, t in _distinct([result]).items() if t.untyped_storage()._cdata not in storages}
    return operands.total, sum(t.nbytes for t in (*inputs.values(), *changed, *outputs.values()))


def _distinct(tree: Any) -> dict[tuple[int, int], Tensor]:
    """The tensors among some values, by where they begin and their size."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, Tensor)]
    return {(id(t) if t.is_meta or t.is_cuda else t.data_ptr(), t.nbytes): t for t in tensors}


def main() -> None:
    """Read operators as JSON, and write what each moves in Triton's interpreter."""
    from helpers.triton_interpreter import MovedBytes, aside  # noqa: PLC0415 - where Triton is installed

    torch.set_num_threads(1)
    aside()
    counts = []
    for plain in json.loads(sys.stdin.read()):
        with MovedBytes() as moved:
            operations, _ = _counted(from_plain(Operator, plain), CPU)
        counts.append(operations + moved.loaded + moved.stored)
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main()
