"""Memory estimate: what the fullest GPU of a pipeline holds at its peak, and whether that fits.

Mixed precision as in Megatron-LM: bf16 weights and activations, fp32 gradients, fp32 master weights and Adam moments.
Fused kernels: a norm keeps its input, attention its inputs and output, an activation its input (SwiGLU's is two). Where
attention is not fused, scores of all pairs of tokens come on top; recomputation `selective` does not keep them.

Without sequence parallelism, tensors of the hidden size are whole on every GPU of a tensor-parallel group. With it a
GPU keeps its tokens of them alone: of what a norm gives to a matrix product too, which is gathered once more for its
weight gradient. Whole are what is gathered for one sublayer at a time, what a split backward keeps for its weight
gradients, which have no collectives, and the input of the LM head, small beside the logits.

What a stage keeps for each microbatch in flight depends on the recomputation: with `none` all that its blocks keep for
their backward; with `selective` all but the output of attention, which the backward holds for one block at a time; with
`full` the input of every block, and the backward all that one block keeps; with `stage` the input of the stage, and the
backward ("a recomputed forward plus a backward") all that its blocks keep. That `stage` is what the paper ran, its
out-of-memory rows (table 3) confirm: any reserve from 0.8 to 5.6 GiB separates the rows that ran from those that did
not; by `full` none does, and the paper's 70B pipeline would not fit.

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
from kareus.graph.number_formats import FORMATS
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Scope
from kareus.model.config import Model, Parallelism, PositionKind, Sharding
from kareus.model.features import NormPlacement
from kareus.model.parameters import expert_parameters, scope_parameters
from kareus.model.precision import ADAMW_BYTES, BF16_BYTES, FP32_BYTES
from kareus.partition.experts import routed_sizes
from kareus.pipeline.transfers import gathered_parts
from kareus.profile.programs import laid_out_shapes
from kareus.software.kernels import MASK_BYTES
from kareus.workload.communicators import communicator_bytes
from kareus.workload.config import Workload
from kareus.workload.pipelining import in_flight_and_delayed, most_received_ahead

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
    stages = enumerate(workload.parallelism.split)
    return max((stage_memory(workload, n, layers) for n, layers in stages), key=lambda e: e.total_gib)


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
    kept_scores, score_gradients = score_bytes(workload)
    is_last, passing = stage == parallelism.head_stage, most_received_ahead(workload, stage) + 1
    message = boundary // gathered_parts(boundary // BF16_BYTES, parallelism)
    before_norm = boundary if stage == 0 and model.embedding_norm else 0
    working, delayed_bytes = recomputed, 0
    if workload.split_backward:
        head = head_split_bytes(model, parallelism, tokens) if is_last else 0
        later = block_split_bytes(model, parallelism, tokens)
        delayed_bytes = piece * later + head
        last_block = boundary + block_bytes(workload, tokens) + kept_scores
        working = max(recomputed, (piece - 1) * later + last_block - kept) + head
    waiting = max(
        in_flight * (kept + before_norm) + delayed * delayed_bytes
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
        blocks_gib=(working + max(_backward_bytes(workload, tokens), score_gradients)) / GIB,
        head_gib=(head_bytes(workload, tokens) if is_last else 0) / GIB,
        workspace_gib=workload.software.workspace_gib,
        reserve_gib=workload.memory_reserve_gib,
    )


def least_dense(workload: Workload, stage: int) -> int:
    """Return the blocks without experts of the chunk of a stage that has fewest of them, and so keeps most."""
    if not workload.model.dense_layers:
        return 0
    shapes = laid_out_shapes(workload)
    return min(shapes[stage, chunk].dense for chunk in range(workload.chunks))


def kept_bytes(workload: Workload, layers: int, tokens: int, dense: int = 0) -> tuple[int, int]:
    """Bytes on one GPU that `layers` blocks keep of a microbatch until its backward, and that its backward recomputes.

    With full recomputation a block's input is kept; what it recomputes is one block's at a time.
    `dense` of the blocks have no experts where others of the model do.
    """
    model, parallelism = workload.model, workload.parallelism
    boundary = boundary_bytes(model, parallelism, tokens)
    scores, _ = score_bytes(workload)
    block = block_bytes(workload, tokens) + scores
    less = dense * (block - scores - block_bytes(workload, tokens, dense=True)) if dense else 0
    match workload.recomputation:
        case Recomputation.NONE:
            return layers * (boundary + block) - less, 0
        case Recomputation.SELECTIVE:
            attended = attended_bytes(model, parallelism, tokens) + scores
            return layers * (boundary + block - attended) - less, attended
        case Recomputation.FULL:
            return layers * boundary, block
        case Recomputation.STAGE:
            return boundary, layers * (boundary + block) - less


def block_bytes(workload: Workload, tokens: int, *, dense: bool = False) -> int:
    """Bytes that one block of a software keeps for its backward on one GPU, its input and scores apart.

    `dense` asks for a block of a mixture of experts that has none.

    What fused kernels keep, times the software's excess; with dropout of the stream a mask of a byte for each value
    that attention and MLP add (Korthikanti et al., 2022, section 4.1: 2 s b h of 34).
    """
    model, parallelism, software = workload.model, workload.parallelism, workload.software
    fused = block_activation_bytes(model, parallelism, tokens)
    fused += _cast_activation_bytes(workload, tokens, dense=dense or model.experts is None)
    if model.experts is not None and not dense:
        fused += expert_activation_bytes(workload, tokens) - mlp_activation_bytes(model, parallelism, tokens)
    masks = 2 * MASK_BYTES * tokens * model.hidden_size // parallelism.token_shards if software.stream_dropout else 0
    return round(software.kept_excess * fused) + masks


def _cast_activation_bytes(workload: Workload, tokens: int, *, dense: bool) -> int:
    """Bytes that a block keeps more, or less, where products take fewer bits: not measured, as Transformer Engine does.

    What norms and the activation give is kept as the weight gradients take it, and not in 16 bits; of the output of
    attention both are, since its own gradient needs it. What experts keep is taken to be as in 16 bits.
    """
    model, parallelism, number_format = workload.model, workload.parallelism, FORMATS[workload.precision]
    if not number_format.is_cast:
        return 0
    norms = 2 * model.hidden_size // parallelism.token_shards
    value_bytes = number_format.value_bytes
    width = model.intermediate_size // parallelism.tp if dense else 0
    less = (BF16_BYTES - value_bytes) * (norms + width)
    return round(tokens * (value_bytes * (model.query_width // parallelism.tp) - less))


def boundary_bytes(model: Model, parallelism: Parallelism, tokens: int) -> int:
    """Bytes of hidden states between blocks on one GPU."""
    return BF16_BYTES * tokens * model.hidden_size // parallelism.token_shards


def attended_bytes(model: Model, parallelism: Parallelism, tokens: int) -> int:
    """Bytes of the output of attention on one GPU."""
    return BF16_BYTES * tokens * model.attended_width // parallelism.tp


def state_bytes(workload: Workload, stage: int, layers: int) -> tuple[float, float, float]:
    """Bytes of weights, gradients and states of the optimizer on one GPU of a stage.

    Weights of blocks that products take in fewer bits are kept cast and transposed beside those in 16 bits.
    What is sharded is divided by the replicas. Where gradients are, the fp32 shards of the weights are the master
    weights, which count among the states; weights and gradients that are whole for a while: see `_whole_bytes`.
    """
    model, parallelism, software = workload.model, workload.parallelism, workload.software
    dense = stage_dense_blocks(workload, stage)
    parameters = stage_parameters(model, parallelism, stage, layers, dense)
    experts = (layers - dense) * expert_parameters(model, parallelism)
    weights, gradients = float(BF16_BYTES * parameters), float(software.gradient_bytes * parameters)
    number_format = FORMATS[workload.precision]
    of_blocks = parameters - stage_parameters(model, parallelism, stage, 0, 0)
    cast = 2 * number_format.value_bytes * of_blocks
    sharing = len(parallelism.sharing_ranks(stage, over_context=software.shares_over_context))
    whole = parallelism.sharding is Sharding.NONE
    states = ADAMW_BYTES * (parameters - experts) / (1 if whole else sharing)
    states += ADAMW_BYTES * experts / (1 if whole else parallelism.expert_replicas)
    if parallelism.shards_gradients:
        weights, unreduced = _whole_bytes(workload, stage, layers)
        gradients = gradients / sharing + unreduced
    return weights + (cast if number_format.is_cast else 0), gradients, states


def _whole_bytes(workload: Workload, stage: int, layers: int) -> tuple[int, int]:
    """Bytes of gathered bf16 weights, and the most of gradients beside them that are not reduced yet.

    Gathered are, with sharded weights, two blocks, the one that runs and the next, and embedding and head; with sharded
    gradients alone all. In the backward of a block, that of the block before is being reduced (fp32 buffers of both),
    and the head's gradient waits in bf16 for that of the embedding, with which it is reduced. Then embedding and head
    have their turn: their bf16 gradients, and the same in fp32 as they are computed, one after the other, and reduced,
    when what was gathered of sharded weights is given back.
    """
    model, parallelism = workload.model, workload.parallelism
    parts = scope_parameters(model, parallelism)
    is_first, is_last = stage == 0, stage == parallelism.head_stage
    block, embedding = parts[Scope.BLOCK], is_first * parts[Scope.EMBEDDING]
    outer = embedding + is_last * parts[Scope.HEAD]
    head = outer if is_first and is_last and model.tie_embeddings else outer - embedding
    gathered = BF16_BYTES * (min(layers, 2) * block + outer)
    given_back = gathered if parallelism.shards_weights else 0
    blocks_given_back = given_back - BF16_BYTES * outer if given_back else 0
    both = BF16_BYTES + FP32_BYTES
    gradients = max(
        2 * FP32_BYTES * block + BF16_BYTES * head,
        both * head - blocks_given_back,
        both * embedding + BF16_BYTES * head + FP32_BYTES * block - blocks_given_back,
        both * outer - given_back,
    )
    everything = BF16_BYTES * (layers * block + outer)
    return gathered if parallelism.shards_weights else everything, gradients


def stage_dense_blocks(workload: Workload, stage: int) -> int:
    """Blocks of a stage that have no experts where others of the model do."""
    if not workload.model.dense_layers:
        return 0
    shapes = laid_out_shapes(workload)
    return sum(shapes[stage, chunk].dense for chunk in range(workload.chunks))


def stage_parameters(model: Model, parallelism: Parallelism, stage: int, layers: int, dense: int = 0) -> int:
    """Parameters on one GPU of a stage. A tied embedding is on the first stage and, as the LM head, on the head's.

    `dense` of the blocks have no experts where others of the model do.
    """
    parts = scope_parameters(model, parallelism)
    outer = (stage == 0) * parts[Scope.EMBEDDING] + (stage == parallelism.head_stage) * parts[Scope.HEAD]
    return (layers - dense) * parts[Scope.BLOCK] + dense * parts.get(Scope.DENSE_BLOCK, 0) + outer


def block_activation_bytes(model: Model, parallelism: Parallelism, tokens: int) -> int:
    """Bytes that one block keeps for its backward on one GPU, its input apart.

    Whole, or a GPU's tokens with sequence parallelism: those of `kept_streams`. Sharded:
    queries, keys and values (with norms on queries and keys, also from before them), the output of attention, and
    the activation's input (SwiGLU's two) and output. Scores of attention that is not fused are apart (`score_bytes`).
    """
    query, key_value = model.query_width, model.key_value_width
    before_norm = query + key_value if model.qk_norm else 0
    values = model.num_key_value_heads * model.value_head_dim
    attended = query + key_value + values + model.attended_width + before_norm
    sharded = attended + model.mlp_input_width + model.intermediate_size
    whole = kept_streams(model) * model.hidden_size + kept_latents(model)
    return BF16_BYTES * tokens * (whole // parallelism.token_shards + sharded // parallelism.tp)


def kept_latents(model: Model) -> int:
    """Values of a token's latent vectors that are kept: before their norms and after, and the keys' that rotate."""
    latent = model.latent_attention
    if latent is None:
        return 0
    return 2 * ((latent.query_rank or 0) + latent.key_value_rank) + latent.rotary_dim


def mlp_activation_bytes(model: Model, parallelism: Parallelism, tokens: int) -> int:
    """Bytes of those that are the MLP's."""
    return BF16_BYTES * tokens * ((model.mlp_input_width + model.intermediate_size) // parallelism.tp)


def expert_activation_bytes(workload: Workload, tokens: int) -> int:
    """Bytes that experts keep for their backward on one GPU in the place of an MLP.

    Of each copy of a token on the fullest GPU, the input of the first product, and input and output of the activation;
    of each token the scores of all experts and their shares, in 32 bits; and what a shared expert keeps as an MLP does.
    """
    model, parallelism = workload.model, workload.parallelism
    experts = model.experts
    assert experts is not None
    routed = routed_sizes(model, parallelism, tokens // parallelism.token_shards, workload.software)
    copies = BF16_BYTES * routed.rows * (routed.hidden + routed.inner + routed.width)
    scores = 2 * FP32_BYTES * routed.tokens * experts.count
    shared = model.gated_width(experts.shared_width) + experts.shared_width
    return copies + scores + BF16_BYTES * tokens * shared // parallelism.tp


def kept_streams(model: Model) -> int:
    """Tensors of the hidden size that one block keeps for its backward, its input apart.

    Norms before attention and MLP: what they give, and the sum after attention. Norms after them: their inputs, and
    that sum. Norms around them: all of these. Side by side, both norms have the block's input, so what they give.
    """
    if model.branches.parallel:
        return 2
    return 5 if model.norm_placement is NormPlacement.AROUND else 3


def score_bytes(workload: Workload) -> tuple[int, int]:
    """Bytes on one GPU of what has a value for each pair of tokens: kept by one block, and gradients in its backward.

    Kept are the probabilities, and with dropout also what is left of them and a mask of a byte each (Korthikanti et
    al., 2022, section 4.1: 5 a s^2 b); the gradients are those of probabilities and scores.
    """
    if workload.software.fused_attention:
        return 0, 0
    heads = workload.model.num_attention_heads // workload.parallelism.tp
    pairs = workload.microbatch_size * heads * workload.sequence_length**2
    kept = 2 * BF16_BYTES + MASK_BYTES if workload.software.attention_dropout else BF16_BYTES
    return kept * pairs, 2 * BF16_BYTES * pairs


def mask_bytes(workload: Workload) -> int:
    """Bytes on one GPU of the engine's masks for ALiBi, one value for each of its heads, queries and keys before them.

    With context parallelism a rank has two chunks of the sequence, of 2 cp, and a mask for each, which ends with the
    chunk; the keys of both together are 2 cp + 1 chunks on every rank (`kareus.model.attention.chunks`). Rows are as
    long as a multiple of 16 values, which is left out here.
    """
    if workload.model.positions is not PositionKind.ALIBI:
        return 0
    parallelism, heads = workload.parallelism, workload.model.num_attention_heads // workload.parallelism.tp
    if parallelism.cp == 1:
        return BF16_BYTES * heads * workload.sequence_length**2
    chunk = workload.sequence_length // (2 * parallelism.cp)
    return BF16_BYTES * heads * chunk**2 * (2 * parallelism.cp + 1)


def block_backward_bytes(model: Model, parallelism: Parallelism, tokens: int) -> int:
    """Bytes of gradients that the backward of one block holds at once on one GPU, those of scores apart.

    Whole: those of the block's output and of the norm's output. Sharded: those of the activation's input (SwiGLU's two)
    and output. With context parallelism, also the gathered keys and values (their gradients come when those of the MLP
    are gone). With sequence parallelism whole are the gathered input of a product and its gradient, and this GPU's
    tokens of the gradient of the block's output come on top. So does, where attention and MLP are side by side, the
    gradient of what enters both.
    """
    gathered = 2 * model.key_value_width * parallelism.cp if parallelism.cp > 1 else 0
    sharded = model.mlp_input_width + model.intermediate_size + gathered
    shards = parallelism.token_shards
    own = model.hidden_size // shards if shards > 1 else 0
    own += model.hidden_size // shards if model.branches.parallel else 0
    return BF16_BYTES * tokens * (2 * model.hidden_size + own + sharded // parallelism.tp)


def _backward_bytes(workload: Workload, tokens: int) -> int:
    """Bytes as of `block_backward_bytes`; experts hold the gradients of the copies that they got and gave."""
    model, parallelism = workload.model, workload.parallelism
    dense = block_backward_bytes(model, parallelism, tokens)
    if model.experts is None:
        return dense
    routed = routed_sizes(model, parallelism, tokens // parallelism.token_shards, workload.software)
    values = 2 * routed.rows * routed.hidden + routed.rows * (routed.inner + routed.width)
    return dense + BF16_BYTES * values - mlp_activation_bytes(model, parallelism, tokens)


def block_split_bytes(model: Model, parallelism: Parallelism, tokens: int) -> int:
    """Bytes that one block keeps for its weight gradients on one GPU: of every product its input and output gradient.

    Inputs: both norms' outputs whole; the outputs of attention and of the activation sharded. Output gradients: those
    of the projection and of the block whole; those of queries, keys and values and of the activation's input (SwiGLU's
    two) sharded.
    """
    query, key_value = model.query_width, model.key_value_width
    sharded = query + model.intermediate_size + query + 2 * key_value + model.mlp_input_width
    return BF16_BYTES * tokens * (4 * model.hidden_size + sharded // parallelism.tp)


def head_split_bytes(model: Model, parallelism: Parallelism, tokens: int) -> int:
    """Bytes that the LM head keeps for its weight gradients on one GPU: its input and the gradient of the logits."""
    return BF16_BYTES * tokens * (model.hidden_size + model.vocab_size // parallelism.tp)


def head_bytes(workload: Workload, tokens: int) -> int:
    """Bytes of logits, and of the final norm's output and its gradient, on one GPU of the last stage.

    With several microbatches, what the software keeps of the former one's logits comes on top.
    """
    model, software = workload.model, workload.software
    former = software.former_logit_bytes if workload.num_microbatches > 1 else 0
    logits = (software.logit_bytes + former) * model.vocab_size // workload.parallelism.tp
    return tokens * (logits + 2 * BF16_BYTES * model.hidden_size)
