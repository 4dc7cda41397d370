"""Parameters that one GPU holds of each part of a model."""

from kareus.graph.records import Scope
from kareus.model.config import Model, Parallelism, Sharding


def scope_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, int]:
    """Return the parameters on one GPU of one block, of the embedding, and of the final norm with the LM head.

    A tied LM head counts as one of its own; on the same stage as the embedding it is none. Norms, learned positions and
    the biases of what is summed over the tensor-parallel group are whole on every GPU; norms of single heads are where
    these heads are.
    """
    whole, divided = model.qk_norm_parameters
    if model.has_qkv_bias:
        divided += model.query_width + 2 * model.key_value_width
    if model.has_mlp_bias:
        divided += model.mlp_input_width
    whole += model.block_norms * model.norm_parameters
    whole += (model.has_projection_bias + model.has_mlp_bias) * model.hidden_size
    table = embedding_parameters(model, parallelism)
    shares = model.tie_embeddings and parallelism.pp == 1
    head_bias = model.vocab_size // parallelism.tp if model.head_bias else 0
    return {
        Scope.BLOCK: (block_matrices(model) + divided) // parallelism.tp + whole,
        Scope.EMBEDDING: table + _beside_table(model),
        Scope.HEAD: model.norm_parameters + head_bias + (0 if shares else table),
    }


def total_parameters(model: Model) -> int:
    """Return all parameters of a model, a tied LM head once."""
    alone = Parallelism(dp=1, pp=1, tp=1, cp=1, layers_per_stage=None, sharding=Sharding.NONE, sequence_parallel=False)
    parts = scope_parameters(model, alone)
    return model.num_layers * parts[Scope.BLOCK] + parts[Scope.EMBEDDING] + parts[Scope.HEAD]


def active_parameters(model: Model) -> int:
    """Return the parameters that a token uses: all of a dense model."""
    return total_parameters(model)


def _beside_table(model: Model) -> int:
    """Return the parameters beside the embedding of tokens: learned positions and a norm."""
    rows = 0 if model.max_positions is None else model.max_positions + model.position_offset
    return rows * model.hidden_size + (model.norm_parameters if model.embedding_norm else 0)


def reduced_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, tuple[int, ...]]:
    """Return the parameters on one GPU whose gradients are reduced at once, of each of `scope_parameters`.

    What is beside the embedding of tokens is apart from it, so that the first and the last stage shard a tied one
    alike.
    """
    parts, beside = scope_parameters(model, parallelism), _beside_table(model)
    reduced: dict[Scope, tuple[int, ...]] = {scope: (parameters,) for scope, parameters in parts.items()}
    if beside:
        reduced[Scope.EMBEDDING] = (parts[Scope.EMBEDDING] - beside, beside)
    return reduced


def block_matrices(model: Model) -> int:
    """Return the values of the weight matrices of one block, over all GPUs."""
    attention = 2 * model.query_width + 2 * model.key_value_width
    return model.hidden_size * (attention + model.mlp_input_width + model.intermediate_size)


def embedding_parameters(model: Model, parallelism: Parallelism) -> int:
    """Return the parameters on one GPU of the embedding of tokens."""
    return model.vocab_size * model.hidden_size // parallelism.tp


def partial_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, int]:
    """Return the parameters whose gradients a GPU has of a part of what its tensor-parallel group computes.

    Norms of queries and keys see a GPU's own heads; with sequence parallelism the other norms see its own tokens. Their
    gradients have to be summed over the group.
    """
    if parallelism.tp == 1:
        return {Scope.BLOCK: 0, Scope.EMBEDDING: 0, Scope.HEAD: 0}
    norm = model.norm_parameters if parallelism.sequence_parallel else 0
    heads, _ = model.qk_norm_parameters
    embedded = norm if model.embedding_norm else 0
    return {Scope.BLOCK: model.block_norms * norm + heads, Scope.EMBEDDING: embedded, Scope.HEAD: norm}
