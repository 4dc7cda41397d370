"""The structure of a model that its operator graph depends on: a few facts, and the sizes of its dimensions.

Models of one structure execute the same kernels on the same buffers; only the sizes differ. That was found with torch's
symbolic shapes, which trace the model without one condition on any size of 2 or more (`tests/partition/`): no kernel is
chosen by a size. A dimension of size 1 is another matter, since a tensor with one is contiguous in more ways than one,
so which dimensions have size 1 is part of the structure.
"""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from kareus.model.config import AttentionKernel, Model, NormKind, PositionKind
from kareus.model.features import Branches, NormPlacement
from kareus.model.parallelism import Parallelism
from kareus.model.shards import shard_of

HEAD_VALUES = 2
"""Values that rotary position embeddings turn together; a head has an even number of values."""
FUSED_HEADS = "fused_heads"
"""Name of the one size that is a sum: query, key and value heads, side by side in the output of QKV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Sizes on one GPU of what a trace is made of; every extent of a tensor is a product of them and a constant."""

    batch: int
    """Sequences of a microbatch or nanobatch."""
    tokens: int
    """Tokens of a chunk of a sequence: of the whole, or with context parallelism of the half of a rank's share; with
    sequence parallelism of each of the parts that it is cut in."""
    hidden: int
    head_pairs: int
    """Half the values of a head."""
    query_heads: int
    key_value_heads: int
    intermediate: int
    vocabulary: int
    """Rows of the embedding."""

    def named(self) -> dict[str, int]:
        """Return the sizes by name, with that of the fused heads."""
        return {**asdict(self), FUSED_HEADS: self.query_heads + 2 * self.key_value_heads}


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Structure of a model: what decides which kernels it executes, apart from the sizes of its dimensions."""

    qk_norm: bool
    qkv_bias: bool
    tensor_parallel: bool
    """Whether blocks are divided over several GPUs; over how many changes no kernel."""
    cp: int
    """GPUs that share a sequence; gathered keys and values are put in order piece by piece."""
    ones: tuple[str, ...]
    """Names of the dimensions of size 1."""
    token_shards: int = 1
    """GPUs among which the tokens between matrix products are divided (sequence parallelism), a factor of the tokens;
    1 where they are whole."""
    layer_norm: bool = False
    """Whether norms are LayerNorms; else RMSNorms."""
    gated: bool = True
    """Whether the MLP has a gate; one activation without a gate moves the same bytes as another."""
    positions: PositionKind = PositionKind.ROPE
    biases: bool = False
    """Whether projections and LayerNorms have biases, but those of which the next fields say something else."""
    projection_bias: bool | None = None
    mlp_bias: bool | None = None
    norm_bias: bool | None = None
    norm_weight: bool = True
    head_bias: bool = False
    embedding_norm: bool = False
    norm_placement: NormPlacement = NormPlacement.BEFORE
    branches: Branches = Branches.SEQUENTIAL
    attention_kernel: AttentionKernel = AttentionKernel.FUSED
    reads_mask: bool = False
    """Whether attention reads a mask that is made once for all blocks, the engine's with ALiBi; see `structure_of`."""

    @property
    def chunks(self) -> int:
        """Number of chunks of a sequence on one GPU."""
        return chunks_of(self.cp)


def chunks_of(cp: int) -> int:
    """Return how many chunks of a sequence one of `cp` GPUs holds (`kareus.model.attention.chunks`)."""
    return 2 if cp > 1 else 1


def dimensions_of(model: Model, parallelism: Parallelism, batch: int, sequence_length: int) -> Dimensions:
    """Return the sizes on one GPU for `batch` sequences.

    Raises:
        RefusedWorkloadError: the model or the sequence does not divide over `parallelism`.
    """
    shard = shard_of(model, parallelism, sequence_length)
    return Dimensions(
        batch=batch,
        tokens=shard.tokens // (chunks_of(parallelism.cp) * parallelism.token_shards),
        hidden=shard.hidden_size,
        head_pairs=shard.head_dim // HEAD_VALUES,
        query_heads=shard.query_heads,
        key_value_heads=shard.key_value_heads,
        intermediate=shard.intermediate_size,
        vocabulary=shard.vocab_rows,
    )


def structure_of(
    model: Model,
    parallelism: Parallelism,
    dimensions: Dimensions,
    attention_kernel: AttentionKernel | None = None,
) -> Structure:
    """Return the structure of a model with these sizes.

    Args:
        model: the model.
        parallelism: degrees.
        dimensions: sizes on one GPU.
        attention_kernel: of other software, which computes ALiBi's mask on the chip where it is fused; None is the
            engine's, which is fused and reads it.
    """
    return Structure(
        qk_norm=model.qk_norm,
        qkv_bias=model.has_qkv_bias,
        tensor_parallel=parallelism.tp > 1,
        token_shards=parallelism.token_shards,
        cp=parallelism.cp,
        ones=tuple(name for name, size in asdict(dimensions).items() if size == 1),
        layer_norm=model.norm is NormKind.LAYERNORM,
        gated=model.activation.gated,
        positions=model.positions,
        biases=model.biases,
        projection_bias=model.projection_bias,
        mlp_bias=model.mlp_bias,
        norm_bias=model.norm_bias,
        norm_weight=model.norm_weight,
        head_bias=model.head_bias,
        embedding_norm=model.embedding_norm,
        norm_placement=model.norm_placement,
        branches=model.branches,
        attention_kernel=attention_kernel or AttentionKernel.FUSED,
        reads_mask=attention_kernel is None and model.positions is PositionKind.ALIBI,
    )


def probes(structure: Structure) -> tuple[Dimensions, Dimensions]:
    """Return two choices of sizes that tell the dimensions of `structure` apart.

    All sizes, that of the fused heads too, are distinct primes (or 1 where the structure says so) above any constant
    that a product of them is multiplied with, so that a product has one factorisation.
    """
    primes = _primes_from(32 * max(structure.cp * structure.token_shards, 16))
    return _probe(structure, primes), _probe(structure, primes)


def _probe(structure: Structure, primes: Iterator[int]) -> Dimensions:
    """Take the next sizes from `primes`; heads first, until their sum is prime too."""
    names = [field.name for field in fields(Dimensions)]
    query_heads, key_value_heads = 1, 1
    if "key_value_heads" not in structure.ones:
        key_value_heads = next(primes)
    if "query_heads" not in structure.ones:
        query_heads = next(q for q in primes if _is_prime(q + 2 * key_value_heads))
    heads = {"query_heads": query_heads, "key_value_heads": key_value_heads}
    others = (p for p in primes if p != query_heads + 2 * key_value_heads)
    sizes = {name: 1 if name in structure.ones else next(others) for name in names if name not in heads}
    return Dimensions(**heads, **sizes)


def _primes_from(least: int) -> Iterator[int]:
    return (n for n in itertools.count(least) if _is_prime(n))


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
