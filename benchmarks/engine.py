"""What partitioned overlap costs the host for each partition, beside the partition's predicted time on an A100.

    python benchmarks/engine.py

Blocks of tiny tensors run on one CPU with communicators that do nothing, so that time is Python and PyTorch's dispatch.
`eager` runs the same operators by calling the block and autograd; what the engine takes beyond that is its own. A host
that takes less than the GPU stays ahead of it. Times are of this machine's CPU (user and system), the least of many
runs; predictions are the simulated A100's at its maximum clock, with collectives launched first on the default SMs.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kareus.gpu_model.model import run_schedules
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, BlockGraph, Direction
from kareus.model.block import Block, through
from kareus.model.communication import SUM, Mesh
from kareus.model.config import Model
from kareus.model.layers import rotary_table
from kareus.model.passes import Tape, backward_pass, forward_pass
from kareus.model.shards import Shard
from kareus.model.steps import steps_of
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.profile.programs import Execution
from kareus.runtime.overlap import run_staggered
from kareus.runtime.schedules import Schedule, turns_of
from kareus.workload.compose import compose
from kareus.workload.config import Workload

CONFIG = Path(__file__).parent.parent / "config"
MODELS = ("llama3.2-3b", "qwen3-1.7b")
SHAPES = ((8, 4096), (16, 4096), (8, 8192))
"""Microbatch sizes and sequence lengths (paper, section 6.2)."""
DEGREES = ("tp8", "cp2tp4")
LAYERS, TOKENS, RUNS = 4, 8, 200
DIRECTIONS = (Direction.FORWARD, Direction.BACKWARD)
ALLOWED_SHARE = 0.05
"""Of a partition's predicted time that the engine may take beyond eager PyTorch."""


class Nothing(NamedTuple):
    """A communicator of two ranks that moves nothing."""

    axis: str
    size: int = 2
    rank: int = 0

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> "There":
        """Leave the tensors as they are."""
        return There(tuple(tensors))

    def all_gather(self, tensors: Sequence[Tensor], sm_count: int | None = None) -> "There":
        """Show each tensor twice."""
        return There(tuple(t.expand(self.size, *t.shape) for t in tensors))

    def reduce_scatter(self, tensors: Sequence[Tensor], sm_count: int | None = None) -> "There":
        """Take the first half."""
        return There(tuple(t[0] for t in tensors))


class There(NamedTuple):
    """What was there all the time."""

    results: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """Return it."""
        return self.results


def main() -> None:
    """Print one line for each workload and direction; fail where the engine's own share is too large."""
    torch.set_num_threads(1)
    largest = 0.0
    print("own: engine beyond eager; host: all of the engine's; predicted: mean partition on the simulated A100")
    print(f"{'workload':<32} direction  eager us  host us  own us  predicted us  host %  own %")
    for model in MODELS:
        for degrees in DEGREES:
            workloads = list(composed(model, degrees))
            graph = extract_nanobatch(workloads[0])
            for direction, (eager_s, host_s) in zip(DIRECTIONS, measured(workloads[0], graph), strict=True):
                for workload in workloads:
                    predicted_s = predicted(workload, direction)
                    name = f"{model} {degrees} {workload.microbatch_size} x {workload.sequence_length}"
                    own_s = host_s - eager_s
                    largest = max(largest, own_s / predicted_s)
                    shares = f"{100 * host_s / predicted_s:>7.1f} {100 * own_s / predicted_s:>6.1f}"
                    print(
                        f"{name:<32} {direction:<9} {1e6 * eager_s:>9.0f} {1e6 * host_s:>8.0f} {1e6 * own_s:>7.0f} "
                        f"{1e6 * predicted_s:>13.0f} {shares}"
                    )
    if largest >= ALLOWED_SHARE:
        sys.exit(f"own: up to {100 * largest:.1f} % of the predicted time; allowed are {100 * ALLOWED_SHARE:.0f} %.")


def composed(model: str, degrees: str) -> Iterator[Workload]:
    """Workloads of one model and division."""
    for microbatch_size, sequence_length in SHAPES:
        overrides = [f"model={model}", f"parallelism={degrees}", f"microbatch_size={microbatch_size}"]
        yield compose([*overrides, f"sequence_length={sequence_length}"], CONFIG)[0].workload


def extract_nanobatch(workload: Workload) -> BlockGraph:
    """Operator graph of half a microbatch."""
    size, length = workload.microbatch_size, workload.sequence_length
    return extract(workload.model, workload.parallelism, size, length)[Batch.NANOBATCH]


def predicted(workload: Workload, direction: Direction) -> float:
    """Mean predicted time of the partitions of one pass through a block, in seconds."""
    clock = np.array([float(workload.gpu.search_frequencies.maximum_mhz)])
    sm_count = np.array([workload.testbed.default_collective_sm_count])
    partitions = detect_partitions(extract_nanobatch(workload), recomputation=Recomputation.NONE).items()
    own = [(partition, n) for partition, n in partitions if partition.direction is direction]
    times_s = [run_schedules(workload.gpu, p, clock, sm_count, np.array([0])).time_s[0] * n for p, n in own]
    return float(sum(times_s) / sum(n for _, n in own))


def measured(workload: Workload, graph: BlockGraph) -> Iterator[tuple[float, float]]:
    """Host time of a partition, eager and by the engine, forward and then backward, in seconds."""
    model = workload.model
    mesh = Mesh(
        tp=Nothing("tp") if workload.parallelism.tp > 1 else None,
        cp=Nothing("cp") if workload.parallelism.cp > 1 else None,
    )
    blocks = [Block(model, tiny(model), mesh, torch.float32) for _ in range(LAYERS)]
    table = rotary_table(model, TOKENS, mesh.cp)
    steps = steps_of(blocks)
    hidden = [torch.randn(1, TOKENS, 32) for _ in range(2)]
    schedule = Schedule(Execution.NANOBATCHING)
    turns = {
        d: turns_of(schedule, graph, LAYERS, d, recomputation=Recomputation.NONE, default_sm_count=None)
        for d in DIRECTIONS
    }
    eager, engine = [], []
    for _ in range(RUNS):
        outputs, forward_s = timed(lambda: [through(blocks, h.detach().requires_grad_(), table) for h in hidden])
        _, backward_s = timed(lambda: [out.backward(torch.ones_like(out)) for out in outputs])  # noqa: B023
        eager.append((forward_s, backward_s))
        tapes: list[Tape] = [[], []]
        passes = [forward_pass(steps, h, table, tape) for h, tape in zip(hidden, tapes, strict=True)]
        with torch.no_grad():
            outputs, forward_s = timed(lambda: run_staggered(passes, turns[Direction.FORWARD], None))  # noqa: B023
            passes = [backward_pass(tape, torch.ones_like(h)) for tape, h in zip(tapes, outputs, strict=True)]
            _, backward_s = timed(lambda: run_staggered(passes, turns[Direction.BACKWARD], None))  # noqa: B023
        engine.append((forward_s, backward_s))
    for place, direction in enumerate(DIRECTIONS):
        least = [min(run[place] for run in runs) / len(turns[direction]) for runs in (eager, engine)]
        yield least[0], least[1]


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
    main()
