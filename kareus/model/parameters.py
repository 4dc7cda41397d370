"""Parameters that one GPU holds of each part of a model."""

from kareus.graph.records import Scope
from kareus.model.config import Model, Parallelism


def scope_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, int]:
    """Return the parameters on one GPU of one block, of the embedding, and of the final norm with the LM head.

    A tied LM head counts as one of its own; on the same stage as the embedding it is none. Norms, learned positions and
    the biases of what is summed over the tensor-parallel group are whole on every GPU.
    """
    bias = model.query_width + 2 * model.key_value_width if model.has_qkv_bias else 0
    norm = model.hidden_size * (2 if model.has_norm_bias else 1)
    whole = 2 * norm + (2 * model.head_dim if model.qk_norm else 0)
    if model.biases:
        bias += model.mlp_input_width
        whole += 2 * model.hidden_size
    table = embedding_parameters(model, parallelism)
    shares = model.tie_embeddings and parallelism.pp == 1
    return {
        Scope.BLOCK: (block_matrices(model) + bias) // parallelism.tp + whole,
        Scope.EMBEDDING: table + (model.max_positions or 0) * model.hidden_size,
        Scope.HEAD: norm + (0 if shares else table),
    }


def reduced_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, tuple[int, ...]]:
    """Return the parameters on one GPU whose gradients are reduced at once, of each of `scope_parameters`.

    Learned positions are apart from the embedding of tokens, so that the first and the last stage shard a tied one
    alike.
    """
    parts = scope_parameters(model, parallelism)
    positions = (model.max_positions or 0) * model.hidden_size
    reduced: dict[Scope, tuple[int, ...]] = {scope: (parameters,) for scope, parameters in parts.items()}
    if positions:
        reduced[Scope.EMBEDDING] = (parts[Scope.EMBEDDING] - positions, positions)
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
    norm = model.hidden_size * (2 if model.has_norm_bias else 1) if parallelism.sequence_parallel else 0
    heads = 2 * model.head_dim if model.qk_norm else 0
    return {Scope.BLOCK: 2 * norm + heads, Scope.EMBEDDING: 0, Scope.HEAD: norm}
