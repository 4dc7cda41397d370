"""Parameters that one GPU holds of each part of a model."""

from kareus.graph.records import Scope
from kareus.model.config import Model, Parallelism


def scope_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, int]:
    """Return the parameters on one GPU of one block, of the embedding, and of the final norm with the LM head.

    A tied LM head counts as one of its own; on the same stage as the embedding it is none.
    """
    query, key_value = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    matrices = model.hidden_size * (2 * query + 2 * key_value + 3 * model.intermediate_size)
    bias = query + 2 * key_value if model.qkv_bias else 0
    norms = 2 * model.hidden_size + (2 * model.head_dim if model.qk_norm else 0)
    table = embedding_parameters(model, parallelism)
    shares = model.tie_embeddings and parallelism.pp == 1
    return {
        Scope.BLOCK: (matrices + bias) // parallelism.tp + norms,
        Scope.EMBEDDING: table,
        Scope.HEAD: model.hidden_size + (0 if shares else table),
    }


def embedding_parameters(model: Model, parallelism: Parallelism) -> int:
    """Return the parameters on one GPU of the embedding."""
    return model.vocab_size * model.hidden_size // parallelism.tp


def partial_parameters(model: Model, parallelism: Parallelism) -> dict[Scope, int]:
    """Return the parameters whose gradients a GPU has of a part of what its tensor-parallel group computes.

    Norms of queries and keys see a GPU's own heads; with sequence parallelism the other norms see its own tokens. Their
    gradients have to be summed over the group.
    """
    if parallelism.tp == 1:
        return {Scope.BLOCK: 0, Scope.EMBEDDING: 0, Scope.HEAD: 0}
    norm = model.hidden_size if parallelism.sequence_parallel else 0
    heads = 2 * model.head_dim if model.qk_norm else 0
    return {Scope.BLOCK: 2 * norm + heads, Scope.EMBEDDING: 0, Scope.HEAD: norm}
