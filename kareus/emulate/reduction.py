"""Time of reducing gradients over data-parallel replicas: a ring between nodes, bytes over bandwidth."""

from kareus.workload.config import Workload
from kareus.workload.memory import BF16_BYTES, FP32_BYTES, stage_parameters


def reduction_s(workload: Workload, pipelines: int) -> float:
    """Seconds until the gradients of every stage are reduced over `pipelines` replicas.

    Each GPU holds the fp32 gradients of its share of a stage and reduces them with its counterparts in the other
    pipelines, which stand on other nodes; the GPUs of a node share its bandwidth. A ring of d moves 2 (d - 1) / d of
    the bytes in an all-reduce, half of that in a reduce-scatter and half in an all-gather (Patarasuk and Yuan, 2009).
    With sharded optimizer states the gradients are reduce-scattered, and bf16 weights gathered. All stages reduce at
    the same time, the one with the most parameters decides. Bandwidth is the peak, latency left out: the least time.
    """
    parallelism, gpu = workload.parallelism, workload.gpu
    parameters = max(
        stage_parameters(workload.model, parallelism, stage, layers) for stage, layers in enumerate(parallelism.split)
    )
    gathered_bytes = BF16_BYTES if parallelism.shard_optimizer else FP32_BYTES
    moved_bytes = (pipelines - 1) / pipelines * parameters * (FP32_BYTES + gathered_bytes)
    return moved_bytes / (gpu.node_gb_per_s / gpu.gpus_per_node * 1e9)
