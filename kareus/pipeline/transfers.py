"""Point-to-point time between consecutive pipeline stages, and back from the last to the first where chunks follow."""

from kareus.gpu_model.gpu import Gpu
from kareus.model.config import Parallelism
from kareus.pipeline.config import PipelineSlice

BYTES_PER_VALUE = 2
"""Activations and their gradients travel in bfloat16."""


def transfers_s(config: PipelineSlice) -> tuple[float, ...]:
    """Seconds to send a microbatch's activations (or their gradients) over each boundary between stages.

    Scatter-gather (Narayanan et al., SC '21, section 4.1): every GPU of a tensor-parallel group sends its share to its
    counterpart, then the receivers gather the whole over the links of their node. Bandwidths are peaks, so these are
    the least times possible.

    Returns:
        One time for each boundary, `pp - 1` in all; the boundary `n` lies between the stages `n` and `n + 1`. With
        several chunks on a stage one more, between the last stage and the first: there a microbatch goes from one chunk
        to the next.
    """
    parallelism, gpu = config.parallelism, config.gpu
    tokens = config.microbatch_size * config.sequence_length / parallelism.cp
    tensor_bytes = tokens * config.model.hidden_size * BYTES_PER_VALUE
    share_bytes = tensor_bytes / parallelism.tp
    gather_s = (tensor_bytes - share_bytes) / (gpu.link_gb_per_s * 1e9)
    boundaries = parallelism.pp - (config.chunks == 1)
    return tuple(
        share_bytes / (_gb_per_s(gpu, parallelism, boundary) * 1e9) + gather_s for boundary in range(boundaries)
    )


def _gb_per_s(gpu: Gpu, parallelism: Parallelism, boundary: int) -> float:
    """Bandwidth from one GPU of stage `boundary` to its counterpart on the next one, the slowest pair deciding.

    After the last stage comes the first. Stages take up consecutive ranks (pipeline parallelism is the outermost
    dimension, as in Megatron-LM).
    """
    size = parallelism.gpus_per_stage
    ranks = range(boundary * size, (boundary + 1) * size)
    total = parallelism.gpus
    if any(rank // gpu.gpus_per_node != (rank + size) % total // gpu.gpus_per_node for rank in ranks):
        return gpu.node_gb_per_s / gpu.gpus_per_node
    return gpu.link_gb_per_s
