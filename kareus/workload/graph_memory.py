"""Memory estimate of a training that launches the blocks by CUDA graphs (`kareus.runtime.capturing`).

The pool of the graphs takes what blocks need in an iteration, kept tensors and working set, and gives nothing back:
the LM head's working set comes on top, where it would else take the place of the blocks'. Hidden states enter graphs
through a buffer for each microbatch in flight, beside the message that they came with, and two more buffers take
gradients and results. Where gradients are reduced, the last microbatch of each chunk runs without graphs: what it keeps
and its working set are outside of the pool. The graphs' own records of their kernels are left to the reserve.
"""

from kareus.errors import RefusedWorkloadError
from kareus.workload.activation_memory import boundary_bytes, kept_bytes
from kareus.workload.config import Workload
from kareus.workload.memory import GIB, stage_memory
from kareus.workload.pipelining import most_in_flight


def captured_gib(workload: Workload, stage: int) -> float:
    """Return the peak of one GPU of a stage with CUDA graphs, in GiB."""
    parallelism, layers = workload.parallelism, workload.parallelism.split[stage]
    tokens = workload.microbatch_size * workload.sequence_length // parallelism.cp
    estimate, buffer = stage_memory(workload, stage, layers), boundary_bytes(workload.model, parallelism, tokens)
    extra_gib = min(estimate.blocks_gib, estimate.head_gib) + (most_in_flight(workload, stage) + 2) * buffer / GIB
    if parallelism.dp * parallelism.cp > 1:
        kept, _ = kept_bytes(workload, -(-layers // workload.chunks), tokens)
        extra_gib += workload.chunks * kept / GIB + estimate.blocks_gib
    return estimate.total_gib + extra_gib


def check_captured_memory(workload: Workload) -> None:
    """Check that a training with CUDA graphs fits the GPU.

    Raises:
        RefusedWorkloadError: it does not.
    """
    limit_gib = workload.gpu.memory_gib
    needed_gib, stage = max((captured_gib(workload, n), n) for n in range(workload.parallelism.pp))
    if needed_gib > limit_gib:
        raise RefusedWorkloadError(
            f"--cuda-graphs: out of memory, needs {needed_gib:.1f} GiB on stage {stage} with the pool of the graphs, "
            f"but gpu.memory_gib is {limit_gib:.1f}; train without it, or plan a smaller microbatch."
        )
