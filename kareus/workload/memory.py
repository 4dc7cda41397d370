"""Memory estimate: what the fullest GPU of a pipeline holds at its peak, and whether that fits.

Of model states `kareus.workload.state_memory` has the formulas, of activations `kareus.workload.activation_memory`.
Nanobatching needs the same: its two nanobatches are halves of the microbatch and are both in flight.

How many microbatches (chunks of them, if interleaved) are in flight is the schedule's, in `kareus.workload.pipelining`.
A split backward (`kareus.graph.split_backward`) keeps, from the input gradients of a microbatch to its weight
gradients, the input and the output gradient of every matrix product. The input-gradient pass itself peaks where it
starts, or, where a block keeps less than its weight gradients need, at its last block.

Of NCCL's communicators PyTorch's allocator knows nothing. A communicator has channels, each run by one SM, and every
connection of a channel has buffers. NCCL connects an algorithm when it is first used (`NCCL_RUNTIME_CONNECT`), and
large messages go by rings: a connection from one neighbour and one to the other. What NVLink SHARP takes beside them is
left to the reserve. A communicator that is limited to SMs has as many channels. Software whose plans choose SMs makes
one for each number of SMs and axis (`kareus.model.communicators`); which numbers a plan uses is not known before it is
planned, so all that the search space has are counted. Other trainers make one an axis. Gathers and reductions of
shared-out weights have one for each number of SMs that they are set to, beside that of their group, which sums the
norms of gradients and has NCCL's own channels; one of sums over copies takes the place of its group's.

An all-to-all of tokens connects every pair of its GPUs, where a ring connects neighbours. Experts have groups of their
own for what dense layers do, too: those that split an expert, and those that sum its gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kareus.errors import RefusedWorkloadError
from kareus.gpu_model.network import placement_of
from kareus.graph.number_formats import BF16_BYTES
from kareus.pipeline.transfers import gathered_parts
from kareus.profile.programs import StageShape, laid_out_shapes
from kareus.schedule.config import sm_allocations
from kareus.software.record import Dispatcher
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
    most_blocks,
    offloaded_bytes,
    score_bytes,
)
from kareus.workload.compose import ENGINE
from kareus.workload.config import Workload
from kareus.workload.pipelining import in_flight_and_delayed, most_in_flight, most_received_ahead
from kareus.workload.state_memory import state_bytes

GIB = 2**30
TIGHT = 0.05
"""Share of a GPU's memory about which an estimate may be off: what is so close to the limit is tight, not refused."""
MAY_FIT = f"up to {100 * (1 + TIGHT):g} % may fit, since the estimate may be off by {100 * TIGHT:g} %"
"""Why layouts are not refused whose estimate is above a GPU's memory."""
MIB = 2**20
_GRANULARITY = 2 * MIB
_PROTOCOLS_BYTES = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
"""Buffers of one channel of a connection in NCCL's sources (`src/init.cc`, `src/include/device.h`), unless its
environment says otherwise: the protocols Simple (`NCCL_BUFFSIZE`), LL128 and LL, all with the receiver, together
rounded up to 2 MiB (`src/transport/p2p.cc`); the sender has 2 MiB. Where GPUs read from each other the buffer of Simple
is the sender's, and the sum the same. Logs of NCCL on H100s show these sizes (its issue 1685)."""
RECEIVED_BYTES = -(-_PROTOCOLS_BYTES // _GRANULARITY) * _GRANULARITY
"""Bytes of one channel of a connection on the GPU that receives."""
SENT_BYTES = _GRANULARITY
"""Bytes of one channel of a connection on the GPU that sends."""
RING_BYTES = RECEIVED_BYTES + SENT_BYTES
"""Bytes of one channel of a ring on each of its GPUs."""
MESSAGE_CHANNELS = 8
"""Channels of messages between stages; NCCL's own choice inside a node may be 32, which hold as many SMs while a
receive waits for its sender."""
EXCHANGE_CHANNELS = 32
"""Channels of an all-to-all to each GPU of a node: on eight H100s such logs show 32, and the first all-to-all takes
3.3 GB (NCCL issue 1685). All are connected, however little is sent (`src/enqueue.cc`)."""
DISTANT_CHANNELS = 2
"""The same to each GPU of several nodes: the fewest of any pair count for all (`src/graph/paths.cc`), two over the
network (NCCL issue 1424). ASSUMPTION: in an NVLink domain of several nodes, too. Its pairs may have 32, but 64 GB200s
trained Llama 4 Maverick and gpt-oss where that would take 22 GiB more than there was."""
POOL_BYTES = 2 * EXCHANGE_CHANNELS * 16 * 128 * 2**10
"""Bytes that all connections over the network share, to send and to receive: for each channel 16 pieces of 128 KiB
(`src/transport/net.cc`, `NCCL_P2P_NET_CHUNKSIZE`)."""
DEEPEP_NODE, DEEPEP_LINKED, DEEPEP_DISTANT = 8, 288, 128
"""GPUs of a node as DeepEP has them, and tokens that each of its channels keeps room for: of each GPU of a node, and of
each node both ways. Two SMs run a channel (`deep_ep/buffer.py`, `csrc/config.hpp`). ASSUMPTION: HybridEP's alike."""
DEEPEP_TOKEN_BYTES = 128 * (8 + 4 + 4) + 8
"""Bytes beside the values of such a token: experts and shares of up to 128, as many scales, and where it came from."""
CHOOSES_SMS = frozenset({ENGINE, "megatron-paper"})
"""Software that runs collectives on the SMs of a plan, by a communicator for each number of them."""
SUM_CHANNELS = 1
"""Channels of sums of single numbers."""

RAN_OVER = 0.1
"""Share beyond which no training that ran was estimated: of 884 iterations of public sources 2 were above `TIGHT`, both
by 5.7 % (Llama 3.1 405B; benchmarks of NVIDIA that say no memory)."""


WHO_SAYS_MORE = "; `kareus resolve` with the same words says what would fit"
"""End of a refusal for memory."""


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
    """Buffers of NCCL's communicators, all that the software makes (`communicator_bytes`)."""
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
        lasting_gib = self.states_gib + self.in_flight_gib + self.transfers_gib + self.workspace_gib
        return lasting_gib + max(self.blocks_gib, self.head_gib)

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


@dataclass(frozen=True, slots=True)
class _ChunkMemory:
    """Bytes on one GPU of what blocks of the largest chunk of a stage take, whatever lies outside of them."""

    boundary: int
    """Of hidden states between blocks."""
    kept: int
    """Of each microbatch in flight."""
    delayed: int
    """Of each microbatch that waits for its weight gradients."""
    working: int
    """What a backward recomputes, or works with where it is split."""
    gradients: int
    """Gradients in the backward of a block."""


_ActivationBytes = tuple[int, int, int, int]
"""On one GPU of a stage: of what waits for a backward, messages, and the working sets of blocks and, before, head."""
_LastingBytes = tuple[float, float, float, int]
"""Of weights, gradients, states of the optimizer, and communicators."""


@dataclass(slots=True)
class SharedMemory:
    """What layouts of one training share of their memory, read and extended: most differ in what decides little."""

    chunks: dict[object, _ChunkMemory] = field(default_factory=dict)
    activations: dict[object, dict[int, _ActivationBytes]] = field(default_factory=dict)
    """Of the stages of which one is the fullest, as the next."""
    lasting: dict[object, list[_LastingBytes]] = field(default_factory=dict)


def estimate_memory(workload: Workload, shared: SharedMemory | None = None) -> MemoryEstimate:
    """Estimate the peak of the fullest GPU, over all stages of a workload whose `layers_per_stage` is set.

    `shared` is that of workloads which are the same training on the same GPUs.
    """
    shared, degrees = SharedMemory() if shared is None else shared, workload.parallelism
    shards = degrees.tp, degrees.cp, degrees.ep, degrees.etp, degrees.sequence_parallel
    placed = degrees.pp, degrees.placed, degrees.folded, workload.pipeline.schedule, workload.chunks
    key = *shards, *placed, workload.microbatch_size, workload.num_microbatches, workload.recomputation
    if key not in shared.activations:
        stages = _fullest_stages(workload)
        shared.activations[key] = {stage: _activations(workload, stage, shared) for stage in stages}
    activations = shared.activations[key]
    places = degrees, workload.chunks, tuple(activations)
    if places not in shared.lasting:
        shared.lasting[places] = [_lasting_bytes(workload, stage) for stage in activations]
    estimates = (
        _stage_estimate(workload, stage, of_stage, lasting)
        for (stage, of_stage), lasting in zip(activations.items(), shared.lasting[places], strict=True)
    )
    return max(estimates, key=lambda estimate: estimate.total_gib)


def _fullest_stages(workload: Workload) -> list[int]:
    """Return stages of which one is the fullest: of those that hold the same, the first.

    Later ones have no more in flight (`kareus.workload.pipelining`). Where a backward is split, they have more weight
    gradients delayed, by one for each stage, as what is in flight falls: then the first or the last is the fullest.
    """
    parallelism, shapes, chunks = workload.parallelism, laid_out_shapes(workload), range(workload.chunks)
    alike: dict[tuple[StageShape, ...], list[int]] = {}
    for stage in range(parallelism.pp):
        alike.setdefault(tuple([shapes[stage, chunk] for chunk in chunks]), []).append(stage)
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
    """Return in words that an estimate is about as large as what the GPU has, or larger, or nothing."""
    fit = fit_of(workload, estimate)
    if fit is MemoryFit.REFUSED:
        return f": out of memory, though trainings ran whose estimate was up to {100 * RAN_OVER:g} % too high"
    if fit is MemoryFit.FITS:
        return ""
    return f", tight: within the {100 * TIGHT:g} % that the estimate may be off, so try it before you rely on it"


def may_run(workload: Workload, estimate: MemoryEstimate) -> bool:
    """Whether trainings whose estimate was as much above their GPU's memory ran."""
    return estimate.total_gib <= (1 + RAN_OVER) * workload.gpu.memory_gib


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
            f"but gpu.memory_gib is {limit_gib:.1f}; use smaller ones, or more of parallelism.{degrees}{WHO_SAYS_MORE}."
        )


def stage_memory(workload: Workload, stage: int, shared: SharedMemory | None = None) -> MemoryEstimate:
    """Estimate the peak of one GPU of a stage; see `estimate_memory`."""
    activations = _activations(workload, stage, SharedMemory() if shared is None else shared)
    return _stage_estimate(workload, stage, activations, _lasting_bytes(workload, stage))


def _stage_estimate(
    workload: Workload, stage: int, activations: _ActivationBytes, lasting: _LastingBytes
) -> MemoryEstimate:
    (waiting, messages, blocks, head), (weights, gradients, states, communicators) = activations, lasting
    return MemoryEstimate(
        stage=stage,
        weights_gib=weights / GIB,
        gradients_gib=gradients / GIB,
        optimizer_gib=states / GIB,
        in_flight_gib=waiting / GIB,
        transfers_gib=messages / GIB,
        communicators_gib=communicators / GIB,
        blocks_gib=blocks / GIB,
        head_gib=head / GIB,
        workspace_gib=workload.software.workspace_gib,
        reserve_gib=workload.memory_reserve_gib,
    )


def _activations(workload: Workload, stage: int, shared: SharedMemory) -> _ActivationBytes:
    model, parallelism, tokens = workload.model, workload.parallelism, _tokens(workload)
    chunk = _largest_chunk(workload, stage, shared)
    is_last, passing = stage == parallelism.head_stage, most_received_ahead(workload, stage) + 1
    message = chunk.boundary // gathered_parts(chunk.boundary // BF16_BYTES, parallelism)
    before_norm = chunk.boundary if stage == 0 and model.embedding_norm else 0
    head = head_split_bytes(model, parallelism, tokens) if is_last and workload.split_backward else 0
    waiting = max(
        in_flight * (chunk.kept + before_norm) + delayed * (chunk.delayed + head)
        for in_flight, delayed in in_flight_and_delayed(workload, stage)
    )
    messages, working = passing * message if parallelism.pp > 1 else 0, chunk.working + head + chunk.gradients
    return waiting, messages, working, head_bytes(workload, tokens) if is_last else 0


def _lasting_bytes(workload: Workload, stage: int) -> _LastingBytes:
    weights, gradients, states = state_bytes(workload, stage, workload.parallelism.split[stage])
    mask = mask_bytes(workload) if workload.software.reads_alibi_mask else 0
    return weights + mask, gradients, states, communicator_bytes(workload, stage)


def _tokens(workload: Workload) -> int:
    """Return the tokens of a microbatch on a tensor-parallel group."""
    return workload.microbatch_size * workload.sequence_length // workload.parallelism.cp


def _largest_chunk(workload: Workload, stage: int, shared: SharedMemory) -> _ChunkMemory:
    degrees, blocks, dense = workload.parallelism, most_blocks(workload, stage), least_dense(workload, stage)
    of_layout = degrees.tp, degrees.cp, degrees.ep, degrees.etp, degrees.sequence_parallel
    key = *of_layout, workload.microbatch_size, workload.recomputation, workload.split_backward, blocks, dense
    if key not in shared.chunks:
        shared.chunks[key] = _chunk_memory(workload, blocks, dense)
    return shared.chunks[key]


def _chunk_memory(workload: Workload, blocks: int, dense: int) -> _ChunkMemory:
    """Return what a chunk of so many blocks takes, of which `dense` have no experts where others have them."""
    tokens = _tokens(workload)
    boundary = boundary_bytes(workload.model, workload.parallelism, tokens)
    kept, recomputed = kept_bytes(workload, blocks, tokens, dense)
    on_host, away = offloaded_bytes(workload, blocks, tokens), min(workload.training.offload_blocks, blocks)
    kept_scores, score_gradients = score_bytes(workload)
    working, delayed = recomputed + min(away, 2) * on_host, 0
    if workload.split_backward:
        later = block_split_bytes(workload, tokens)
        delayed = (blocks - dense) * later + dense * block_split_bytes(workload, tokens, dense=True)
        last_block = boundary + block_bytes(workload, tokens) + kept_scores
        working = max(recomputed, (blocks - 1) * later + last_block - kept)
    gradients = max(backward_bytes(workload, tokens), score_gradients)
    return _ChunkMemory(boundary, kept - away * on_host, delayed, working, gradients)


def captured_gib(workload: Workload, stage: int) -> float:
    """Return the peak of one GPU of a stage that launches blocks by CUDA graphs (`kareus.runtime.capturing`), in GiB.

    The pool of the graphs takes what blocks need in an iteration, kept tensors and working set, and gives nothing back:
    the LM head's working set comes on top, where it would else take the place of the blocks'. Hidden states enter
    graphs through a buffer for each microbatch in flight, beside the message that they came with, and two more buffers
    take gradients and results. Where gradients are reduced, the last microbatch of each chunk runs without graphs: what
    it keeps and its working set are outside of the pool. The graphs' own records of their kernels are left to the
    reserve.
    """
    parallelism, tokens = workload.parallelism, _tokens(workload)
    estimate, buffer = stage_memory(workload, stage), boundary_bytes(workload.model, parallelism, tokens)
    extra_gib = min(estimate.blocks_gib, estimate.head_gib) + (most_in_flight(workload, stage) + 2) * buffer / GIB
    if parallelism.dp * parallelism.cp > 1:
        kept, _ = kept_bytes(workload, most_blocks(workload, stage), tokens)
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


def communicator_bytes(workload: Workload, stage: int) -> int:
    """Return what the communicators of one GPU of a stage take at most.

    Args:
        workload: whose search space has the numbers of SMs, where its software chooses any. NCCL's own number of
            channels, which other collectives have, is taken for `testbed.default_collective_sm_count`.
        stage: of the pipeline.
    """
    parallelism, channels_each = workload.parallelism, workload.testbed.default_collective_sm_count
    groups = [size for size in (parallelism.tp, parallelism.cp) if size > 1]
    channels = channels_each * len(groups)
    if workload.software.name in CHOOSES_SMS:
        channels += sum(sum({*sm_allocations(size, workload.space), channels_each}) for size in groups)
    fsdp = parallelism.fsdp
    limited = {fsdp.gather_sms or channels_each, fsdp.reduce_sms or channels_each}
    channels += sum({*limited, channels_each}) * (parallelism.dp > 1)
    channels += (fsdp.copies_sms or channels_each) * (parallelism.copies > 1)
    channels += SUM_CHANNELS * (parallelism.tp > 1)
    if parallelism.pp > 1:
        tied = workload.model.tie_embeddings and parallelism.head_stage > 0
        channels += MESSAGE_CHANNELS + channels_each * (tied and stage in (0, parallelism.head_stage))
    if parallelism.ep * parallelism.etp > 1:
        channels += channels_each * ((parallelism.etp > 1) + (parallelism.ep > 1 < parallelism.expert_replicas))
    return RING_BYTES * channels + _message_bytes(workload, stage) + _exchange_bytes(workload, stage)


def _exchange_bytes(workload: Workload, stage: int) -> int:
    """Return what exchanges of tokens between the GPUs of an expert-parallel group take."""
    parallelism, software, size = workload.parallelism, workload.software, workload.parallelism.ep
    if size == 1:
        return 0
    if software.dispatcher is Dispatcher.FLEX:
        channels = software.exchange_sms(workload.testbed.default_collective_sm_count) // 2
        nodes = size // DEEPEP_NODE if size > DEEPEP_NODE else 0
        tokens = DEEPEP_LINKED * min(size, DEEPEP_NODE) + 2 * DEEPEP_DISTANT * nodes
        return channels * tokens * (BF16_BYTES * workload.model.hidden_size + DEEPEP_TOKEN_BYTES)
    placement = placement_of(parallelism.expert_ranks(stage), workload.gpu.linked_gpus(parallelism.gpus))
    most = EXCHANGE_CHANNELS if size * parallelism.etp <= workload.gpu.gpus_per_node else DISTANT_CHANNELS
    pool_bytes = POOL_BYTES * (placement.nodes > 1)
    limits = sm_allocations(size, workload.space) if software.name in CHOOSES_SMS else ()
    rings = sum(limits)  # which connect a limited communicator when it is made
    channels = sum((most, *(min(limit, most) for limit in limits)))
    return RING_BYTES * ((placement.per_node - 1) * channels + rings) + pool_bytes * (1 + len(limits))


def _message_bytes(workload: Workload, stage: int) -> int:
    """Return what messages take: each way, a connection from the neighbours that send and to those that receive."""
    stages = workload.parallelism.pp
    if stages == 1:
        return 0
    around = workload.chunks > 1 and not workload.parallelism.folded  # the last stage sends to the first one, too
    neighbours = 2 if around else (stage > 0) + (stage < stages - 1)
    return neighbours * MESSAGE_CHANNELS * (RECEIVED_BYTES + SENT_BYTES)
