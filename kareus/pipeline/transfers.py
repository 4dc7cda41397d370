"""Point-to-point messages between consecutive pipeline stages, and back from the last to the first where chunks follow.

Where a tensor-parallel group shares the tokens between its matrix products (sequence parallelism), every GPU sends its
tokens to its counterpart on the next stage, which needs no others. Elsewhere all GPUs of the group hold the same
tensor: each sends one part of it, and the receivers gather the whole over the links of their node (scatter-gather;
Narayanan et al., SC '21, section 4.1). A tensor that does not divide by the group is sent whole by each.
"""

from dataclasses import dataclass

from kareus.gpu_model.gpu import Gpu
from kareus.graph.number_formats import BF16_BYTES
from kareus.model.parallelism import Parallelism
from kareus.pipeline.config import PipelineSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryMessage:
    """What one GPU sends when a microbatch passes a boundary between stages, and what it gathers on arrival."""

    sent_bytes: int
    gathered_bytes: int
    """Bytes that arrive from the other GPUs of the tensor-parallel group; 0 where nothing is gathered."""


def gathered_parts(values: int, parallelism: Parallelism) -> int:
    """Return in how many parts a boundary tensor is sent, which its receivers gather; 1 where nothing is gathered.

    Args:
        values: elements of the tensor that a GPU holds.
        parallelism: of the workload.
    """
    if parallelism.token_shards > 1 or values % parallelism.tp:
        return 1
    return parallelism.tp


def boundary_message(config: PipelineSlice, value_bytes: int = BF16_BYTES) -> BoundaryMessage:
    """Return the message of a microbatch's activations (or their gradients)."""
    parallelism = config.parallelism
    everything = config.microbatch_size * config.sequence_length * config.model.hidden_size
    values = everything // (parallelism.cp * parallelism.token_shards)
    sent = values // gathered_parts(values, parallelism)
    return BoundaryMessage(sent_bytes=sent * value_bytes, gathered_bytes=(values - sent) * value_bytes)


def transfers_s(config: PipelineSlice) -> tuple[float, ...]:
    """Seconds to send a microbatch's activations (or their gradients) over each boundary between stages.

    Bandwidths are peaks, so these are the least times possible where `network_slowdown` was not fitted.

    Returns:
        One time for each boundary, `pp - 1` in all; the boundary `n` lies between the stages `n` and `n + 1`. With
        several chunks on a stage one more, between the last stage and the first: there a microbatch goes from one chunk
        to the next. In a V it stays on the last stage then.
    """
    parallelism, gpu = config.parallelism, config.gpu
    message = boundary_message(config)
    gather_s = message.gathered_bytes / (gpu.link_gb_per_s * 1e9)
    boundaries = parallelism.pp - (config.chunks == 1 or parallelism.folded)
    return tuple(
        message.sent_bytes / (_gb_per_s(gpu, parallelism, boundary) * 1e9) + gather_s for boundary in range(boundaries)
    )


def _gb_per_s(gpu: Gpu, parallelism: Parallelism, boundary: int) -> float:
    """Bandwidth from one GPU of stage `boundary` to its counterpart on the next one, the slowest pair deciding.

    After the last stage comes the first. Stages take up consecutive ranks (pipeline parallelism is the outermost
    dimension, as in Megatron-LM).
    """
    size = parallelism.gpus_per_stage
    ranks = range(boundary * size, (boundary + 1) * size)
    total = parallelism.gpus
    linked = gpu.linked_gpus(total)
    if any(rank // linked != (rank + size) % total // linked for rank in ranks):
        return gpu.nic_gb_per_s
    return gpu.link_gb_per_s
