"""What the engine costs the host for each partition.

    python benchmarks/engine.py           # a table
    python benchmarks/engine.py --json    # one object

Blocks of tiny tensors run on one CPU with communicators that do nothing: time is that of Python and PyTorch's dispatch.
`own` is the same run where functions and communicators compute nothing and answer at once (`hosttime.answers`): what
the engine takes beyond the bare functions that it launches. A host that takes less than the GPU stays ahead of it.
Times are of this machine's CPU (user and system), the least of many runs in a row, without collections of garbage, as
in an iteration; predictions are those of the GPU model at the maximum clock, with collectives launched first on the
default SMs. What a replay of a CUDA graph costs the host needs a GPU, and is not measured.

How much an instruction launches, and what operators and messages move, is held by tests (`test_launches.py` and
`test_boundary.py` in `tests/runtime`, `tests/model/test_moved_bytes.py`).
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hosttime.answers import AnsweringCommunicator, Answers, answering_steps
from kareus.gpu_model.model import run_schedules
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, BlockGraph, Direction
from kareus.model.block import Block
from kareus.model.communication import SUM, Mesh, group_size
from kareus.model.communicators.tokens import TokenCollectives
from kareus.model.config import Model
from kareus.model.layers import rotary_table
from kareus.model.passes import Tape, backward_pass, forward_pass
from kareus.model.shards import Shard
from kareus.model.steps import steps_of
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.profile.programs import Execution
from kareus.runtime.overlap import run_staggered
from kareus.runtime.pipeline import collected_afterwards
from kareus.runtime.schedules import Schedule, Turn, turns_of
from kareus.workload.compose import compose
from kareus.workload.config import Workload

CONFIG = Path(__file__).parent.parent / "config"
MODELS = ("llama3.2-3b", "qwen3-1.7b")
SHAPES = ((8, 4096), (16, 4096), (8, 8192))
"""Microbatch sizes and sequence lengths (paper, section 6.2)."""
DEGREES = ("tp8", "cp2tp4")
LAYERS, TOKENS, RUNS = 4, 8, 200
DIRECTIONS = (Direction.FORWARD, Direction.BACKWARD)
ALLOWED_SHARES = {"a100-sxm4-40gb": 0.03, "h100-sxm5-80gb": 0.05, "h200": 0.05}
"""Of a partition's predicted time that the engine may take beyond the bare functions, by GPU."""
SEQUENCE_PARALLEL = {False: "", True: " sp"}
"""What names say of workloads without and with sequence parallelism."""
NOT_MEASURED = "not measured here: what launching a graph costs the host needs a GPU"


@dataclass(frozen=True, slots=True)
class Nothing(TokenCollectives):
    """A communicator of two ranks that moves nothing."""

    axis: str
    size: int = 2
    rank: int = 0

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> "There":
        """Leave the tensors as they are."""
        return There(tuple(tensors))

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> "There":
        """Show each tensor twice; leave `into` as it is."""
        return There(tuple(into) if into is not None else tuple(t.expand(self.size, *t.shape) for t in tensors))

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> "There":
        """Take the first half; leave `into` as it is."""
        return There(tuple(into) if into is not None else tuple(t[0] for t in tensors))


class There(NamedTuple):
    """What was there all the time."""

    results: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """Return it."""
        return self.results


def main() -> int:
    """Print what was asked for; 1 where a share is larger than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    summary, holds = host_shares(table=not arguments.json)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    return 0 if holds else 1


def host_shares(*, table: bool) -> tuple[dict[str, Any], bool]:
    """Measure every workload; the largest shares of predicted times by GPU, and whether those of the engine hold.

    Nanobatches have as many sequences as the workload's: with sequence parallelism each is a collective of its own.
    """
    engine: dict[str, float] = dict.fromkeys(ALLOWED_SHARES, -math.inf)
    host = dict(engine)
    if table:
        print(f"{'workload':<44} direction  host us  own us  predicted us  host %  own %")
    for model, degrees, shared in product(MODELS, DEGREES, SEQUENCE_PARALLEL):
        by_size = {w.microbatch_size: w for w in composed(model, degrees, sequence_parallel=shared)}
        times_s = {size: list(measured(w, extract_nanobatch(w))) for size, w in by_size.items()}
        for place, direction in enumerate(DIRECTIONS):
            for gpu in ALLOWED_SHARES:
                for workload in composed(model, degrees, gpu, sequence_parallel=shared):
                    host_s, own_s = times_s[workload.microbatch_size][place]
                    predicted_s = predicted(workload, direction)
                    engine[gpu] = max(engine[gpu], own_s / predicted_s)
                    host[gpu] = max(host[gpu], host_s / predicted_s)
                    shape = f"{workload.microbatch_size} x {workload.sequence_length} {gpu[:4]}"
                    name = f"{model} {degrees}{SEQUENCE_PARALLEL[shared]} {shape}"
                    shares = f"{100 * host_s / predicted_s:>7.1f} {100 * own_s / predicted_s:>6.1f}"
                    if table:
                        print(
                            f"{name:<44} {direction:<9} {1e6 * host_s:>8.0f} {1e6 * own_s:>7.1f} "
                            f"{1e6 * predicted_s:>13.0f} {shares}"
                        )
    summary = {
        "own_share_max": engine["a100-sxm4-40gb"],
        "host_share_max": max(host.values()),
        "own_share_by_gpu": engine,
        "host_share_by_gpu": host,
        "host_share_with_cuda_graphs": NOT_MEASURED,
    }
    if table:
        print(f"\nhost's share with CUDA graphs: {NOT_MEASURED}")
    return summary, all(engine[gpu] < allowed for gpu, allowed in ALLOWED_SHARES.items())


def composed(
    model: str, degrees: str, gpu: str = "a100-sxm4-40gb", *, sequence_parallel: bool = False
) -> Iterator[Workload]:
    """Workloads of one model and division on one GPU."""
    overrides = [f"model={model}", f"parallelism={degrees}", f"parallelism.sequence_parallel={sequence_parallel}"]
    for microbatch_size, sequence_length in SHAPES:
        shape = [f"microbatch_size={microbatch_size}", f"sequence_length={sequence_length}"]
        yield compose([*overrides, f"gpu={gpu}", *shape], CONFIG)[0].workload


def extract_nanobatch(workload: Workload) -> BlockGraph:
    """Operator graph of half a microbatch."""
    size, length = workload.microbatch_size, workload.sequence_length
    return extract(workload.model, workload.parallelism, size, length)[Batch.NANOBATCH]


def predicted(workload: Workload, direction: Direction) -> float:
    """Mean predicted time of the partitions of one pass through a block, in seconds."""
    clock = np.array([float(workload.gpu.search_frequencies.maximum_mhz)])
    sm_count = np.array([workload.testbed.default_collective_sm_count])
    partitions = detect_partitions(extract_nanobatch(workload), recomputation=Recomputation.NONE).items()
    of_direction = [(partition, n) for partition, n in partitions if partition.direction is direction]
    times_s = [run_schedules(workload.gpu, p, clock, sm_count, np.array([0])).time_s[0] * n for p, n in of_direction]
    return float(sum(times_s) / sum(n for _, n in of_direction))


def measured(workload: Workload, graph: BlockGraph) -> Iterator[tuple[float, float]]:
    """Host time of a partition, all of it and the engine's own, forward and then backward, in seconds."""
    turns = turns_by_direction(graph)
    runs = passes_of(workload, turns, None), passes_of(workload, turns, Answers())
    times_s: list[list[list[float]]] = [[], []]
    with torch.no_grad(), collected_afterwards():  # as in an iteration
        for run, taken_s in zip(runs, times_s, strict=True):  # in turns, one would fill the other's caches
            taken_s.extend(run() for _ in range(RUNS + 1))
    for place, direction in enumerate(DIRECTIONS):
        host_s, own_s = (min(run_s[place] for run_s in taken_s[1:]) / len(turns[direction]) for taken_s in times_s)
        yield host_s, own_s


def turns_by_direction(graph: BlockGraph) -> dict[Direction, tuple[Turn, ...]]:
    """Turns of two nanobatches through the blocks."""
    schedule = Schedule(Execution.NANOBATCHING)
    return {
        d: turns_of(schedule, graph, LAYERS, d, recomputation=Recomputation.NONE, default_sm_count=None)
        for d in DIRECTIONS
    }


def passes_of(
    workload: Workload, turns: dict[Direction, tuple[Turn, ...]], answers: Answers | None
) -> Callable[[], list[float]]:
    """Return what runs two nanobatches forward and backward, and returns the host time of each direction, in seconds.

    Args:
        workload: whose blocks they pass through.
        turns: by direction.
        answers: of functions and communicators, whose first run computes; None lets all runs compute.
    """
    model, parallelism = workload.model, workload.parallelism
    axes: dict[str, Any] = {
        axis: Nothing(axis) for axis, size in (("tp", parallelism.tp), ("cp", parallelism.cp)) if size > 1
    }
    if answers is not None:
        axes = {axis: AnsweringCommunicator(nothing, answers) for axis, nothing in axes.items()}
    mesh = Mesh(**axes, sequence_parallel=parallelism.token_shards > 1)
    blocks = [Block(model, tiny(model), mesh, torch.float32) for _ in range(LAYERS)]
    steps = steps_of(blocks) if answers is None else answering_steps(steps_of(blocks), answers)
    table = rotary_table(model, TOKENS, mesh.cp)
    stream_tokens = TOKENS // group_size(mesh.tp) if mesh.sequence_parallel else TOKENS
    hidden = [torch.randn(workload.microbatch_size // 2, stream_tokens, 32) for _ in range(2)]

    def run() -> list[float]:
        if answers is not None:
            answers.begin()
        tapes: list[Tape] = [[], []]
        passes = [forward_pass(steps, h, table, tape) for h, tape in zip(hidden, tapes, strict=True)]
        outputs, forward_s = timed(lambda: run_staggered(passes, turns[Direction.FORWARD], None))
        passes = [backward_pass(tape, h) for tape, h in zip(tapes, outputs, strict=True)]
        _, backward_s = timed(lambda: run_staggered(passes, turns[Direction.BACKWARD], None))
        return [forward_s, backward_s]

    return run


def tiny(model: Model) -> Shard:
    """A shard with the model's kind of operators, too small to take time."""
    return Shard(
        hidden_size=32,
        head_dim=model.head_dim,
        query_heads=1,
        key_value_heads=1,
        intermediate_size=16,
        vocab_rows=8,
        tokens=TOKENS,
    )


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What `run` returns, and the CPU time that it took."""
    began = time.process_time()
    result = run()
    return result, time.process_time() - began


if __name__ == "__main__":
    sys.exit(main())
