"""Sizes of the part of a model that one GPU holds, and the refusal of shapes that do not divide."""

from dataclasses import dataclass

from kareus.errors import RefusedWorkloadError
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Sizes of one GPU's part of a block under tensor parallelism, and of a sequence under context parallelism."""

    hidden_size: int
    head_dim: int
    query_heads: int
    key_value_heads: int
    intermediate_size: int
    vocab_rows: int
    """Rows of the embedding and of the LM head."""
    tokens: int
    """Tokens of one sequence."""


def shard_of(model: Model, parallelism: Parallelism, sequence_length: int) -> Shard:
    """Divide `model` over `parallelism`.

    Under context parallelism a sequence is cut in 2 cp chunks, of which each rank takes one from the front and
    one from the back, so that all ranks attend over equally many pairs (Llama 3, section 3.3.2).

    Raises:
        RefusedWorkloadError: something does not divide.
    """
    tp, cp = parallelism.tp, parallelism.cp
    chunks = 2 * cp if cp > 1 else 1
    has_mlp = model.experts is None or bool(model.dense_layers)
    return Shard(
        hidden_size=model.hidden_size,
        head_dim=model.head_dim,
        query_heads=_divided("num_attention_heads", model.num_attention_heads, "tp", tp),
        key_value_heads=_divided("num_key_value_heads", model.num_key_value_heads, "tp", tp),
        intermediate_size=_divided("intermediate_size", model.intermediate_size, "tp", tp if has_mlp else 1),
        vocab_rows=_divided("vocab_size", model.vocab_size, "tp", tp),
        tokens=_divided("sequence_length", sequence_length, "2 cp", chunks) * (2 if cp > 1 else 1),
    )


def _divided(name: str, value: int, by: str, parts: int) -> int:
    if value % parts:
        raise RefusedWorkloadError(f"{name}={value}: must be divisible by {by} ({parts}); choose other degrees.")
    return value // parts
