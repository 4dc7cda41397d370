"""Parameters that one GPU holds of each part of a model."""

from collections.abc import Mapping
from dataclasses import replace

from kareus.graph.number_formats import BF16_BYTES
from kareus.graph.records import Scope
from kareus.model.config import Model
from kareus.model.experts import Experts
from kareus.model.low_rank import adapters
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.training_options import PLAIN, TrainingOptions


def scope_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, int]:
    """Return the parameters on one GPU of one block, of the embedding, and of the final norm with the LM head.

    Blocks of a mixture of experts that have none are `Scope.DENSE_BLOCK`, where there are any. A tied LM head counts as
    one of its own; on the same stage as the embedding it is none. Beside it are the blocks that predict further tokens,
    with the embedding once more where that is on another stage (Megatron Core). Norms, routers, learned positions and
    the biases of what is summed over the tensor-parallel group are whole on every GPU; norms of single heads are where
    these heads are.
    """
    table = embedding_parameters(model, parallelism)
    shares = model.tie_embeddings and parallelism.head_stage == 0
    head_bias = model.vocab_size // parallelism.tp if model.head_bias else 0
    parts = {
        Scope.BLOCK: _block_parameters(model, parallelism, model.experts),
        Scope.EMBEDDING: table + _beside_table(model),
        Scope.HEAD: model.norm_parameters + head_bias + (0 if shares else table) + mtp_parameters(model, parallelism),
    }
    if model.dense_layers:
        parts[Scope.DENSE_BLOCK] = _block_parameters(model, parallelism, None)
    return parts


def mtp_matrices(model: Model) -> int:
    """Return the values of the weights that project two hidden states to one."""
    return 2 * model.hidden_size**2


def expert_parameters(model: Model, parallelism: Parallelism) -> int:
    """Return how many parameters of routed experts a GPU has of one block, as `scope_parameters` counts them."""
    experts = model.experts
    if experts is None:
        return 0
    matrices = expert_matrices(model, experts.width)
    biases = (model.gated_width(experts.width) // parallelism.etp + model.hidden_size) if experts.biases else 0
    return experts.count // parallelism.ep * (matrices // parallelism.etp + biases)


def total_parameters(model: Model) -> int:
    """Return all parameters of a model, a tied LM head once, without blocks that predict further tokens."""
    main = replace(model, mtp_layers=0)
    return _summed(main, scope_parameters(main, ALONE))


def active_parameters(model: Model) -> int:
    """Return the parameters that a token uses: all of a dense model, and of experts those that it is sent to.

    Blocks that predict further tokens do not count.
    """
    main = replace(model, mtp_layers=0)
    parts = scope_parameters(main, ALONE)
    if (experts := model.experts) is not None:
        routed = expert_parameters(model, ALONE)
        parts[Scope.BLOCK] -= routed - routed // experts.count * experts.per_token
    return _summed(main, parts)


def mtp_parameters(model: Model, parallelism: Parallelism | None = None) -> int:
    """Return the parameters on one GPU of the blocks that predict further tokens; of all GPUs without a layout.

    Each is a block with a projection of two hidden states and three norms: of both, and of what it gives. On another
    stage than the embedding's there is a copy of that (Megatron Core).
    """
    layout = ALONE if parallelism is None else parallelism
    if not model.mtp_layers:
        return 0
    block = _block_parameters(model, layout, None if model.mtp_is_dense else model.experts)
    each = block + mtp_matrices(model) // layout.tp + 3 * model.norm_parameters
    copied = 0 if layout.head_stage == 0 or model.tie_embeddings else embedding_parameters(model, layout)
    return model.mtp_layers * each + copied


ALONE = Parallelism(dp=1, pp=1, tp=1, cp=1, layers_per_stage=None, sharding=Sharding.NONE, sequence_parallel=False)
"""One GPU that holds everything."""


def _summed(model: Model, parts: Mapping[Scope, int]) -> int:
    """Return the parameters of all blocks, of the embedding and of the head."""
    dense = len(model.dense_layers)
    blocks = (model.num_layers - dense) * parts[Scope.BLOCK] + dense * parts.get(Scope.DENSE_BLOCK, 0)
    return blocks + parts[Scope.EMBEDDING] + parts[Scope.HEAD]


def _block_parameters(model: Model, parallelism: Parallelism, experts: Experts | None) -> int:
    """Return the parameters on one GPU of a block, with experts or with the model's MLP."""
    divided, whole = _attention_parameters(model)
    whole += model.block_norms * model.norm_parameters
    if experts is None:
        divided += expert_matrices(model, model.intermediate_size)
        if model.has_mlp_bias:
            divided += model.mlp_input_width
            whole += model.hidden_size
        return divided // parallelism.tp + whole
    divided += expert_matrices(model, experts.shared_width)
    whole += experts.count * (model.hidden_size + experts.biases) + experts.shared_gate * model.hidden_size
    return divided // parallelism.tp + whole + expert_parameters(model, parallelism)


def _attention_parameters(model: Model) -> tuple[int, int]:
    """Return the parameters of attention: those that a tensor-parallel group divides, and those whole on every GPU.

    Of latent attention, the products that give latent vectors are whole, as in Megatron Core.
    """
    divided, whole = attention_matrices(model)
    of_all, of_each = model.qk_norm_parameters
    divided, whole = divided + of_each, whole + of_all
    latent = model.latent_attention
    if latent is not None:
        queries = latent.query_rank or 0
        vectors = queries + latent.key_value_rank + latent.rotary_dim
        whole += queries + latent.key_value_rank + (vectors if model.has_qkv_bias else 0)  # norms and biases
    elif model.has_qkv_bias:
        divided += model.query_width + 2 * model.key_value_width
    if model.has_projection_bias:
        whole += model.hidden_size
    if model.attention_sinks:
        divided += model.num_attention_heads
    return divided, whole


def attention_matrices(model: Model) -> tuple[int, int]:
    """Return the values of attention's weight matrices: those that a tensor-parallel group divides, and whole ones."""
    hidden, latent = model.hidden_size, model.latent_attention
    output = hidden * model.attended_width
    if latent is None:
        return output + hidden * (model.query_width + 2 * model.key_value_width), 0
    keys = model.num_attention_heads * (model.head_dim - latent.rotary_dim + latent.value_dim)
    divided = output + latent.key_value_rank * keys + (latent.query_rank or hidden) * model.query_width
    return divided, hidden * ((latent.query_rank or 0) + latent.key_value_rank + latent.rotary_dim)


def expert_matrices(model: Model, width: int) -> int:
    """Return the values of the weight matrices of an MLP of a width, one expert's or a whole block's."""
    return model.hidden_size * (model.gated_width(width) + width)


def _beside_table(model: Model) -> int:
    """Return the parameters beside the embedding of tokens: learned positions and a norm."""
    rows = 0 if model.max_positions is None else model.max_positions + model.position_offset
    return rows * model.hidden_size + (model.norm_parameters if model.embedding_norm else 0)


def reduced_parameters(
    model: Model, parallelism: Parallelism, options: TrainingOptions = PLAIN
) -> dict[Scope, tuple[int, ...]]:
    """Return the parameters on one GPU whose gradients are reduced at once, of each of `scope_parameters`.

    What is beside the embedding of tokens is apart from it, so that the first and the last stage shard a tied one
    alike. Routed experts are left out: they are reduced over other ranks; so are frozen weights.
    """
    if options.trains_adapters:
        trained = trained_parameters(model, parallelism, options)
        return {scope: (parameters,) if parameters else () for scope, parameters in trained.items()}
    parts, beside = scope_parameters(model, parallelism), _beside_table(model)
    for scope, experts in trained_expert_parameters(model, parallelism, options).items():
        parts[scope] -= experts
    reduced: dict[Scope, tuple[int, ...]] = {scope: (parameters,) for scope, parameters in parts.items()}
    if beside:
        reduced[Scope.EMBEDDING] = (parts[Scope.EMBEDDING] - beside, beside)
    return reduced


def trained_parameters(model: Model, parallelism: Parallelism, options: TrainingOptions) -> dict[Scope, int]:
    """Return those of `scope_parameters` that are trained: all of them, or those of adapters of blocks alone."""
    if not options.trains_adapters:
        return scope_parameters(model, parallelism)
    of_adapters = sum(adapter.parameters for adapter in adapters(model, parallelism, options))
    return {Scope.BLOCK: of_adapters, Scope.EMBEDDING: 0, Scope.HEAD: 0}


def gathered_bytes(model: Model, parallelism: Parallelism, options: TrainingOptions) -> dict[Scope, float]:
    """Return the bytes in which replicas that share out weights gather each of `scope_parameters`, with its adapters.

    Frozen weights of blocks are gathered as they are kept, in 4 bits with their scales (torchao's NF4 tensors under
    `fully_shard`), and cast where they are.
    """
    scope_bytes: dict[Scope, float] = {
        scope: BF16_BYTES * n for scope, n in scope_parameters(model, parallelism).items()
    }
    if options.trains_adapters:
        beside = BF16_BYTES * trained_parameters(model, parallelism, options)[Scope.BLOCK]
        scope_bytes[Scope.BLOCK] = options.frozen_weights.value_bytes / BF16_BYTES * scope_bytes[Scope.BLOCK] + beside
    return scope_bytes


def trained_expert_parameters(model: Model, parallelism: Parallelism, options: TrainingOptions) -> dict[Scope, int]:
    """Return the parameters of routed experts on one GPU that are trained, of each part of a model that has any."""
    if options.trains_adapters:
        return {}
    routed = expert_parameters(model, parallelism)
    further = 0 if model.mtp_is_dense else model.mtp_layers * routed
    return {scope: count for scope, count in ((Scope.BLOCK, routed), (Scope.HEAD, further)) if count}


def used_matrices(model: Model, *, dense: bool) -> int:
    """Return how many values the weight matrices have that a token passes in one block, over all GPUs.

    Args:
        model: the model.
        dense: whether the block has the MLP of the model, and no experts.
    """
    attention = sum(attention_matrices(model))
    experts = model.experts
    if dense or experts is None:
        return attention + expert_matrices(model, model.intermediate_size)
    router = model.hidden_size * (experts.count + experts.shared_gate)
    return attention + router + expert_matrices(model, experts.routed_width + experts.shared_width)


def all_used_matrices(model: Model) -> int:
    """Return the values of the weight matrices of all blocks that a token passes, over all GPUs.

    Those that predict further tokens count with the LM head (`used_by_mtp`).
    """
    dense = len(model.dense_layers)
    return (model.num_layers - dense) * used_matrices(model, dense=False) + dense * used_matrices(model, dense=True)


def used_by_mtp(model: Model) -> int:
    """Return the values of the weight matrices that a token passes to predict further ones, the LM head's again."""
    block = used_matrices(model, dense=model.mtp_is_dense)
    return model.mtp_layers * (block + mtp_matrices(model) + model.vocab_size * model.hidden_size)


def embedding_parameters(model: Model, parallelism: Parallelism) -> int:
    """Return the parameters on one GPU of the embedding of tokens."""
    return model.vocab_size * model.hidden_size // parallelism.tp


def partial_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, int]:
    """Return the parameters whose gradients a GPU has of a part of what its tensor-parallel group computes.

    Norms of queries and keys see a GPU's own heads; with sequence parallelism the other norms, and routers, see its own
    tokens. Their gradients have to be summed over the group.
    """
    if parallelism.tp == 1:
        return dict.fromkeys(scope_parameters(model, parallelism), 0)
    norm = model.norm_parameters if parallelism.sequence_parallel else 0
    heads, _ = model.qk_norm_parameters
    embedded = norm if model.embedding_norm else 0
    dense = model.block_norms * norm + heads
    router = 0
    if model.experts is not None and parallelism.sequence_parallel:
        router = model.experts.count * model.hidden_size
    further = model.mtp_layers * (dense + 3 * norm + (0 if model.mtp_is_dense else router))
    parts = {Scope.BLOCK: dense + router, Scope.EMBEDDING: embedded, Scope.HEAD: norm + further}
    if model.dense_layers:
        parts[Scope.DENSE_BLOCK] = dense
    return parts
