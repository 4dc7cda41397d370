"""Memory of activations on one GPU: what blocks, head and loss keep for their backward, and work with in it.

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

Options of a training (`kareus.model.training_options`): blocks that are not recomputed keep all; what a module that
runs again gives is there for one block at a time; a product whose weights are frozen needs its input only for an
adapter; of blocks that wait on the host two are on the GPU, on the way out and on the way back.
"""

from kareus.graph.number_formats import BF16_BYTES, FORMATS, FP32_BYTES
from kareus.graph.recomputation import Recomputation, recomputed_blocks
from kareus.model.config import Model, PositionKind
from kareus.model.features import NormPlacement
from kareus.model.low_rank import adapters
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import RecomputedModule
from kareus.partition.experts import routed_sizes
from kareus.profile.programs import laid_out_shapes
from kareus.software.kernels import MASK_BYTES
from kareus.workload.compose import ENGINE
from kareus.workload.config import Workload


def least_dense(workload: Workload, stage: int) -> int:
    """Return the blocks without experts of the chunk of a stage that has fewest of them, and so keeps most."""
    if not workload.model.dense_layers:
        return 0
    shapes = laid_out_shapes(workload)
    return min(shapes[stage, chunk].dense for chunk in range(workload.chunks))


def most_blocks(workload: Workload, stage: int) -> int:
    """Return the blocks of the largest chunk of a stage."""
    shapes = laid_out_shapes(workload)
    return max(shapes[stage, chunk].layers for chunk in range(workload.chunks))


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
    options, again = workload.training, recomputed_module_bytes(workload, tokens)
    chosen = sum(recomputed_blocks(layers, options.recompute_every, options.recompute_blocks))
    match workload.recomputation:
        case Recomputation.NONE:
            return layers * (boundary + block) - less, again
        case Recomputation.SELECTIVE:
            attended = attended_bytes(workload, tokens) + scores
            return layers * (boundary + block) - chosen * attended - less, attended + again
        case Recomputation.FULL:
            keeping = (layers - chosen) * block - (less if chosen < layers else 0)
            return layers * boundary + max(keeping, 0), (block if chosen else 0) + again
        case Recomputation.STAGE:
            return boundary, layers * (boundary + block) - less + again


def block_bytes(workload: Workload, tokens: int, *, dense: bool = False) -> int:
    """Bytes that one block of a software keeps for its backward on one GPU, its input and scores apart.

    `dense` asks for a block of a mixture of experts that has none.

    What fused kernels keep, times the software's excess; with dropout of the stream a mask of a byte for each value
    that attention and MLP add (Korthikanti et al., 2022, section 4.1: 2 s b h of 34).
    """
    model, parallelism, software = workload.model, workload.parallelism, workload.software
    fused = block_activation_bytes(model, parallelism, tokens)
    fused += _cast_activation_bytes(workload, tokens, dense=dense or model.experts is None)
    fused -= frozen_input_bytes(workload, tokens) + recomputed_module_bytes(workload, tokens, dense=dense)
    if model.experts is not None and not dense:
        fused += expert_activation_bytes(workload, tokens) - mlp_activation_bytes(model, parallelism, tokens)
    fused += _filled_bytes(workload, tokens)
    masks = 2 * MASK_BYTES * tokens * model.hidden_size // parallelism.token_shards if software.stream_dropout else 0
    return round(software.kept_excess * fused) + masks


def offloaded_bytes(workload: Workload, layers: int, tokens: int) -> int:
    """Bytes of what each of the blocks keeps of a microbatch that waits on the host, the block's input with it."""
    if not workload.training.offload_blocks:
        return 0
    return kept_bytes(workload, layers, tokens)[0] // layers


def _input_bytes(workload: Workload, values: int) -> int:
    """Bytes of the input of a product as its weight gradient takes it."""
    number_format = FORMATS[workload.precision]
    return round((number_format.value_bytes if number_format.is_cast else BF16_BYTES) * values)


def frozen_input_bytes(workload: Workload, tokens: int) -> int:
    """Bytes that one block keeps less than where all weights are trained, with what its adapters keep.

    The input of a product is kept for the gradient of its weights or of an adapter beside it: what norms and the
    activation give. The output of attention is kept in any case, for its own gradient; cast, for a product's alone. An
    adapter keeps the output of its first product.
    """
    model, parallelism, options = workload.model, workload.parallelism, workload.training
    if not options.trains_adapters:
        return 0
    beside = adapters(model, parallelism, options)
    hidden = tokens * model.hidden_size // parallelism.token_shards
    inputs = {"qkv": hidden, "gate_up": hidden, "down": tokens * (model.intermediate_size // parallelism.tp)}
    if FORMATS[workload.precision].is_cast:
        inputs["projection"] = tokens * (model.attended_width // parallelism.tp)
    needed = {adapter.operator for adapter in beside}
    unneeded = sum(values for operator, values in inputs.items() if operator not in needed)
    return _input_bytes(workload, unneeded) - BF16_BYTES * tokens * options.lora_rank * len(beside)


def recomputed_module_bytes(workload: Workload, tokens: int, *, dense: bool = False) -> int:
    """Bytes that one block does not keep since a module of it runs again (`training.recompute_modules`)."""
    model, parallelism, modules = workload.model, workload.parallelism, workload.training.recompute_modules
    if not modules:
        return 0
    has_mlp = dense or model.experts is None
    norms = min(model.block_norms, 2) if RecomputedModule.LAYER_NORM in modules else 0
    again = 0
    if RecomputedModule.MLP in modules and has_mlp:
        norms = max(norms, 1)
        again += mlp_activation_bytes(model, parallelism, tokens)
        again += _cast_activation_bytes(workload, tokens, dense=True)
        again -= _cast_activation_bytes(workload, tokens, dense=False)
    if RecomputedModule.MLA_UP_PROJECTION in modules and model.latent_attention is not None:
        values = model.num_key_value_heads * model.value_head_dim
        again += BF16_BYTES * tokens * ((model.query_width + model.key_value_width + values) // parallelism.tp)
    if not has_mlp and RecomputedModule.MOE in modules:
        again += expert_activation_bytes(workload, tokens)
    elif not has_mlp and RecomputedModule.MOE_ACTIVATION in modules:
        routed = routed_sizes(model, parallelism, tokens // parallelism.token_shards, workload.software)
        again += BF16_BYTES * routed.rows * routed.width
    return again + _input_bytes(workload, norms * tokens * model.hidden_size // parallelism.token_shards)


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


def attended_bytes(workload: Workload, tokens: int) -> int:
    """Bytes of the output of attention on one GPU; of values that are filled up before what is filled is cut off."""
    model = workload.model
    width = model.query_width if _fills_values(workload) else model.attended_width
    return BF16_BYTES * tokens * width // workload.parallelism.tp


def _fills_values(workload: Workload) -> bool:
    """Whether values narrower than keys are filled up for the kernel of attention (`kareus.model.latent`)."""
    return workload.software.name == ENGINE and workload.model.value_head_dim < workload.model.head_dim


def _filled_bytes(workload: Workload, tokens: int) -> int:
    """Bytes that a block keeps in the engine beside those of other software.

    Values are filled up, so that there are the filling and the output of attention beside what is cut; and with
    sequence parallelism every GPU has the latent vectors of all tokens.
    """
    model, layout = workload.model, workload.parallelism
    if workload.software.name != ENGINE:
        return 0
    filled = (2 * model.query_width - model.attended_width) // layout.tp if _fills_values(workload) else 0
    latents = kept_latents(model)
    return BF16_BYTES * tokens * (filled + latents - latents // layout.token_shards)


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
    clamped = routed.inner if routed.adds_biases else 0
    copies = BF16_BYTES * routed.rows * (routed.hidden + routed.inner + clamped + routed.width)
    scores = 2 * FP32_BYTES * routed.tokens * experts.count
    shared = model.gated_width(experts.shared_width) + experts.shared_width
    return copies + scores + BF16_BYTES * tokens * shared // parallelism.tp


def kept_streams(model: Model) -> int:
    """Return how many tensors of the hidden size one block keeps for its backward, beside its input.

    With norms before attention and MLP these are the outputs of the norms, and the sum after attention; with norms
    after them, the inputs of the norms, and that sum; with both, all five. Where attention and MLP are side by side,
    both norms read the block's input, so that only their two outputs are kept.
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
    shard = model.hidden_size // shards if shards > 1 else 0
    shard += model.hidden_size // shards if model.branches.parallel else 0
    return BF16_BYTES * tokens * (2 * model.hidden_size + shard + sharded // parallelism.tp)


def backward_bytes(workload: Workload, tokens: int) -> int:
    """Bytes as of `block_backward_bytes`; experts hold the gradients of the copies that they got and gave."""
    model, parallelism = workload.model, workload.parallelism
    dense = block_backward_bytes(model, parallelism, tokens)
    if model.experts is None:
        return dense
    routed = routed_sizes(model, parallelism, tokens // parallelism.token_shards, workload.software)
    values = 2 * routed.rows * routed.hidden + routed.rows * (routed.inner + routed.width)
    return dense + BF16_BYTES * values - mlp_activation_bytes(model, parallelism, tokens)


def block_split_bytes(workload: Workload, tokens: int, *, dense: bool = False) -> int:
    """Bytes that one block keeps for its weight gradients on one GPU: of every product its input and output gradient.

    Inputs: both norms' outputs whole; the outputs of attention and of the activation sharded. Output gradients: those
    of the projection and of the block whole; those of queries, keys and values and of the activation's input (SwiGLU's
    two) sharded. Latent vectors are inputs and outputs of products, too. Experts have those of their copies of tokens
    in the place of the MLP's.

    Args:
        workload: with a backward in two passes.
        tokens: of a microbatch on the GPU's tensor-parallel group.
        dense: whether the block has no experts where others have.
    """
    model, parallelism, latent = workload.model, workload.parallelism, workload.model.latent_attention
    keys = 2 * model.key_value_width
    if latent is not None:
        keys = model.num_attention_heads * (model.head_dim - latent.rotary_dim + latent.value_dim)
    sharded, routed = model.attended_width + model.query_width + keys, 0
    if model.experts is None or dense:
        sharded += model.intermediate_size + model.mlp_input_width
    else:
        shared = model.experts.shared_width
        sharded += shared + model.gated_width(shared)
        sizes = routed_sizes(model, parallelism, tokens // parallelism.token_shards, workload.software)
        routed = sizes.rows * (2 * sizes.hidden + sizes.inner + sizes.width) + sizes.tokens * model.experts.count
    whole = 4 * model.hidden_size + kept_latents(model)
    return BF16_BYTES * (tokens * (whole + sharded // parallelism.tp) + routed)


def head_split_bytes(model: Model, parallelism: Parallelism, tokens: int) -> int:
    """Bytes that the LM head keeps for its weight gradients on one GPU: its input and the gradient of the logits."""
    return BF16_BYTES * tokens * (model.hidden_size + model.vocab_size // parallelism.tp)


def head_bytes(workload: Workload, tokens: int) -> int:
    """Bytes of logits, and of the final norm's output and its gradient, on one GPU of the last stage.

    With several microbatches, what the software keeps of the former one's logits comes on top. Of a loss in chunks
    there are the logits of one chunk at a time. Blocks that predict further tokens keep what a block does, and of their
    own logits what the loss keeps, until the head's backward (Megatron Core, `GPTModel.forward`).
    """
    model, software = workload.model, workload.software
    former = software.former_logit_bytes if workload.num_microbatches > 1 else 0
    logits = (software.loss_kernels.logit_bytes + former) * model.vocab_size // workload.parallelism.tp
    logits = -(-logits // workload.training.loss_chunks)
    return tokens * (logits + 2 * BF16_BYTES * model.hidden_size) + model.mtp_layers * _mtp_bytes(workload, tokens)


def _mtp_bytes(workload: Workload, tokens: int) -> int:
    """Bytes that a block which predicts further tokens keeps on one GPU.

    Beside what a block does: both inputs of its norms and what these give, the projection's output, its input, what it
    gives, and what the loss keeps. Where blocks are recomputed, what enters it, what it gives and the logits: it runs
    again when the logits are gone, as a block of the stage does.
    """
    model, parallelism = workload.model, workload.parallelism
    scores, _ = score_bytes(workload)
    kept = workload.software.loss_kernels.kept_bytes
    logits = -(-kept * tokens * model.vocab_size // (parallelism.tp * workload.training.loss_chunks))
    boundary = boundary_bytes(model, parallelism, tokens)
    if workload.recomputation.repeats_blocks:
        return 3 * boundary + logits
    block = block_bytes(workload, tokens, dense=model.experts is not None and model.mtp_is_dense) + scores
    if workload.recomputation is Recomputation.SELECTIVE:
        block -= attended_bytes(workload, tokens) + scores
    return block + 6 * boundary + logits
