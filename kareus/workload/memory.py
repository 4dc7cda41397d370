"""Memory estimate: what the fullest GPU of a pipeline holds at its peak, and whether that fits.

Of model states `kareus.workload.state_memory` has the formulas, of activations `kareus.workload.activation_memory`.
Nanobatching needs the same: its two nanobatches are halves of the microbatch and are both in flight.

How many microbatches (chunks of them, if interleaved) are in flight is the schedule's, in `kareus.workload.pipelining`.
A split backward (`kareus.graph.split_backward`) keeps, from the input gradients of a microbatch to its weight
gradients, the input and the output gradient of every matrix product. The input-gradient pass itself peaks where it
starts, or, where a block keeps less than its weight gradients need, at its last block.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kareus.errors import RefusedWorkloadError
from kareus.model.precision import BF16_BYTES
from kareus.pipeline.transfers import gathered_parts
from kareus.workload.activation_memory import (
    backward_bytes,
    block_bytes,
    block_split_bytes,
    boundary_bytes,
    head_bytes,
    head_split_bytes,
    kept_bytes,
    least_dense,
    mask_bytes,
    offloaded_bytes,
    score_bytes,
)
from kareus.workload.communicators import communicator_bytes
from kareus.workload.config import Workload
from kareus.workload.pipelining import in_flight_and_delayed, most_received_ahead
from kareus.workload.state_memory import stage_dense_blocks, state_bytes

GIB = 2**30
TIGHT = 0.05
"""Share of a GPU's memory about which an estimate may be off: what is so close to the limit is tight, not refused."""


class MemoryFit(StrEnum):
    """Whether a workload fits its GPU."""

    FITS = "fits"
    TIGHT = "tight"
    """By less than the estimate may be off, or not by as little."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Peak of one GPU of the stage that holds the most, in parts."""

    stage: int
    weights_gib: float
    """Weights, and the mask of ALiBi, which the engine makes once."""
    gradients_gib: float
    optimizer_gib: float
    """Master weights and both moments; shared out over data-parallel replicas where they are sharded."""
    in_flight_gib: float
    """Tensors that wait for their backward, as many as recomputation leaves; and what waits for its weight gradients,
    where they are computed later."""
    transfers_gib: float
    """Buffers of point-to-point communication: messages received ahead, and one being sent; a GPU's part of a tensor
    that its tensor-parallel group gathers on arrival."""
    communicators_gib: float
    """Buffers of NCCL's communicators, all that a plan may use (`kareus.workload.communicators`)."""
    blocks_gib: float
    """Working set of a backward through the blocks, with what it recomputes."""
    head_gib: float
    """Working set of the LM head and the loss; released before the blocks' backward, so that the larger one counts."""
    workspace_gib: float
    """What the software's allocator holds beside tensors of the model (`software.workspace_gib`)."""
    reserve_gib: float
    """The calibrated reserve: CUDA context, fragmentation, and workspaces of software that has none of its own."""

    @property
    def states_gib(self) -> float:
        """Weights, gradients and states of the optimizer."""
        return self.weights_gib + self.gradients_gib + self.optimizer_gib

    @property
    def allocated_gib(self) -> float:
        """The peak of what PyTorch's allocator hands out, as `torch.cuda.max_memory_allocated` has it."""
        held = self.states_gib + self.in_flight_gib + self.transfers_gib + self.workspace_gib
        return held + max(self.blocks_gib, self.head_gib)

    @property
    def total_gib(self) -> float:
        """The peak, with what the allocator knows nothing of."""
        return self.allocated_gib + self.communicators_gib + self.reserve_gib

    @property
    def parts_gib(self) -> Mapping[str, float]:
        """What the peak is the sum of, by its name for people; of blocks and head the one that counts."""
        head_counts = self.head_gib > self.blocks_gib
        return {
            "weights": self.weights_gib,
            "gradients": self.gradients_gib,
            "optimizer states": self.optimizer_gib,
            "activations": self.in_flight_gib,
            "head and loss" if head_counts else "backward of a block": max(self.blocks_gib, self.head_gib),
            "messages": self.transfers_gib,
            "workspaces": self.workspace_gib,
            "communicators": self.communicators_gib,
            "reserve": self.reserve_gib,
        }


def estimate_memory(workload: Workload) -> MemoryEstimate:
    """Estimate the peak of the fullest GPU, over all stages of a workload whose `layers_per_stage` is set."""
    split = workload.parallelism.split
    estimates = (stage_memory(workload, stage, split[stage]) for stage in _fullest_stages(workload))
    return max(estimates, key=lambda e: e.total_gib)


def _fullest_stages(workload: Workload) -> list[int]:
    """Return stages of which one is the fullest: of those that hold the same, the first.

    Later ones have no more in flight (`kareus.workload.pipelining`). Where a backward is split, they have more weight
    gradients delayed, by one for each stage, as what is in flight falls: then the first or the last is the fullest.
    """
    parallelism = workload.parallelism
    alike: dict[tuple[object, ...], list[int]] = {}
    for stage, layers in enumerate(parallelism.split):
        ends = stage == 0, stage == parallelism.pp - 1
        dense = stage_dense_blocks(workload, stage), least_dense(workload, stage)
        alike.setdefault((layers, *ends, *dense), []).append(stage)
    if not workload.split_backward:
        return [stages[0] for stages in alike.values()]
    if workload.num_microbatches < parallelism.pp or workload.pipeline.schedule.folds:
        return list(range(parallelism.pp))
    return sorted({stage for stages in alike.values() for stage in (stages[0], stages[-1])})


def fit_of(workload: Workload, estimate: MemoryEstimate) -> MemoryFit:
    """Return whether an estimate fits the GPU of its workload."""
    share = estimate.total_gib / workload.gpu.memory_gib
    if share > 1 + TIGHT:
        return MemoryFit.REFUSED
    return MemoryFit.TIGHT if share >= 1 - TIGHT else MemoryFit.FITS


def tightness(workload: Workload, estimate: MemoryEstimate) -> str:
    """Return in words that an estimate is about as large as what the GPU has, or nothing."""
    if fit_of(workload, estimate) is not MemoryFit.TIGHT:
        return ""
    return f", tight: within the {100 * TIGHT:g} % that the estimate may be off, so try it before you rely on it"


def check_memory(workload: Workload, estimate: MemoryEstimate) -> None:
    """Check that `estimate` fits the GPU.

    Raises:
        RefusedWorkloadError: it does not; the message has both sizes, the largest parts and what would help.
    """
    limit_gib = workload.gpu.memory_gib
    if fit_of(workload, estimate) is MemoryFit.REFUSED:
        states, degrees = estimate.states_gib, "tp, cp or pp"
        if workload.model.experts is not None:
            degrees = "ep, tp, cp or pp"
        activations = estimate.in_flight_gib + max(estimate.blocks_gib, estimate.head_gib)
        raise RefusedWorkloadError(
            f"microbatch_size={workload.microbatch_size}, sequence_length={workload.sequence_length}: out of memory, "
            f"needs {estimate.total_gib:.1f} GiB on stage {estimate.stage} (model states {states:.1f}, activations "
            f"{activations:.1f}, communicators {estimate.communicators_gib:.1f}, reserve {estimate.reserve_gib:.1f}) "
            f"but gpu.memory_gib is {limit_gib:.1f}; use smaller ones, or more of parallelism.{degrees}."
        )


def stage_memory(workload: Workload, stage: int, layers: int) -> MemoryEstimate:
    """Estimate the peak of one GPU of a stage, which holds `layers` blocks; see `estimate_memory`."""
    mask = mask_bytes(workload) if workload.software.reads_alibi_mask else 0
    model, parallelism = workload.model, workload.parallelism
    tokens = workload.microbatch_size * workload.sequence_length // parallelism.cp
    boundary = boundary_bytes(model, parallelism, tokens)
    piece = -(-layers // workload.chunks)
    kept, recomputed = kept_bytes(workload, piece, tokens, least_dense(workload, stage))
    on_host, away = offloaded_bytes(workload, piece, tokens), min(workload.training.offload_blocks, piece)
    kept_scores, score_gradients = score_bytes(workload)
    is_last, passing = stage == parallelism.head_stage, most_received_ahead(workload, stage) + 1
    message = boundary // gathered_parts(boundary // BF16_BYTES, parallelism)
    before_norm = boundary if stage == 0 and model.embedding_norm else 0
    working, delayed_bytes = recomputed + min(away, 2) * on_host, 0
    if workload.split_backward:
        head = head_split_bytes(model, parallelism, tokens) if is_last else 0
        later = block_split_bytes(model, parallelism, tokens)
        delayed_bytes = piece * later + head
        last_block = boundary + block_bytes(workload, tokens) + kept_scores
        working = max(recomputed, (piece - 1) * later + last_block - kept) + head
    waiting = max(
        in_flight * (kept + before_norm - away * on_host) + delayed * delayed_bytes
        for in_flight, delayed in in_flight_and_delayed(workload, stage)
    )
    weights, gradients, states = state_bytes(workload, stage, layers)
    return MemoryEstimate(
        stage=stage,
        weights_gib=(weights + mask) / GIB,
        gradients_gib=gradients / GIB,
        optimizer_gib=states / GIB,
        in_flight_gib=waiting / GIB,
        transfers_gib=(passing * message if parallelism.pp > 1 else 0) / GIB,
        communicators_gib=communicator_bytes(workload, stage) / GIB,
        blocks_gib=(working + max(backward_bytes(workload, tokens), score_gradients)) / GIB,
        head_gib=(head_bytes(workload, tokens) if is_last else 0) / GIB,
        workspace_gib=workload.software.workspace_gib,
        reserve_gib=workload.memory_reserve_gib,
    )
